"""What a process holds for itself: memory that no file backs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil

ROW = re.compile(r"^(Anonymous|Swap):\s+(\d+) kB$", re.MULTILINE)
KIB = 1024


def anonymous_bytes(pid: int) -> int | None:
    """Anonymous memory of a process, swapped parts included; None where it cannot be read.

    Linux: ``Anonymous`` + ``Swap`` of smaps_rollup. Windows: the private commit. Both leave out mapped files.
    """
    if sys.platform == "linux":
        try:
            return from_smaps_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii"))
        except OSError:
            return None
    if sys.platform == "win32":
        try:
            return int(psutil.Process(pid).memory_info().private)
        except psutil.Error:
            return None
    return None


def from_smaps_rollup(text: str) -> int | None:
    """Read the kernel's table; None where it lacks the rows."""
    rows = dict(ROW.findall(text))
    if "Anonymous" not in rows:
        return None
    return (int(rows["Anonymous"]) + int(rows.get("Swap", 0))) * KIB
