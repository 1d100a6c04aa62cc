"""From a raw reading to a level. Pure; every threshold is here. None means that the raw value says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SOME_PERCENT = 10.0
"""Share of the last 10 s in which some task waited for memory, in percent: from here on a warning (start value)."""
FULL_PERCENT = 10.0
"""Share of the last 10 s in which no task got on for want of memory, in percent: critical (start value)."""
WARNING_SHARE = 0.08
"""Under this share of RAM available: a warning (start value)."""
CRITICAL_SHARE = 0.04
"""Under this share of RAM available: critical (start value)."""
COMMIT_SHARE = 0.05
"""Windows: under this share of the commit limit left: critical; the next allocation may fail (start value)."""
STALL = re.compile(r"^(some|full) avg10=(\d{1,3}\.\d{1,2}) ", re.MULTILINE | re.ASCII)
"""A row of a PSI file (Documentation/accounting/psi.rst)."""


class Level(StrEnum):
    """How short of memory the system is, from good to bad."""

    CALM = "calm"
    WARNING = "warning"
    CRITICAL = "critical"


SYSCTL_LEVELS = {1: Level.CALM, 2: Level.WARNING, 4: Level.CRITICAL}
"""kern.memorystatus_vm_pressure_level: DISPATCH_MEMORYPRESSURE_NORMAL, _WARN, _CRITICAL."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The last 10 s of a PSI file, in percent of the time."""

    some: float
    full: float


@dataclass(frozen=True, slots=True)
class WindowsMemory:
    """What GlobalMemoryStatusEx says, in bytes; ``commit_left`` is what can still be committed."""

    available: int
    total: int
    commit_left: int
    commit_limit: int


def worst(levels: Iterable[Level | None]) -> Level | None:
    """The worst of the levels that are known; None when none is."""
    known = [level for level in levels if level is not None]
    return max(known, key=list(Level).index) if known else None


def stall_of(text: str | None) -> Stall | None:
    """Read a PSI file; None where it is missing or not one."""
    rows = {kind: float(percent) for kind, percent in STALL.findall(text or "")}
    return Stall(rows["some"], rows["full"]) if {"some", "full"} <= rows.keys() else None


def level_from_stall(stall: Stall | None) -> Level | None:
    """Linux: how much the tasks waited for memory."""
    if stall is None:
        return None
    if stall.full >= FULL_PERCENT:
        return Level.CRITICAL
    return Level.WARNING if stall.some >= SOME_PERCENT else Level.CALM


def level_from_available(available: int | None, total: int | None) -> Level | None:
    """How much of the RAM can be had without swapping; both in bytes."""
    if available is None or not total:
        return None
    if available < CRITICAL_SHARE * total:
        return Level.CRITICAL
    return Level.WARNING if available < WARNING_SHARE * total else Level.CALM


def level_from_sysctl(value: int | None) -> Level | None:
    """macOS: the kernel's own verdict; None for a number that it does not give today."""
    return None if value is None else SYSCTL_LEVELS.get(value)


def level_from_windows(low: bool | None, memory: WindowsMemory | None) -> Level | None:
    """Windows: the low-memory notification and the numbers. A notification that is quiet alone is no level."""
    signalled = Level.WARNING if low else None
    if memory is None:
        return signalled
    no_room = memory.commit_left < COMMIT_SHARE * memory.commit_limit
    return worst((signalled, Level.CRITICAL if no_room else None, level_from_available(memory.available, memory.total)))
