"""The connection to a child: how it is opened, and what is said when it breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp

from app.endpoint.errors import ApiError
from app.host.refused import Unserved
from app.host.turn import Turn

LAST_WORDS_SECONDS = 2.0
"""How long the reason of a child's death may take to arrive after its connection broke."""
RECEIVE_BYTES = 8 * 1024
"""Receive buffer of a connection to a child: about thirty events."""
UPSTREAM_ERRORS = (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError)


def new_session() -> aiohttp.ClientSession:
    """For all children. A new connection each time: a llama-server closes its own after every stream."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


async def post(session: aiohttp.ClientSession, turn: Turn, path: str, body: bytes) -> aiohttp.ClientResponse:
    """Ask the turn's child; its answer has begun. The caller reads or closes it."""
    return await session.post(
        f"http://127.0.0.1:{turn.child.port}{path}",
        data=body,
        headers={"authorization": f"Bearer {turn.child.key}", "content-type": "application/json"},
    )


@asynccontextmanager
async def unless_broken(turn: Turn) -> AsyncIterator[None]:
    """Ends its body when the turn is broken off, and raises the reason; nothing of the body runs on."""
    try:
        async with asyncio.timeout(None) as limit:

            def end(_: asyncio.Future[Unserved]) -> None:
                limit.reschedule(asyncio.get_running_loop().time())

            turn.broken.add_done_callback(end)
            try:
                yield
            finally:
                turn.broken.remove_done_callback(end)
    except TimeoutError:
        if turn.broken.done():
            raise turn.broken.result() from None
        raise


async def lost(turn: Turn, error: BaseException | None) -> Exception:
    """Why the connection to the child broke: its death, when that is heard of in time."""
    await asyncio.wait({turn.broken}, timeout=LAST_WORDS_SECONDS)
    if turn.broken.done():
        return turn.broken.result()
    how = type(error).__name__ if error is not None else "it ended too early"
    return ApiError(
        HTTPStatus.BAD_GATEWAY,
        "engine_failed",
        f"The answer of {turn.model.name} broke off ({how}). Ask again.",
    )


def _small_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A connection to a child that hands over little at a time: the loop is everybody's, the tray's too.

    With the system's buffer four streams at full speed kept the loop from its timers for 150 ms.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return made
