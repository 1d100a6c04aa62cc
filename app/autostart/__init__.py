"""Starting when the user logs in. One module per system behind one interface, chosen here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Protocol

NAME = "plimsoll"
"""Of the entry, on every system."""

TITLE = "Plimsoll"
"""What lists of such entries show."""

IN_FOLDER = "import os, sys; os.chdir(sys.argv.pop(1)); from app.cli import main; sys.exit(main())"
"""``python -m app`` in the folder that is its first argument, for Windows: its entries hold no folder."""


class AutostartError(Exception):
    """The entry cannot be read, written or removed; ``sentence`` says why and what to do."""

    code = "autostart_failed"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Command:
    """What the system starts: a program with its arguments, and the folder to start it in."""

    argv: tuple[str, ...]
    folder: PurePath | None = None


class Autostart(Protocol):
    """How one system starts programs at login. Blocking; all of it for this user alone. Raises ``AutostartError``."""

    def enabled(self) -> bool:
        """Whether the system starts us; False as well where the user has switched our entry off elsewhere."""

    def enable(self, command: Command) -> None:
        """Have the system start this from the next login on."""

    def disable(self) -> None:
        """Have it start us no more; does nothing where it does not."""


def for_this_system() -> Autostart:
    """The implementation for the running system."""
    if sys.platform == "win32":
        from app.autostart.windows import RunKey

        return RunKey()
    if sys.platform == "darwin":
        from app.autostart.macos import LaunchAgent

        return LaunchAgent()
    from app.autostart.xdg import DesktopEntry

    return DesktopEntry()


def start_command(arguments: Sequence[str]) -> Command:
    """What starts this very program with ``arguments``, whatever it runs from."""
    checkout = Path(__file__).resolve().parents[2]
    return command_for(sys.platform, sys.executable, arguments, None if getattr(sys, "frozen", False) else checkout)


def command_for(platform: str, executable: str, arguments: Sequence[str], checkout: Path | None) -> Command:
    """The same, pure. ``platform`` is ``sys.platform``; ``checkout`` is None where ``executable`` is all of it."""
    path = PureWindowsPath if platform == "win32" else PurePosixPath
    if checkout is None:
        return Command((executable, *arguments))
    if platform == "win32":
        windowless = str(path(executable).with_name("pythonw.exe"))
        return Command((windowless, "-c", IN_FOLDER, str(checkout), *arguments))
    return Command((executable, "-m", "app", *arguments), checkout)
