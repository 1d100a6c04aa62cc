"""What is free at a load: this load's window is reduced to what fits, the next load decides afresh. Pure."""

from __future__ import annotations

from engines.artifact.facts import ModelFacts
from engines.memory.bill import MIB, in_words
from engines.memory.cost import largest, window_bytes
from engines.memory.grid import floor_of
from engines.plan import Window

LEFT_FREE_BYTES = 512 * MIB
"""Stays free for the system (start value)."""
SERVER_BYTES = 64 * MIB
"""What a child holds besides its window and its copy of the weights, at most (measured intercept)."""


def need_bytes(facts: ModelFacts, window: int, copied: int) -> int | None:
    """Anonymous memory that a load needs: KV and compute, the server's own copy of the weights, 64 MiB.

    ``copied`` is the size of that copy. None for a shape whose cost is not known.
    """
    cost = window_bytes(facts, window)
    return None if cost is None else cost + copied + SERVER_BYTES


def fitted(window: Window, facts: ModelFacts, available: int, copied: int) -> Window:
    """The window for ``available`` bytes: the same, or the largest that fits, at least the floor.

    One that the server sizes itself stays as it is.
    """
    planned, room = window.planned, available - LEFT_FREE_BYTES
    if planned is None:
        return window
    need = need_bytes(facts, planned, copied)
    if need is None or need <= room:
        return window
    fits = largest(lambda tokens: window_bytes(facts, tokens) or 0, room - copied - SERVER_BYTES, planned)
    reduced = max(fits, floor_of(planned))
    if reduced >= planned:
        return window
    reason = (
        f"{in_words(available)} of memory are free now, and {planned:,} tokens need {in_words(need)}"
        f" with {in_words(LEFT_FREE_BYTES)} left for the system: this load gets {reduced:,}"
    )
    return Window(reduced, window.trained, "free memory", reason)
