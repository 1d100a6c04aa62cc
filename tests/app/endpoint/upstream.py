"""A child that does what a real llama-server will not do on demand: split, stall, break off, fail in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from app.endpoint.call import CHAT_PATH, COMPLETIONS_PATH, Call
from app.endpoint.relay import Relay
from app.endpoint.workers import EMBEDDINGS_PATH, RERANK_PATH
from app.host.model import Model
from app.host.refused import Unserved
from app.host.status import NoticeStatus
from app.host.turn import Turn, WaitView
from engines.engine import ChildFacts
from engines.plan import LaunchPlan, Memory, Window
from tests.app.endpoint.serving import serving
from tests.fixtures.facts import facts

MODEL = Model("tiny", "Tiny", facts())
KEY = "the key of this spawn"
FACTS = ChildFacts(allocated_window=4096, slots=1)
PLAN = LaunchPlan("tiny", "cpu", (), {}, Window(8192, 40960, "model", ""), Memory(None))
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(text: str) -> bytes:
    """An event as a llama-server sends it."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENTS = (chunk("Hello"), chunk(" wörld\n\n"), b": keepalive\n\n", chunk("!"), DONE)
WHOLE = b"".join(EVENTS)


def sends(*pieces: bytes) -> Answer:
    """A stream of these pieces, each in a packet of its own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.001)
        return response

    return answer


def breaks_off_after(*pieces: bytes) -> Answer:
    """The same, and then the connection is gone."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await sends(*pieces)(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


def refuses(status: int, body: bytes) -> Answer:
    """An answer that is no stream."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json")

    return answer


@dataclass
class FakeChild:
    """What a relay uses of a child."""

    port: int
    key: str = KEY
    facts: ChildFacts = FACTS
    plan: LaunchPlan = PLAN


@dataclass
class FakeHost:
    """Grants at once, or does before what a test says."""

    child: FakeChild
    notices: tuple[NoticeStatus, ...] = ()
    before: Callable[[Callable[[WaitView], Awaitable[None]] | None], Awaitable[None]] | None = None
    open_turns: int = 0
    broken: asyncio.Future[Unserved] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @asynccontextmanager
    async def turn(
        self, model: Model, *, waiting: Callable[[WaitView], Awaitable[None]] | None = None
    ) -> AsyncIterator[Turn]:
        """As the host's."""
        if self.before is not None:
            await self.before(waiting)
        self.open_turns += 1
        try:
            child: Any = self.child
            yield Turn(7, model, child, 0.25, None, self.notices, self.broken)
        finally:
            self.open_turns -= 1


@dataclass
class Setting:
    """A relay between a client and a fake child. ``port`` is the client's."""

    host: FakeHost
    port: int
    requests: list[web.Request]
    bodies: list[bytes]


MakeCall = Callable[[web.Request, bytes], Call]


def plain_call(request: web.Request, body: bytes) -> Call:
    """A call to a llama-server, its body as the client sent it."""
    return Call(MODEL, request.path, body, json.loads(body)["stream"])


@asynccontextmanager
async def relay_to(host: FakeHost, make_call: MakeCall) -> AsyncIterator[int]:
    """A relay to the host's child, for clients on the port."""
    fake: Any = host
    relay = Relay(fake)

    async def handler(request: web.Request) -> web.StreamResponse:
        call = make_call(request, await request.read())
        return await (relay.stream(request, call, {"x-own": "1"}) if call.stream else relay.whole(call, {"x-own": "1"}))

    try:
        routes = [web.post(path, handler) for path in (CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH, RERANK_PATH)]
        async with serving(*routes) as port:
            yield port
    finally:
        await relay.close()


@asynccontextmanager
async def relaying(
    answer: Answer | None, make_call: MakeCall = plain_call, child: type[FakeChild] = FakeChild, **host: Any
) -> AsyncIterator[Setting]:
    """Serve ``/v1/...`` through a relay; without an answer nobody listens on the child's port."""
    requests: list[web.Request] = []
    bodies: list[bytes] = []

    async def upstream(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        bodies.append(await request.read())
        assert answer is not None
        return await answer(request)

    runner = web.ServerRunner(web.Server(upstream, handler_cancellation=True), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    child_port = int(runner.addresses[0][1])
    if answer is None:
        await site.stop()
    fake = FakeHost(child(child_port), **host)
    try:
        async with relay_to(fake, make_call) as port:
            yield Setting(fake, port, requests, bodies)
    finally:
        await runner.cleanup()
