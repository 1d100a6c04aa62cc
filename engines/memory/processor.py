"""What the processor can, as far as it decides which weights llama.cpp copies: one reader for each system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

AMX = "amx"
AVX2 = "avx2"
AVX512 = "avx512"
DOTPROD = "dotprod"
"""Arm: dot products of bytes."""

LINUX_FLAGS = {"amx_int8": AMX, "avx2": AVX2, "avx512f": AVX512, "asimddp": DOTPROD}
"""Words of ``flags`` (x86) and ``Features`` (Arm) in /proc/cpuinfo."""
WINDOWS_FEATURES = {40: AVX2, 41: AVX512, 43: DOTPROD}
"""PF_AVX2, PF_AVX512F and PF_ARM_V82_DP of winnt.h; it has none for AMX, which Microsoft's compiler does not use."""
MACOS_NAMES = {
    "hw.optional.avx2_0": AVX2,
    "hw.optional.avx512f": AVX512,
    "hw.optional.arm.FEAT_DotProd": DOTPROD,
}
CPUINFO = Path("/proc/cpuinfo")


def read_features() -> tuple[str, ...]:
    """Features of this processor in a fixed order; empty where the system does not say."""
    if sys.platform == "linux":
        try:
            return from_cpuinfo(CPUINFO.read_text("utf-8", "replace"))
        except OSError:
            return ()
    if sys.platform == "win32":
        present = ctypes.WinDLL("kernel32").IsProcessorFeaturePresent
        return from_windows(lambda number: bool(present(number)))
    if sys.platform == "darwin":
        return from_macos(sysctl)
    return ()


def from_cpuinfo(text: str) -> tuple[str, ...]:
    """Read the first processor of /proc/cpuinfo. Pure."""
    for row in text.splitlines():
        name, _, words = row.partition(":")
        if name.strip() in {"flags", "Features"}:
            present = frozenset(words.split())
            return _ordered(feature for word, feature in LINUX_FLAGS.items() if word in present)
    return ()


def from_windows(present: Callable[[int], bool]) -> tuple[str, ...]:
    """Ask for each feature by its number in winnt.h."""
    return _ordered(feature for number, feature in WINDOWS_FEATURES.items() if present(number))


def from_macos(read: Callable[[str], int | None]) -> tuple[str, ...]:
    """Ask for each feature by its name; None and 0 are: no."""
    return _ordered(feature for name, feature in MACOS_NAMES.items() if read(name))


def sysctl(name: str) -> int | None:
    """One number of macOS's ``sysctlbyname``; None where it has none of that name."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int64))
    library = ctypes.CDLL(None)
    failed = library.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value


def _ordered(features: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(features))
