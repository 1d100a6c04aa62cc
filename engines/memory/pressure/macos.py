"""macOS: the kernel's own level, and the pages that its compressor wrote to the swap files."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import psutil

from engines.memory.pressure.levels import level_from_sysctl
from engines.memory.pressure.reading import Reading, room

LEVEL = b"kern.memorystatus_vm_pressure_level"
"""Never ``kern.memorystatus_level``, which is a percentage of free memory and says nothing about pressure."""
HOST_VM_INFO64 = 4
"""mach/host_info.h"""


class VmStatistics64(ctypes.Structure):
    """``vm_statistics64`` of mach/vm_statistics.h; counts of pages. Newer systems append fields.

    Of its counters ``swapouts`` is the paging: ``pageouts`` counts pages of files, and ``vm.swapusage`` (what is in
    the swap files now) falls again, so it is no counter.
    """

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("free_count", "active_count", "inactive_count", "wire_count")),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "zero_fill_count",
                "reactivations",
                "pageins",
                "pageouts",
                "faults",
                "cow_faults",
                "lookups",
                "hits",
                "purges",
            )
        ),
        *((name, ctypes.c_uint32) for name in ("purgeable_count", "speculative_count")),
        *((name, ctypes.c_uint64) for name in ("decompressions", "compressions", "swapins", "swapouts")),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "compressor_page_count",
                "throttled_count",
                "external_page_count",
                "internal_page_count",
            )
        ),
        ("total_uncompressed_pages_in_compressor", ctypes.c_uint64),
    )


HOST_VM_INFO64_COUNT = ctypes.sizeof(VmStatistics64) // 4
"""Its size in ``integer_t``: 38."""


def installed_memory() -> tuple[int, int]:
    """Bytes available without swapping, and bytes of RAM."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


class MacSensor:
    """``library`` is libSystem, or a fake of its four calls."""

    def __init__(self, library: Any = None, memory: Callable[[], tuple[int, int]] = installed_memory) -> None:
        self._library = library or ctypes.CDLL(None, use_errno=True)
        self._memory = memory
        # Once: each call takes another reference to the port.
        self._host = ctypes.c_uint32(self._library.mach_host_self())

    def read(self) -> Reading:
        """Look now."""
        value = self._pressure()
        paged_out = self._paged_out()
        available, total = self._memory()
        return Reading(
            level=level_from_sysctl(value),
            paged_out_bytes=paged_out,
            available_bytes=available,
            total_bytes=total,
            detail="; ".join(
                (
                    "the pressure level is unreadable" if value is None else f"pressure level {value}",
                    room(available, total),
                    "paging is unreadable (host_statistics64)" if paged_out is None else f"{paged_out:,} bytes out",
                )
            ),
        )

    def _pressure(self) -> int | None:
        value = ctypes.c_int32()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        failed = self._library.sysctlbyname(LEVEL, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        return None if failed or size.value != ctypes.sizeof(value) else int(value.value)

    def _paged_out(self) -> int | None:
        statistics = VmStatistics64()
        count = ctypes.c_uint32(HOST_VM_INFO64_COUNT)
        failed = self._library.host_statistics64(
            self._host, HOST_VM_INFO64, ctypes.byref(statistics), ctypes.byref(count)
        )
        # The kernel's pages, 16 KiB on Apple silicon even for a translated process whose own are 4 KiB.
        page = ctypes.c_size_t()
        failed = failed or self._library.host_page_size(self._host, ctypes.byref(page))
        return None if failed else int(statistics.swapouts * page.value)
