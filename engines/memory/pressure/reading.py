"""What a sensor says, what was paged out between two of its readings, and what to say about a blind one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.memory.pressure.levels import Level

EVIDENCE_BYTES = 64 * 1024 * 1024
"""Paged out during one generation: from here on it is evidence that the memory is really short (specified)."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the system's memory. None is what could not be read."""

    level: Level | None
    paged_out_bytes: int | None
    """A counter that only grows: what was written to swap since some fixed moment."""
    available_bytes: int | None
    """What can be had without swapping; bounded by our own container."""
    total_bytes: int | None
    """The RAM there is for us: the machine's, or our own container's limit."""
    detail: str
    """The raw values, or why there are none, for the log."""


@dataclass(frozen=True, slots=True)
class Paging:
    """The paging counter at the start and at the end of a generation."""

    start: int | None
    end: int | None

    @property
    def bytes(self) -> int | None:
        """What was paged out in between; None where an end is unknown or the counter went backwards."""
        if self.start is None or self.end is None or self.end < self.start:
            return None
        return self.end - self.start

    @property
    def evidence(self) -> bool | None:
        """Whether that is evidence of real shortage; None: unknown, and the level decides alone."""
        paged = self.bytes
        return None if paged is None else paged >= EVIDENCE_BYTES


@dataclass(frozen=True, slots=True)
class SayOnce:
    """Whether to warn that something cannot be read: once per process, or once per episode of a gauge.

    One value per thing that is read: ``speak, once = once.after(reading.level is not None)``.
    """

    rearms: bool = False
    """A gauge's good reading ends the episode; the next bad one is said again."""
    said: bool = False

    def after(self, readable: bool) -> tuple[bool, SayOnce]:
        """Whether to speak now, and the value for next time."""
        if readable:
            return False, replace(self, said=self.said and not self.rearms)
        return not self.said, replace(self, said=True)


def room(available: int | None, total: int | None) -> str:
    """``1,203 of 24,105 MiB available``, for ``detail``."""
    if available is None or total is None:
        return "available RAM is unreadable"
    return f"{available // MIB:,} of {total // MIB:,} MiB available"
