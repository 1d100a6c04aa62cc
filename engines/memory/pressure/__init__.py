"""How short of memory the system is, and how much it paged out. One module per system, chosen here.

The thresholds and every calculation are pure (``levels``, ``reading``); the system's module only fetches raw values.
Reading blocks: 2 ms on Linux (measured), a performance query on Windows. Read off the loop.
"""

from __future__ import annotations

import sys
from typing import Protocol

from engines.memory.pressure.forced import ForcedSensor, forced_level
from engines.memory.pressure.levels import Level
from engines.memory.pressure.reading import EVIDENCE_BYTES, Paging, Reading, SayOnce

__all__ = ["EVIDENCE_BYTES", "Level", "Paging", "Reading", "SayOnce", "Sensor", "for_this_system"]


class Sensor(Protocol):
    """One per process; it lives as long as the process does."""

    def read(self) -> Reading:
        """Look now. It never raises: what cannot be read is None and named in ``detail``."""


def for_this_system(forced: str | None = None) -> Sensor:
    """The sensor of the running system.

    ``forced`` is what the QA variable says: ``warning`` and ``critical`` force the level and evidence on every
    reading, the ``vram-`` values and None do nothing here.
    """
    level = forced_level(forced)
    return _of_the_system() if level is None else ForcedSensor(level, _of_the_system())


def _of_the_system() -> Sensor:
    if sys.platform == "win32":
        from engines.memory.pressure.windows import WindowsSensor

        return WindowsSensor()
    if sys.platform == "darwin":
        from engines.memory.pressure.macos import MacSensor

        return MacSensor()
    from engines.memory.pressure.linux import LinuxSensor

    return LinuxSensor()
