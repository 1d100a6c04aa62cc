"""Windows: the gauges of GPU memory by process, through PDH. NVML has no such numbers under WDDM."""

from __future__ import annotations

from typing import Any

from engines.nvidia.spill import GpuUsage, of_process

DEDICATED = r"\GPU Process Memory(*)\Dedicated Usage"
SHARED = r"\GPU Process Memory(*)\Shared Usage"
"""English names, which any language of Windows takes. Gauges: one look is enough. All instances, since those of a child
come and go with it."""


class WindowsGauges:
    """``pdh`` is pywin32's ``win32pdh``, or a fake of it. The query stays open until the process ends."""

    def __init__(self, pdh: Any = None) -> None:
        if pdh is None:
            import win32pdh

            pdh = win32pdh
        self._pdh = pdh
        self.why = ""
        """Why the last look found nothing."""
        self._open: tuple[Any, Any, Any] | None = None
        """The query, the counter of dedicated memory and that of shared."""

    def usage(self, pid: int) -> GpuUsage | None:
        """What a process holds now; None, with the reason in ``why``: PDH refuses, or does not know the process."""
        try:
            query, dedicated, shared = self._open or self._begin()
            self._pdh.CollectQueryData(query)
            on_card, in_ram = (
                self._pdh.GetFormattedCounterArray(counter, self._pdh.PDH_FMT_LARGE) for counter in (dedicated, shared)
            )
        except (self._pdh.error, self._pdh.counter_status_error) as error:
            self.why = str(error)
            return None
        found = of_process(pid, on_card, in_ram)
        self.why = f"no instance for process {pid}" if found is None else ""
        return found

    def _begin(self) -> tuple[Any, Any, Any]:
        query = self._pdh.OpenQuery()
        try:
            counters = [self._pdh.AddEnglishCounter(query, path) for path in (DEDICATED, SHARED)]
        except self._pdh.error:
            self._pdh.CloseQuery(query)  # the next sample tries anew
            raise
        self._open = query, counters[0], counters[1]
        return self._open
