"""How many tokens an answer may have. Pure.

An MLX child refuses a request whose prompt and budget exceed the window together, and its refusal counts the prompt:
so "until the window is full" is asked for with the whole window, refused, and asked once more with what is left.
"""

from __future__ import annotations

UNKNOWN_WINDOW_TOKENS = 4096
"""The budget where neither the child nor the model's files name a window: the floor of every window (memory.md). Such a
child refuses nothing, and without a budget it would answer with 2048 tokens of its own choice, or without end."""


def first_budget(asked: int | None, allocated: int | None, trained: int | None) -> int:
    """What is asked for at first. All are tokens; None is unknown, or not asked."""
    return asked if asked is not None else allocated or trained or UNKNOWN_WINDOW_TOKENS


def second_budget(asked: int | None, prompt: int, window: int) -> int | None:
    """What is left beside the prompt, at most what was asked; None where the prompt alone fills the window."""
    left = window - prompt
    if left <= 0:
        return None
    return left if asked is None else min(asked, left)
