"""Footprints: the kernel's table, macOS' counters and Windows' commit; the latter two by fakes of the call."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.memory.footprint import RusageInfoV4, anonymous_bytes, from_smaps_rollup, phys_footprint, private_commit

MIB = 1 << 20
NOBODY = 2**22 + 1
"""Above the largest pid."""


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("Rss: 99 kB\nAnonymous:       2048 kB\nSwap:   1024 kB\nSwapPss: 7 kB\n", 3 * MIB),
        ("Anonymous: 2048 kB\n", 2 * MIB),
        ("LazyFree: 1 kB\nAnonymous: 0 kB\nAnonHugePages: 4096 kB\n", 0),
        ("Rss: 1 kB\nSwap: 5 kB\n", None),
        ("", None),
    ],
)
def test_the_kernels_table(text: str, held: int | None) -> None:
    assert from_smaps_rollup(text) == held


@given(st.text())
def test_any_text_is_a_table_or_none(text: str) -> None:
    held = from_smaps_rollup(text)
    assert held is None or held >= 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_process_takes_shows_in_its_footprint() -> None:
    before = anonymous_bytes(os.getpid())
    block = b"x" * (64 * MIB)
    after = anonymous_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > 60 * MIB
    assert len(block) == 64 * MIB
    assert anonymous_bytes(NOBODY) is None


class LibSystem:
    """``proc_pid_rusage`` for one process, writing the struct where the caller says."""

    def __init__(self, pid: int, footprint: int) -> None:
        self.pid, self.footprint = pid, footprint

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
        assert flavor == 4
        if pid != self.pid:
            return -1
        words = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint64))
        words[2 + 6] = 1  # ri_resident_size, the one before
        words[2 + 7] = self.footprint  # after 16 bytes of UUID: ri_phys_footprint
        return 0


def test_macos_takes_the_physical_footprint() -> None:
    assert ctypes.sizeof(RusageInfoV4) == 296  # rusage_info_v4 of the macOS 14 SDK
    assert phys_footprint(7, LibSystem(7, 3 * MIB)) == 3 * MIB
    assert phys_footprint(8, LibSystem(7, 3 * MIB)) is None


def test_windows_takes_the_private_commit() -> None:
    def process(pid: int) -> Any:
        if pid != 7:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(memory_info=lambda: SimpleNamespace(private=3 * MIB, rss=9 * MIB))

    assert private_commit(7, process) == 3 * MIB
    assert private_commit(8, process) is None
