"""Windows: a value under the user's ``Run`` key."""

from __future__ import annotations

import subprocess
from typing import Any

from app.autostart import TITLE, AutostartError, Command

RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"
"""Under ``HKEY_CURRENT_USER``; each value is a command line."""

APPROVED = r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
"""Where the Task Manager and the Settings keep what the user switched off there; absent means on."""

SWITCHED_OFF = 1
"""Bit of the first byte of a value under ``APPROVED``: 2 and 6 are on, 3 and 7 off (seen; Microsoft documents none)."""

COMMAND_CHARACTERS = 260
"""Longest command line of a value (learn.microsoft.com, "Run and RunOnce Registry Keys")."""


class RunKey:
    """The value ``Plimsoll``. ``registry`` is ``winreg``, or a fake of it."""

    def __init__(self, registry: Any = None) -> None:
        if registry is None:
            import winreg

            registry = winreg
        self._registry = registry

    def enabled(self) -> bool:
        """See ``Autostart``."""
        if self._value(RUN) is None:
            return False
        approved = self._value(APPROVED)
        return not (isinstance(approved, bytes) and approved and approved[0] & SWITCHED_OFF)

    def enable(self, command: Command) -> None:
        """See ``Autostart``. It takes back that the user switched the entry off elsewhere."""
        line = subprocess.list2cmdline(command.argv)
        if len(line) > COMMAND_CHARACTERS:
            raise AutostartError(
                f"Plimsoll cannot be started with the system: its command line has {len(line)} characters, Windows "
                f"takes {COMMAND_CHARACTERS}. Move it to a folder with a shorter path."
            )
        try:
            with self._registry.CreateKeyEx(self._registry.HKEY_CURRENT_USER, RUN, 0, self._registry.KEY_WRITE) as key:
                self._registry.SetValueEx(key, TITLE, 0, self._registry.REG_SZ, line)
        except OSError as error:
            raise _error(RUN, error) from error
        self._remove(APPROVED)

    def disable(self) -> None:
        """See ``Autostart``."""
        self._remove(RUN)
        self._remove(APPROVED)

    def _value(self, path: str) -> object:
        try:
            with self._registry.OpenKey(self._registry.HKEY_CURRENT_USER, path) as key:
                found: object = self._registry.QueryValueEx(key, TITLE)[0]
                return found
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error(path, error) from error

    def _remove(self, path: str) -> None:
        try:
            with self._registry.OpenKey(self._registry.HKEY_CURRENT_USER, path, 0, self._registry.KEY_WRITE) as key:
                self._registry.DeleteValue(key, TITLE)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _error(path, error) from error


def _error(path: str, error: OSError) -> AutostartError:
    return AutostartError(
        f"Windows does not let Plimsoll use the registry key {path} ({error.strerror}). "
        "Set its start under Settings > Apps > Startup."
    )
