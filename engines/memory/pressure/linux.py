"""Linux: PSI and available RAM; in a limited cgroup the group's own files."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from engines.memory.pressure.cgroup import NAMES, own_group
from engines.memory.pressure.levels import Stall, level_from_available, level_from_stall, stall_of, worst
from engines.memory.pressure.reading import Reading, room

KIB = 1024
PAGED_OUT = "pswpout"
"""Pages written to swap: a row of vmstat and, since Linux 6.12, of a version 2 group's ``memory.stat``."""


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """The texts of our own group's files; None is a file that is missing or cannot be read."""

    version: int
    limit: str | None
    usage: str | None
    stat: str | None
    stall: str | None


@dataclass(frozen=True, slots=True)
class Files:
    """The texts of the system's files, and of our group's where there is one."""

    meminfo: str | None
    vmstat: str | None
    stall: str | None
    group: GroupFiles | None


class LinuxSensor:
    """Reads the files anew each time: a container's limit may change, and a process may be moved."""

    def __init__(self, root: Path = Path("/"), page_bytes: int = mmap.PAGESIZE) -> None:
        self._root, self._page_bytes = root, page_bytes

    def read(self) -> Reading:
        """Look now."""
        return reading_of(
            Files(
                meminfo=self._text("/proc/meminfo"),
                vmstat=self._text("/proc/vmstat"),
                stall=self._text("/proc/pressure/memory"),
                group=self._group(),
            ),
            self._page_bytes,
        )

    def _group(self) -> GroupFiles | None:
        place = own_group(self._text("/proc/self/cgroup"), self._text("/proc/self/mountinfo"))
        if place is None:
            return None
        names = NAMES[place.version]
        return GroupFiles(
            version=place.version,
            limit=self._text(f"{place.folder}/{names.limit}"),
            usage=self._text(f"{place.folder}/{names.usage}"),
            stat=self._text(f"{place.folder}/memory.stat"),
            stall=None if names.stall is None else self._text(f"{place.folder}/{names.stall}"),
        )

    def _text(self, path: str) -> str | None:
        try:
            return (self._root / path.lstrip("/")).read_text("utf-8", "surrogateescape")
        except OSError:  # no such file here, or PSI is switched off: the value is None, and ``detail`` says so
            return None


def reading_of(files: Files, page_bytes: int) -> Reading:
    """Judge the files. Pure.

    A group that is limited below the machine's RAM is judged by its own numbers, where it has them: its PSI (the
    system's may be calm, or full of others), its limit, and what was paged out of it. Version 1 has only the limit.
    """
    system = table(files.meminfo)
    total, available = _kib(system, "MemTotal"), _kib(system, "MemAvailable")
    stall, stall_from = stall_of(files.stall), "system"
    paged_out, paged_from = table(files.vmstat).get(PAGED_OUT), "system"
    group, scope = files.group, ""
    limit = None if group is None else number(group.limit)
    if group is not None and limit is not None and limited(limit, total):
        stat = table(group.stat)
        reclaimable = sum(stat.get(row, 0) for row in NAMES[group.version].reclaimable)
        own = left(limit, number(group.usage), reclaimable)
        available = None if own is None or available is None else min(available, own)
        total, scope = limit, f" in our cgroup v{group.version}"
        own_stall = stall_of(group.stall)
        if own_stall is not None:
            stall, stall_from = own_stall, "cgroup"
        if PAGED_OUT in stat:
            paged_out, paged_from = stat[PAGED_OUT], "cgroup"
    paged_bytes = None if paged_out is None else paged_out * page_bytes
    return Reading(
        level=worst((level_from_stall(stall), level_from_available(available, total))),
        paged_out_bytes=paged_bytes,
        available_bytes=available,
        total_bytes=total,
        detail="; ".join(
            (
                _stalled(stall, stall_from),
                room(available, total) + scope,
                "paging is unreadable (vmstat)" if paged_out is None else f"{paged_out:,} pages out ({paged_from})",
            )
        ),
    )


def table(text: str | None) -> dict[str, int]:
    """The ``name number`` rows of ``memory.stat``, ``vmstat`` and (in KiB, with a colon) ``meminfo``."""
    rows: dict[str, int] = {}
    for row in (text or "").splitlines():
        words = row.split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit():
            rows[words[0].rstrip(":")] = int(words[1])
    return rows


def number(text: str | None) -> int | None:
    """A file of one number; None where it is missing, or ``max``."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdigit() else None


def limited(limit: int | None, ram: int | None) -> bool:
    """Whether the limit bounds us: version 1 writes none as a number near 2 to the 63rd."""
    return limit is not None and ram is not None and limit < ram


def left(limit: int, usage: int | None, reclaimable: int) -> int | None:
    """What the group may still take, in bytes; None where its usage is unknown."""
    return None if usage is None else max(0, limit - usage + min(reclaimable, usage))


def _kib(rows: dict[str, int], name: str) -> int | None:
    return rows[name] * KIB if name in rows else None


def _stalled(stall: Stall | None, source: str) -> str:
    if stall is None:
        return "PSI is unreadable"
    return f"stalled {stall.some:.1f} % some, {stall.full:.1f} % full ({source})"
