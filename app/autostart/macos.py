"""macOS: a launch agent of the user's."""

from __future__ import annotations

import plistlib
from pathlib import Path
from xml.parsers.expat import ExpatError

from app.autostart import NAME, AutostartError, Command


class LaunchAgent:
    """``plimsoll.plist`` in ``~/Library/LaunchAgents``; launchd reads it at the next login.

    It is not loaded at once: that would start a second instance, and unloading it would stop the one that runs.
    """

    def __init__(self, folder: Path | None = None) -> None:
        agents = Path.home() / "Library" / "LaunchAgents" if folder is None else folder
        self._file = agents / f"{NAME}.plist"

    def enabled(self) -> bool:
        """See ``Autostart``."""
        try:
            found = plistlib.loads(self._file.read_bytes())
        except FileNotFoundError:
            return False
        except (OSError, ValueError, ExpatError) as error:
            raise _error(self._file, "read", error) from error
        return isinstance(found, dict) and bool(found.get("RunAtLoad")) and not found.get("Disabled")

    def enable(self, command: Command) -> None:
        """See ``Autostart``."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_bytes(plistlib.dumps(agent(command)))
        except (OSError, ValueError) as error:  # ValueError: a path that XML cannot hold
            raise _error(self._file, "written", error) from error

    def disable(self) -> None:
        """See ``Autostart``."""
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise _error(self._file, "removed", error) from error


def agent(command: Command) -> dict[str, object]:
    """What launchd is told (launchd.plist(5)). Pure."""
    told: dict[str, object] = {
        "Label": NAME,
        "ProgramArguments": list(command.argv),
        "RunAtLoad": True,
        "ProcessType": "Interactive",
        "LimitLoadToSessionType": "Aqua",
    }
    return told if command.folder is None else {**told, "WorkingDirectory": str(command.folder)}


def _error(file: Path, what: str, error: Exception) -> AutostartError:
    reason = error.strerror if isinstance(error, OSError) else error
    return AutostartError(f"{file} cannot be {what} ({reason}). Remove it, or make that folder yours.")
