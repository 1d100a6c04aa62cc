"""The endpoint's own server with routes of a test, and a client that sends any bytes."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from app.endpoint.connection import HEADER_SECONDS
from app.endpoint.guard import GuardRules
from app.endpoint.server import EndpointServer

HEAD = b"Host: 127.0.0.1\r\n"
ANSWER_SECONDS = 5


@asynccontextmanager
async def serving(
    *routes: web.RouteDef, rules: GuardRules | None = None, header_seconds: float = HEADER_SECONDS
) -> AsyncIterator[int]:
    """The port while it serves."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = EndpointServer(routes, rules or GuardRules(), listener, header_seconds)
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


async def send(port: int, *pieces: bytes) -> bytes:
    """Send the pieces on one connection and read until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
    finally:
        writer.close()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    """A request after which the server closes the connection."""
    lines = [line + " HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    """The status of a raw answer."""
    return int(answer.split(b" ", 2)[1])


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these places."""
    places = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]
