"""The macOS sensor against a fake of libSystem that fills the caller's memory as the kernel does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engines.memory.pressure.levels import Level
from engines.memory.pressure.macos import HOST_VM_INFO64_COUNT, MacSensor, VmStatistics64, installed_memory

PAGE = 16384
SWAPOUTS = 120
"""Offset of ``swapouts`` in ``vm_statistics64``: 4 x 4 + 9 x 8 + 2 x 4 + 3 x 8 bytes come before."""


class LibSystem:
    """Answers for one moment; ``fails`` names a call that returns an error."""

    def __init__(self, level: int = 1, swapouts: int = 0, fails: str = "") -> None:
        self.level, self.swapouts, self.fails = level, swapouts, fails
        self.ports = 0

    def mach_host_self(self) -> int:
        self.ports += 1
        return -5  # a port name above 2**31, as ctypes returns it

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, new_size: Any) -> int:
        assert name == b"kern.memorystatus_vm_pressure_level"
        assert (new, new_size.value, size._obj.value) == (None, 0, 4)
        if self.fails == "sysctlbyname":
            return -1
        ctypes.memmove(value, ctypes.byref(ctypes.c_int32(self.level)), 4)
        return 0

    def host_statistics64(self, host: Any, flavor: int, info: Any, count: Any) -> int:
        assert (host.value, flavor, count._obj.value) == (2**32 - 5, 4, 38)
        if self.fails == "host_statistics64":
            return 4
        address = ctypes.addressof(info._obj)
        ctypes.memset(address, 0xFF, 152)  # all else is not what we look for
        ctypes.c_uint64.from_address(address + SWAPOUTS).value = self.swapouts
        return 0

    def host_page_size(self, host: Any, size: Any) -> int:
        if self.fails == "host_page_size":
            return 4
        size._obj.value = PAGE
        return 0


def memory() -> tuple[int, int]:
    return 9, 16


def test_the_struct_is_the_headers() -> None:
    assert HOST_VM_INFO64_COUNT == 38  # mach/host_info.h
    assert VmStatistics64.swapouts.offset == SWAPOUTS


@pytest.mark.parametrize(("value", "level"), [(1, Level.CALM), (2, Level.WARNING), (4, Level.CRITICAL), (7, None)])
def test_a_reading(value: int, level: Level | None) -> None:
    library = LibSystem(value, swapouts=3)
    sensor = MacSensor(library, memory)
    for _ in range(2):
        found = sensor.read()
        assert (found.level, found.paged_out_bytes) == (level, 3 * PAGE)
        assert (found.available_bytes, found.total_bytes) == (9, 16)
    assert library.ports == 1


def test_a_level_that_cannot_be_read_is_none_and_named() -> None:
    found = MacSensor(LibSystem(4, 3, fails="sysctlbyname"), memory).read()
    assert (found.level, found.paged_out_bytes) == (None, 3 * PAGE)
    assert "the pressure level is unreadable" in found.detail


@pytest.mark.parametrize("call", ["host_statistics64", "host_page_size"])
def test_a_counter_that_cannot_be_read_is_none_and_named(call: str) -> None:
    found = MacSensor(LibSystem(2, 3, fails=call), memory).read()
    assert (found.level, found.paged_out_bytes) == (Level.WARNING, None)
    assert "paging is unreadable" in found.detail


def test_installed_memory_is_available_and_total() -> None:
    available, total = installed_memory()
    assert 0 < available <= total
