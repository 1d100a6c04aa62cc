"""Linux and other free desktops: an entry in the autostart folder, by freedesktop.org's two specifications.

Desktop Application Autostart: the first folder that has a file of our name decides; ``Hidden=true`` means that the
user has deleted it. Desktop Entry: how values and command lines are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.autostart import NAME, TITLE, AutostartError, Command

GROUP = "Desktop Entry"

SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
"""Arguments that need no quotes; the specification's list of what does, turned round and made stricter."""

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
"""Of values of type string."""

_HIDDEN = ("Hidden", "true")
_SWITCHED_OFF = ("X-GNOME-Autostart-enabled", "false")
"""What GNOME's own settings write, instead of ``Hidden``."""


class DesktopEntry:
    """``plimsoll.desktop`` in ``$XDG_CONFIG_HOME/autostart``, over one that the system's administrator put up."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config")
        shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        self._file = _entry(config)
        self._shared = tuple(_entry(Path(folder)) for folder in shared if folder)

    def enabled(self) -> bool:
        """See ``Autostart``."""
        found = next((file for file in (self._file, *self._shared) if file.exists()), None)
        return found is not None and is_on(_read(found))

    def enable(self, command: Command) -> None:
        """See ``Autostart``."""
        _write(self._file, entry_text(command))

    def disable(self) -> None:
        """See ``Autostart``. Over an administrator's entry a hidden one is put."""
        if any(file.exists() for file in self._shared):
            _write(self._file, f"[{GROUP}]\nType=Application\nName={TITLE}\nHidden=true\n")
            return
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise _error(self._file, "removed", error) from error


def entry_text(command: Command) -> str:
    """The whole file. Pure."""
    folder = "" if command.folder is None else f"Path={value(str(command.folder))}\n"
    return (
        f"[{GROUP}]\n"
        "Type=Application\n"
        f"Name={TITLE}\n"
        "Comment=Runs language models on this machine\n"
        f"Icon={NAME}\n"
        f"Exec={exec_line(command.argv)}\n"
        f"{folder}"
        "Terminal=false\n"
        "StartupNotify=false\n"
    )


def exec_line(argv: Sequence[str]) -> str:
    """A command line as the value of ``Exec``. Pure."""
    return value(" ".join(_quoted(argument) for argument in argv))


def value(text: str) -> str:
    """A value of type string. Pure."""
    escaped = re.sub(r"[\\\n\t\r]", lambda found: _ESCAPES[found[0]], text)
    return f"\\s{escaped[1:]}" if escaped.startswith(" ") else escaped


def is_on(text: str) -> bool:
    """Whether a file with this text starts anything. Pure."""
    group, found = "", set()
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(.*)\]\s*", line):
            group = header[1]
        elif group == GROUP and "=" in line and not line.startswith("#"):
            key, _, said = line.partition("=")
            found.add((key.strip(), said.strip()))
    return bool(found) and _HIDDEN not in found and _SWITCHED_OFF not in found


def _quoted(argument: str) -> str:
    argument = argument.replace("%", "%%")  # a single one begins a field code
    if SAFE.fullmatch(argument):
        return argument
    return '"' + re.sub(r'["`$\\]', r"\\\g<0>", argument) + '"'


def _entry(config: Path) -> Path:
    return config / "autostart" / f"{NAME}.desktop"


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise _error(file, "read", error) from error


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    except UnicodeEncodeError as error:
        raise AutostartError(
            "Plimsoll cannot be started with the system: its path is not valid UTF-8. Move it to another folder."
        ) from error
    except OSError as error:
        raise _error(file, "written", error) from error


def _error(file: Path, what: str, error: OSError) -> AutostartError:
    return AutostartError(f"{file} cannot be {what} ({error.strerror}). Make that folder yours, or edit it yourself.")
