"""Waiting for a server to serve: ended at once by its death, and by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engines import errors
from engines.child.process import ChildProcess

T = TypeVar("T")


async def until_ready(
    probe: Coroutine[Any, Any, T],
    process: ChildProcess,
    *,
    model: str,
    seconds: float,
    tail: Callable[[], str],
    classify: Callable[[str, int, str], Exception],
) -> T:
    """What ``probe`` comes to. Raises what ``classify`` makes of a death, and ``LoadTimedOut`` after ``seconds``.

    ``tail``: what the server printed, without its key.
    """
    ready = asyncio.ensure_future(probe)
    try:
        either: set[asyncio.Future[Any]] = {ready, process.died}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if process.died.done():
            raise classify(model, process.died.result(), tail())
        if not ready.done():
            raise errors.LoadTimedOut(model, detail=f"{seconds:.0f} s", tail=tail())
        return ready.result()
    finally:
        ready.cancel()
