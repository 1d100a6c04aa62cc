"""Windows: the low-memory notification, available RAM and commit room, and the rate of pages written out."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.memory.pressure.levels import WindowsMemory, level_from_windows
from engines.memory.pressure.reading import MIB, Reading, room

LOW_MEMORY = 0
"""LowMemoryResourceNotification of memoryapi.h; the system signals it at about 32 MiB per 4 GiB, at most 64 MiB."""
PAGES_OUTPUT = r"\Memory\Pages Output/sec"
"""Pages written to disk to free memory; its English name, which any language of Windows takes."""


@dataclass(frozen=True, slots=True)
class Integral:
    """A rate added up over time. Pure."""

    at: float
    """Seconds, of the clock that the rates are taken with."""
    total: float = 0.0

    def add(self, rate: float, now: float) -> Integral:
        """``rate`` per second held from ``at`` until ``now``; a rate below 0 is none."""
        return Integral(now, self.total + max(0.0, rate) * max(0.0, now - self.at))


class WindowsSensor:
    """``kernel`` is kernel32, ``api`` and ``pdh`` are pywin32's ``win32api`` and ``win32pdh``, or fakes of them.

    The notification's handle and the query stay open until the process ends.
    """

    def __init__(
        self, kernel: Any = None, api: Any = None, pdh: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if kernel is None or api is None or pdh is None:
            import win32api
            import win32pdh

            kernel, api, pdh = kernel or _kernel32(), api or win32api, pdh or win32pdh
        self._kernel, self._api = kernel, api
        self._low_memory = ctypes.c_void_p(self._kernel.CreateMemoryResourceNotification(LOW_MEMORY))
        self._paging = PagesOutput(pdh, clock)

    def read(self) -> Reading:
        """Look now."""
        low, memory, paged_out = self._low(), self._memory(), self._paging.read()
        available = None if memory is None else memory.available
        total = None if memory is None else memory.total
        commit = "" if memory is None else f"; {memory.commit_left // MIB:,} MiB may still be committed"
        return Reading(
            level=level_from_windows(low, memory),
            paged_out_bytes=paged_out,
            available_bytes=available,
            total_bytes=total,
            detail="; ".join(
                (
                    "the low-memory notification is unreadable" if low is None else f"low-memory notification {low}",
                    room(available, total) + commit,
                    f"paging is unreadable ({self._paging.why})" if paged_out is None else f"{paged_out:,} bytes out",
                )
            ),
        )

    def _low(self) -> bool | None:
        if not self._low_memory.value:
            return None
        state = ctypes.c_int()
        answered = self._kernel.QueryMemoryResourceNotification(self._low_memory, ctypes.byref(state))
        return bool(state.value) if answered else None

    def _memory(self) -> WindowsMemory | None:
        try:
            status = self._api.GlobalMemoryStatusEx()
        except self._api.error:
            return None
        return WindowsMemory(status["AvailPhys"], status["TotalPhys"], status["AvailPageFile"], status["TotalPageFile"])


class PagesOutput:
    """Bytes paged out since this was made: PDH gives the rate between two looks, and the looks are added up."""

    def __init__(self, pdh: Any, clock: Callable[[], float]) -> None:
        self._pdh, self._clock = pdh, clock
        self.why = ""
        """What PDH answered when the rate could not be read."""
        self._counter: Any = None
        try:
            self._query = pdh.OpenQuery()
            self._counter = pdh.AddEnglishCounter(self._query, PAGES_OUTPUT)
            pdh.CollectQueryData(self._query)  # a rate needs a first look
        except pdh.error as error:
            self._counter, self.why = None, str(error)
        self._pages = Integral(clock())

    def read(self) -> int | None:
        """Bytes so far; None where PDH refuses, now or from the start. An interval that PDH loses is not counted."""
        if self._counter is None:
            return None
        now = self._clock()
        try:
            self._pdh.CollectQueryData(self._query)
            _, rate = self._pdh.GetFormattedCounterValue(self._counter, self._pdh.PDH_FMT_DOUBLE)
        except (self._pdh.error, self._pdh.counter_status_error) as error:
            self._pages, self.why = self._pages.add(0.0, now), str(error)
            return None
        self._pages = self._pages.add(rate, now)
        return int(self._pages.total) * mmap.PAGESIZE


def _kernel32() -> Any:
    if sys.platform != "win32":
        raise OSError("there is no kernel32 here")
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    library.CreateMemoryResourceNotification.restype = ctypes.c_void_p
    return library
