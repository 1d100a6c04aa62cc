"""The connection to a child: how it is opened, and what is said when it breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp

from app.endpoint.errors import ApiError
from app.host.turn import Turn

LAST_WORDS_SECONDS = 2.0
"""How long the reason of a child's death may take to arrive after its connection broke."""
RECEIVE_BYTES = 8 * 1024
"""Receive buffer of a connection to a child: about thirty events."""
UPSTREAM_ERRORS = (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError)

Answer = TypeVar("Answer")


def new_session() -> aiohttp.ClientSession:
    """For all children. A new connection each time: a llama-server closes idle ones after 5 s, and one costs 0.1 ms."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


def post(session: aiohttp.ClientSession, turn: Turn, path: str, body: bytes) -> aiohttp.client._RequestContextManager:
    """Ask the turn's child."""
    return session.post(
        f"http://127.0.0.1:{turn.child.port}{path}",
        data=body,
        headers={"authorization": f"Bearer {turn.child.key}", "content-type": "application/json"},
    )


async def or_broken(read: Awaitable[Answer], turn: Turn) -> Answer:
    """What is read, or the reason that the turn was broken off."""
    reading = asyncio.ensure_future(read)
    try:
        either: set[asyncio.Future[Any]] = {reading, turn.broken}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if turn.broken.done():
            raise turn.broken.result()
        return reading.result()
    finally:
        reading.cancel()
        await asyncio.wait({reading})  # the turn ends only when nothing of it is under way


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
