"""The stream of events: resumable by an id, whatever a client sends as one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.endpoint.management import ManagementRoutes, event_bytes
from app.events import Event, EventBus
from tests.app.endpoint.serving import request, send, serving, status_of

ANYTHING: Any = None
"""Host, library and names, which the events do without."""


def routes(bus: EventBus) -> ManagementRoutes:
    return ManagementRoutes(ANYTHING, ANYTHING, bus, ANYTHING)


def test_an_event_on_the_wire() -> None:
    wire = event_bytes(Event(7, 1.5, "notice", {"text": "two\nlines\n\n", "model": None})).decode()
    head, kind, data, *rest = wire.split("\n")
    assert (head, kind, rest) == ("id: 7", "event: notice", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {"at": 1.5, "text": "two\nlines\n\n", "model": None}


async def events_after(bus: EventBus, last_id: bytes) -> bytes:
    async with serving(*routes(bus).routes()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET /api/events").replace(b"\r\n\r\n", b"\r\nLast-Event-ID: " + last_id + b"\r\n\r\n"))
        read = await asyncio.wait_for(reader.readuntil(b": events\n\n"), 5)
        bus.publish("last", {})
        read += await asyncio.wait_for(reader.readuntil(b"event: last\n"), 5)
        writer.close()
    return read


@pytest.mark.parametrize("given", ["", "x", "-1", "1.5", "0x10", "٣", "9" * 20, "9" * 5000, "1 2"])
async def test_an_id_of_nobody_resumes_nothing(given: str) -> None:
    bus = EventBus()
    bus.publish("first", {})
    read = await events_after(bus, given.encode())
    assert status_of(read) == 200
    assert b"event: first" not in read


async def test_an_id_of_ours_resumes_after_it() -> None:
    bus = EventBus()
    first, _ = bus.publish("first", {}), bus.publish("second", {})
    read = await events_after(bus, str(first.id).encode())
    assert b"event: first" not in read
    assert b"event: second" in read


@pytest.mark.parametrize("given", ["0", "9" * 19])
async def test_an_id_of_another_run_gets_a_gap_and_all_that_is_kept(given: str) -> None:
    bus = EventBus()
    bus.publish("first", {})
    read = await events_after(bus, given.encode())
    assert b"event: gap" in read
    assert b"event: first" in read


async def test_events_have_no_head() -> None:
    async with serving(*routes(EventBus()).routes()) as port:
        raw = await send(port, request("HEAD /api/events"))
    assert status_of(raw) == 405
    assert raw.endswith(b"\r\n\r\n")


async def test_the_stream_ends_with_the_bus() -> None:
    bus = EventBus()
    async with serving(*routes(bus).routes()) as port:
        reading = asyncio.create_task(send(port, request("GET /api/events")))
        while not bus._subscriptions:
            await asyncio.sleep(0.01)
        bus.publish("last", {})
        bus.close()
        raw = await reading
    assert raw.endswith(b"0\r\n\r\n")
    assert b"event: last" in raw
