"""A level that a test sets: everything above the sensor then behaves as under real pressure. Never set in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from engines.memory.pressure.levels import Level
from engines.memory.pressure.reading import EVIDENCE_BYTES, Reading

FORCED = {"warning": Level.WARNING, "critical": Level.CRITICAL}


class _Real(Protocol):
    def read(self) -> Reading: ...


def forced_level(value: str | None) -> Level | None:
    """The level that the QA variable forces on RAM; None for unset and for the values about VRAM."""
    return FORCED.get(value or "")


def forced(reading: Reading, level: Level, count: int) -> Reading:
    """The ``count``-th reading with this level; between any two of them lies evidence of paging."""
    return replace(
        reading, level=level, paged_out_bytes=count * EVIDENCE_BYTES, detail=f"forced to {level}; {reading.detail}"
    )


class ForcedSensor:
    """A real sensor whose level and paging are forced; how much memory is available stays true."""

    def __init__(self, level: Level, real: _Real) -> None:
        self._level, self._real = level, real
        self._count = 0

    def read(self) -> Reading:
        """Look now."""
        self._count += 1
        return forced(self._real.read(), self._level, self._count)
