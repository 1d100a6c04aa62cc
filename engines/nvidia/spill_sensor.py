"""The sensor of the CUDA engine's brake: one per process, asked for one child at a time. It blocks."""

from __future__ import annotations

import logging
import sys
from typing import Protocol

from engines.memory.pressure.reading import SayOnce
from engines.nvidia import spill
from engines.nvidia.spill import ChildVram, GpuUsage, SpillReading

log = logging.getLogger(__name__)


class Gauges(Protocol):
    """What the system says of a process's GPU memory."""

    why: str
    """Why the last look found nothing."""

    def usage(self, pid: int) -> GpuUsage | None:
        """Look now; it never raises."""


class SpillSensor:
    """``forced_value`` is what the QA variable says: its ``vram-`` values force the spill on every reading."""

    def __init__(self, gauges: Gauges, forced_value: str | None = None) -> None:
        self._gauges = gauges
        self._forced = spill.FORCED.get(forced_value or "")
        self._blind: dict[int, SayOnce] = {}
        """By pid, the children whose gauges cannot be read now."""

    def stamp(self, pid: int, window: int, *, flash: bool) -> ChildVram:
        """Look at a child right after its load. ``window``: its allocated tokens; ``flash``: ``spill.flash_runs``."""
        self._blind.pop(pid, None)  # of an earlier child with this id
        healthy = spill.healthy_bytes(window, flash=flash)
        return spill.stamped(pid, healthy, self._usage(pid, healthy))

    def read(self, child: ChildVram, model: str) -> SpillReading:
        """Look now. Gauges that cannot be read are one WARNING, and again one after they could be in between."""
        reading = spill.read(self._usage(child.pid, child.healthy), child, self._gauges.why)
        once = self._blind.pop(child.pid, SayOnce(rearms=True))
        speak, once = once.after(reading.level is not None)
        if once.said:
            self._blind[child.pid] = once
        if speak:
            log.warning("%s", spill.unreadable_sentence(model, reading.detail))
        return reading

    def _usage(self, pid: int, healthy: int) -> GpuUsage | None:
        usage = self._gauges.usage(pid)
        return usage if self._forced is None else spill.forced(usage, healthy, self._forced)


def for_this_system(forced_value: str | None = None) -> SpillSensor | None:
    """The sensor; None everywhere but on Windows: elsewhere nothing spills, and the brake reads and does nothing."""
    if sys.platform != "win32":
        return None
    from engines.nvidia.spill_windows import WindowsGauges

    return SpillSensor(WindowsGauges(), forced_value)
