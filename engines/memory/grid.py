"""The windows that llama.cpp can allocate. Pure."""

from __future__ import annotations

GRID = 256
"""llama.cpp pads a window up to a multiple of this many tokens (GGML_PAD in llama-context.cpp)."""
FLOOR = 4096
"""Tokens: no window is made smaller for memory; a model trained for less keeps what it was trained for."""


def padded(window: int) -> int:
    """The window that llama.cpp makes of ``window`` tokens: 8000 is 8192."""
    return -(-window // GRID) * GRID


def floor_of(window: int) -> int:
    """The least that a window of ``window`` tokens may be reduced to."""
    return min(FLOOR, window)
