"""How far a load is: an MLX server says nothing of it, but its memory fills with the weights."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from engines.engine import Progress
from engines.memory.footprint import anonymous_bytes

POLL_SECONDS = 0.25
MOST = 0.99
"""Only readiness is all of it."""


async def report(pid: int, expected: int, progress: Progress) -> NoReturn:
    """Report what the process holds against the ``expected`` bytes, until cancelled. It never goes back."""
    most = 0.0
    while True:
        held = await asyncio.to_thread(anonymous_bytes, pid)
        most = max(most, share(held, expected))
        progress(most)
        await asyncio.sleep(POLL_SECONDS)


def share(held: int | None, expected: int) -> float:
    """Of the load, 0 to 0.99; 0 where it is not known."""
    if held is None or expected <= 0:
        return 0.0
    return min(MOST, held / expected)
