"""Events out of bytes, and a streamed answer that never stays silent."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from app.endpoint import stream
from app.endpoint.errors import ApiError
from app.endpoint.stream import StreamAnswer, event, split_events
from tests.app.endpoint.serving import pieces_of, request, send, serving, status_of

SILENCE = 0.02


@pytest.mark.parametrize(
    ("data", "events", "rest"),
    [
        (b"", [], b""),
        (b"data: a", [], b"data: a"),
        (b"data: a\n", [], b"data: a\n"),
        (b"data: a\n\n", [b"data: a\n\n"], b""),
        (b"data: a\n\ndata: b", [b"data: a\n\n"], b"data: b"),
        (b": x\n\ndata: a\ndata: b\n\n", [b": x\n\n", b"data: a\ndata: b\n\n"], b""),
        (b"\n\n\n\n", [b"\n\n", b"\n\n"], b""),
    ],
)
def test_events_end_with_an_empty_line(data: bytes, events: list[bytes], rest: bytes) -> None:
    assert split_events(data) == (events, rest)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream with and without an unfinished end, and the same in pieces."""
    data = draw(st.lists(st.sampled_from([b"data: {}", b": x", b"\n", b"\n\n", b"[DONE]", b"\xc3\xa4"]), max_size=12))
    stream = b"".join(data)
    return stream, pieces_of(stream, draw(st.lists(st.integers(0, len(stream)), max_size=8)))


@given(cut_streams())
def test_however_the_bytes_are_cut_the_events_are_the_same(cut: tuple[bytes, list[bytes]]) -> None:
    stream, pieces = cut
    whole, left = split_events(stream)
    found, rest = [], b""
    for piece in pieces:
        events, rest = split_events(rest + piece)
        found += events
    assert (found, rest) == (whole, left)
    assert b"".join(found) + rest == stream


def body_of(answer: bytes) -> bytes:
    """The chunks of a raw answer put together."""
    data, body = answer.partition(b"\r\n\r\n")[2], b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
    return body


async def answered(handler: object) -> bytes:
    async with serving(web.get("/stream", handler)) as port:  # type: ignore[arg-type]
        return await send(port, request("GET /stream"))


async def test_an_answer_is_headers_comments_events_and_an_end() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {"x-one": "1"})
        assert not answer.committed
        await answer.commit({"x-two": "2"})
        await answer.commit({"x-two": "3"})
        assert answer.committed
        await answer.comment("loading")
        await answer.events(b"data: a\n\n")
        await answer.events(event({"b": 1}))
        return await answer.finish()

    raw = await answered(handler)
    head = raw.partition(b"\r\n\r\n")[0].lower()
    assert status_of(raw) == 200
    for line in (b"x-one: 1", b"x-two: 2", b"content-type: text/event-stream", b"cache-control: no-cache"):
        assert line in head
    assert b"x-two: 3" not in head
    assert body_of(raw) == b': loading\n\ndata: a\n\ndata: {"b": 1}\n\n'


async def test_the_headers_leave_with_the_first_event_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        send_off = transport.write

        def write(data: bytes) -> None:
            written.append(bytes(data))
            send_off(data)

        monkeypatch.setattr(transport, "write", write)
        answer = StreamAnswer(request, {})
        await answer.commit({})
        await asyncio.sleep(0)
        assert not written
        await answer.events(b"data: a\n\n")
        return await answer.finish()

    raw = await answered(handler)
    assert written[0].startswith(b"HTTP/1.1 200 OK")
    assert b"data: a\n\n" in written[0]
    assert body_of(raw) == b"data: a\n\n"


async def test_headers_do_not_wait_long_for_a_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "COMMIT_SECONDS", SILENCE)

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {})
        await answer.commit({})
        spoken = asyncio.Event()
        comment = answer.comment

        async def speak(text: str) -> None:
            await comment(text)
            spoken.set()

        monkeypatch.setattr(answer, "comment", speak)
        await asyncio.wait_for(spoken.wait(), 5)
        await answer.events(b"data: a\n\n")
        return await answer.finish()

    assert body_of(await answered(handler)) == b": still working\n\ndata: a\n\n"


async def test_a_silent_stream_is_kept_alive_and_a_busy_one_is_not_disturbed() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {}, silence=SILENCE)
        await answer.commit({})
        await asyncio.sleep(SILENCE * 8)
        for _ in range(40):
            await answer.events(b"data: a\n\n")
            await asyncio.sleep(SILENCE / 10)
        return await answer.finish()

    body = body_of(await answered(handler))
    silent, busy = body.split(b"data: a\n\n")[0], body[body.index(b"data: a") :]
    assert 3 <= silent.count(b": still working\n\n") <= 8
    assert busy.count(b": still working\n\n") <= 2
    assert set(body.split(b"\n\n")) <= {b": still working", b"data: a", b""}


async def test_an_error_is_the_last_event() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {})
        await answer.commit({})
        await answer.error(ApiError(502, "engine_failed", "Ask again."))
        return await answer.finish()

    event = body_of(await answered(handler)).decode()
    assert event.startswith("event: error\ndata: ")
    assert json.loads(event.splitlines()[1].removeprefix("data: "))["error"]["status"] == 502


async def test_when_the_client_has_left_the_comments_end(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {}, silence=SILENCE)
        await answer.commit({})
        try:
            await asyncio.sleep(60)
        finally:
            answer.release()
            answer.release()
            ended.set()
        raise AssertionError("unreachable")

    async with serving(web.get("/stream", handler)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET /stream"))
        await reader.readuntil(b": still working")
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
