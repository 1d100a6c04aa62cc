"""What a process holds for itself: memory that no file backs."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROW = re.compile(r"^(Anonymous|Swap):\s+(\d+) kB$", re.MULTILINE)
KIB = 1024
RUSAGE_INFO_V4 = 4
"""sys/resource.h; since macOS 10.14."""
RUSAGE_COUNTERS = 35
"""64-bit counters of ``rusage_info_v4`` after its UUID; newer versions append to it."""
PHYS_FOOTPRINT = 7
"""Which of them is ``ri_phys_footprint``."""


class RusageInfoV4(ctypes.Structure):
    """``rusage_info_v4`` of sys/resource.h."""

    _fields_ = (("uuid", ctypes.c_uint8 * 16), ("counters", ctypes.c_uint64 * RUSAGE_COUNTERS))


def anonymous_bytes(pid: int) -> int | None:
    """Anonymous memory of a process, swapped parts included; None where it cannot be read.

    Linux: ``Anonymous`` + ``Swap`` of smaps_rollup. macOS: ``phys_footprint``, as the Activity Monitor shows it.
    Windows: the private commit; for a child on a CUDA device it includes VRAM and is not RAM. All leave out
    mapped files.
    """
    if sys.platform == "win32":
        return private_commit(pid)
    if sys.platform == "darwin":
        return phys_footprint(pid)
    try:
        return from_smaps_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii"))
    except OSError:
        return None


def from_smaps_rollup(text: str) -> int | None:
    """Read the kernel's table; None where it lacks the rows."""
    rows = dict(ROW.findall(text))
    if "Anonymous" not in rows:
        return None
    return (int(rows["Anonymous"]) + int(rows.get("Swap", 0))) * KIB


def phys_footprint(pid: int, library: Any = None) -> int | None:
    """macOS: what the kernel charges the process with; compressed and swapped pages included.

    ``library`` is libSystem, or a fake of its ``proc_pid_rusage``. None for a process that is gone or not ours.
    """
    usage = RusageInfoV4()
    failed = (library or ctypes.CDLL(None, use_errno=True)).proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(usage))
    return None if failed else int(usage.counters[PHYS_FOOTPRINT])


def private_commit(pid: int, process: Callable[[int], Any] = psutil.Process) -> int | None:
    """Windows: what the process has committed for itself. None for a process that is gone or not ours."""
    try:
        return int(process(pid).memory_info().private)
    except psutil.Error:
        return None
