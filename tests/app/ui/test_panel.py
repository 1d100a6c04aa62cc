"""Whether the panel is dark, for the desktops there are."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt

from app.ui.panel import is_dark, taskbar_is_light

DARK, LIGHT, UNKNOWN = Qt.ColorScheme.Dark, Qt.ColorScheme.Light, Qt.ColorScheme.Unknown


@pytest.mark.parametrize(
    ("platform", "desktop", "scheme", "taskbar", "dark"),
    [
        ("linux", "KDE", DARK, None, True),
        ("linux", "KDE", LIGHT, None, False),
        ("linux", "", UNKNOWN, None, None),
        ("linux", "GNOME", LIGHT, None, True),
        ("linux", "ubuntu:GNOME", UNKNOWN, None, True),
        ("win32", "", LIGHT, False, True),
        ("win32", "", DARK, True, False),
        ("win32", "", DARK, None, None),
        ("darwin", "", DARK, None, True),
        ("darwin", "", LIGHT, None, False),
    ],
)
def test_the_panel_has_a_colour_of_its_own(
    platform: str, desktop: str, scheme: Qt.ColorScheme, taskbar: bool | None, dark: bool | None
):
    assert is_dark(platform, desktop, scheme, taskbar) is dark


def no_such_value() -> int:
    raise FileNotFoundError("SystemUsesLightTheme")


@pytest.mark.parametrize(("read", "light"), [(lambda: 1, True), (lambda: 0, False), (no_such_value, None)])
def test_windows_tells_of_its_taskbar(read: object, light: bool | None):
    assert taskbar_is_light(read) is light  # type: ignore[arg-type]
