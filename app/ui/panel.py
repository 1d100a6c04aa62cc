"""Whether the panel that holds the tray is dark. It need not have the colour of the windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

TASKBAR_KEY = r"Software\Microsoft\Windows\CurrentVersion\Themes\Personalize"
"""Under ``HKEY_CURRENT_USER``; its DWORD ``SystemUsesLightTheme`` speaks of the taskbar, not of windows."""


def is_dark(platform: str, desktop: str, scheme: Qt.ColorScheme, taskbar_is_light: bool | None) -> bool | None:
    """True, False, or None where nothing tells.

    ``platform`` is ``sys.platform``, ``desktop`` is ``XDG_CURRENT_DESKTOP``, ``scheme`` what Qt knows of
    the windows, ``taskbar_is_light`` what Windows says of its taskbar.
    """
    if platform == "win32":
        return None if taskbar_is_light is None else not taskbar_is_light
    if "gnome" in desktop.lower().split(":"):
        return True  # its top bar is black under a light theme too
    if scheme is Qt.ColorScheme.Unknown:
        return None
    return scheme is Qt.ColorScheme.Dark


def panel_is_dark() -> bool | None:
    """The same for this machine, now."""
    desktop = os.environ.get("XDG_CURRENT_DESKTOP", "")
    scheme = QGuiApplication.styleHints().colorScheme()
    return is_dark(sys.platform, desktop, scheme, taskbar_is_light())


if sys.platform == "win32":
    import winreg

    def _light_theme() -> int:
        with winreg.OpenKey(winreg.HKEY_CURRENT_USER, TASKBAR_KEY) as key:
            return int(winreg.QueryValueEx(key, "SystemUsesLightTheme")[0])

else:

    def _light_theme() -> int:
        raise FileNotFoundError(TASKBAR_KEY)


def taskbar_is_light(read: Callable[[], int] = _light_theme) -> bool | None:
    """What Windows says of its taskbar; None elsewhere, and where it has no such entry."""
    try:
        return read() != 0
    except OSError:
        return None
