"""The ledger of live children, for what outlived everything else.

A file that names every live child. At the next start, leftovers whose identity matches are killed; a process that
merely has a recorded pid is somebody else's and is left alone.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

log = logging.getLogger(__name__)

MARKER = "PLIMSOLL_CHILD"
"""Environment variable that carries a child's marker."""
CLOCK_SLACK = 1.0
"""Seconds by which two readings of one process's creation time may differ (the system's clock may be set)."""
TERMINATE_SECONDS = 1.0
KILL_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One live child. ``create_time`` is Unix time in seconds."""

    pid: int
    create_time: float
    executable: str
    marker: str
    """In its environment; empty for a child that carries none: its executable and its age tell it then."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the system says of the process that has an entry's pid now; None could not be read."""

    create_time: float
    executable: str | None
    marker: str | None


def is_ours(entry: Entry, seen: Seen | None) -> bool:
    """Whether the process is the recorded child and not another one with its pid."""
    if seen is None or abs(seen.create_time - entry.create_time) > CLOCK_SLACK:
        return False
    if entry.marker and seen.marker is not None:
        return seen.marker == entry.marker
    return seen.executable is None or seen.executable == entry.executable


class Ledger:
    """The file. All methods block for a millisecond; ``sweep`` may block for seconds and belongs in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[int, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Record a child that was just started. Raises ``OSError``."""
        self._entries[entry.pid] = entry
        self._write()

    def remove(self, pid: int) -> None:
        """Forget a child that is gone. Raises ``OSError``."""
        if self._entries.pop(pid, None) is not None:
            self._write()

    def sweep(self) -> list[Entry]:
        """Kill what a former run left behind; returns what was killed. Call it before the first ``add``."""
        reaped = []
        for entry in self._read():
            if not is_ours(entry, look(entry.pid)):
                continue
            log.warning("a server of a former run is still there (pid %d): stopping it", entry.pid)
            kill_tree(entry.pid)
            reaped.append(entry)
        self._write()
        return reaped

    def _read(self) -> list[Entry]:
        try:
            rows: Any = json.loads(self._path.read_text("utf-8"))
            return [Entry(int(r["pid"]), float(r["create_time"]), str(r["executable"]), str(r["marker"])) for r in rows]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError) as error:
            log.warning("the ledger of children is damaged (%s): starting a new one", type(error).__name__)
            return []

    def _write(self) -> None:
        text = json.dumps([asdict(entry) for entry in self._entries.values()], indent=1)
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(self._path)


def look(pid: int) -> Seen | None:
    """What the system says of a process; None when there is none (a zombie counts as none)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        create_time = process.create_time()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return Seen(0.0, None, None)  # not even its age may be read: it is not our child
    try:
        executable: str | None = process.exe()
    except psutil.Error:
        executable = None
    try:
        marker: str | None = process.environ().get(MARKER, "")
    except (psutil.Error, OSError):
        marker = None
    return Seen(create_time, executable, marker)


def kill_tree(pid: int) -> None:
    """End a process and its descendants: politely, then not."""
    try:
        root = psutil.Process(pid)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for send, seconds in ((psutil.Process.terminate, TERMINATE_SECONDS), (psutil.Process.kill, KILL_SECONDS)):
        for process in tree:
            try:
                send(process)
            except psutil.NoSuchProcess:
                continue
        _, tree = psutil.wait_procs(tree, timeout=seconds)
