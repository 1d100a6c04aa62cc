"""Half-sent headers end a connection in time; a request that is served is never cut by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from app.endpoint.connection import malformed
from tests.app.endpoint.serving import HEAD, serving, status_of

PERIOD = 0.15
"""Seconds for the headers, in these tests."""
SLACK = 2.0
"""Seconds a loaded machine may be late."""
HEALTH = b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n"


@asynccontextmanager
async def connected(*routes: web.RouteDef) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with serving(*routes, header_seconds=PERIOD) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


async def closed_after(reader: asyncio.StreamReader) -> float:
    """How long the server keeps the connection from now on."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PERIOD + SLACK) == b""
    return loop.time() - started


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SLACK)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@pytest.mark.parametrize("begun", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: 127", HEALTH[:-2], b"\r\n\r\n"])
async def test_a_connection_whose_headers_do_not_come_is_closed(begun: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(begun)
        assert PERIOD * 0.8 < await closed_after(reader) < PERIOD + SLACK


async def test_dripping_bytes_do_not_stop_the_clock() -> None:
    async with connected() as (reader, writer):
        closing = asyncio.create_task(closed_after(reader))
        for byte in HEALTH[:-1]:
            if closing.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait({closing}, timeout=PERIOD / 10)
        assert await closing < PERIOD + SLACK


async def test_between_requests_a_client_may_take_its_time_but_not_within_the_next() -> None:
    async with connected() as (reader, writer):
        for _ in range(3):
            writer.write(HEALTH)
            assert status_of(await answer(reader)) == 200
            await asyncio.sleep(PERIOD * 1.5)
        writer.write(HEALTH[:10])
        assert PERIOD * 0.8 < await closed_after(reader) < PERIOD + SLACK


async def test_a_request_that_is_served_is_never_cut() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(4):
            await asyncio.sleep(PERIOD / 2)
            await response.write(b"x")
        await response.write(body)
        return response

    async with connected(web.post("/slow", slow)) as (reader, writer):
        writer.write(b"POST /slow HTTP/1.1\r\n" + HEAD + b"Connection: close\r\nContent-Length: 4\r\n\r\n12")
        await asyncio.sleep(PERIOD * 1.5)
        writer.write(b"34")
        whole = await asyncio.wait_for(reader.read(), SLACK)
    assert whole.count(b"x\r\n") == 4
    assert whole.endswith(b"4\r\n1234\r\n0\r\n\r\n")


async def test_requests_sent_ahead_are_all_answered() -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(PERIOD * 1.5)
        return web.Response(text="ok")

    async with connected(web.get("/slow", slow)) as (reader, writer):
        writer.write((b"GET /slow HTTP/1.1\r\n" + HEAD + b"\r\n") * 2 + HEALTH)
        assert [status_of(await answer(reader)) for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"\x00\x01\xff garbage\r\n\r\n", 400, b"malformed_request"),
        (bytes.fromhex("16030102000100") + bytes(90) + b"\r\n\r\n", 400, b"HTTPS traffic"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, b"malformed_request"),
        (b"FROB /health HTTP/1.1\r\n" + HEAD + b"\r\n", 400, b"malformed_request"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, b"Missing 'Host'"),
        (b"GET /health HTTP/1.1\r\n" + HEAD * 2 + b"\r\n", 400, b"Duplicate 'Host'"),
        (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: a\x00b\r\n\r\n", 400, b"malformed_request"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 431, b"8,190 bytes"),
        (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431, b"8,190 bytes"),
        (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: a\r\n" * 1000 + b"\r\n", 400, b"Too many headers"),
    ],
)
async def test_bytes_that_are_no_request_get_an_error_of_our_shape(
    raw: bytes, status: int, code: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with connected() as (reader, writer):
        writer.write(raw)
        found = await asyncio.wait_for(reader.read(), SLACK)
    assert status_of(found) == status
    assert code in found
    assert b'"type": "invalid_request_error"' in found
    assert b"garbage" not in found
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO] == []
    assert "garbage" not in caplog.text


def test_of_malformed_bytes_nothing_is_repeated() -> None:
    error = malformed(BadHttpMessage("Invalid header token:\n\n  b'Authorization : Bearer secret'\n   ^"))
    assert error.message.startswith("The request is not proper HTTP/1.1 (Invalid header token).")
    assert "secret" not in malformed(LineTooLong(b"Bearer secret", 8190)).message
