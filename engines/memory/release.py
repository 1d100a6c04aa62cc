"""Does the system have a stopped child's memory back, so that the next load can be sized against what is there?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

BACK_SECONDS = 10.0
"""How long the system may take."""
BACK_SHARE = 0.5
"""This much of what the child held must be available again (start value)."""
NOISE_BYTES = 256 * 1024 * 1024
"""What other programs take and give in the meantime (start value)."""
POLL_SECONDS = 0.05


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def is_back(before: int, held: int, now: int) -> bool:
    """Whether ``now`` shows that the ``held`` bytes came back to the ``before`` available ones. Pure."""
    return now - before >= held * BACK_SHARE - NOISE_BYTES


async def until_back(
    before: int, held: int, *, seconds: float = BACK_SECONDS, read: Callable[[], int] = available_bytes
) -> bool:
    """Wait for the memory; False when it did not come within ``seconds``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not is_back(before, held, read()):
        if loop.time() >= end:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
