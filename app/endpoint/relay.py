"""A turn's way to the child and back: streamed byte for byte, or whole."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web

from app.endpoint.errors import ApiError, from_child, from_fault, from_unserved
from app.endpoint.stream import DONE, ERROR_STARTS, EVENT_END, StreamAnswer, split_events
from app.host.host import Host
from app.host.model import Model
from app.host.refused import Unserved
from app.host.turn import Turn, WaitView
from app.host.vocabulary import WaitReason

log = logging.getLogger(__name__)

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
COMMIT_SECONDS = 2.0
"""A streaming client gets its headers after this long, so that editors do not time out."""
LAST_WORDS_SECONDS = 2.0
"""How long the reason of a child's death may take to arrive after its connection broke."""
RECEIVE_BYTES = 8 * 1024
"""Receive buffer of a connection to a child: about thirty events."""
UPSTREAM_ERRORS = (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a child."""

    model: Model
    path: str
    body: bytes
    """JSON."""
    stream: bool


class Relay:
    """Relays calls through the host's turns. One session for all; ``close`` it at the end."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # A new connection each time: a llama-server closes idle ones after 5 s, and on loopback one costs 0.1 ms.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection to a child."""
        await self._session.close()

    async def whole(self, call: Call, headers: Mapping[str, str]) -> web.Response:
        """Answer in one piece. Raises ``ApiError``."""
        try:
            async with self._host.turn(call.model) as turn:
                try:
                    async with self._post(call, turn) as upstream:
                        data = await _or_broken(upstream.read(), turn)
                except UPSTREAM_ERRORS as error:
                    raise await _lost(turn, error) from error
        except Unserved as error:
            raise from_unserved(error) from error
        if upstream.status != HTTPStatus.OK:
            raise from_child(upstream.status, data, reduced_from=reduced_from(turn))
        return web.Response(body=data, content_type="application/json", headers={**headers, **turn_headers(turn)})

    async def stream(self, request: web.Request, call: Call, headers: Mapping[str, str]) -> web.StreamResponse:
        """Answer as a stream of events. Raises ``ApiError`` only while nothing is sent."""
        answer = StreamAnswer(request, headers)
        try:
            try:
                await self._stream(call, answer)
            except Unserved as error:
                raise from_unserved(error) from error
        except ApiError as error:
            if not answer.committed:
                raise
            await answer.error(error)
        except Exception as error:
            if not answer.committed or isinstance(error, ConnectionError):
                raise
            log.exception("a stream of %s failed by a fault of ours", call.model.id)
            await answer.error(from_fault(error))
        finally:
            answer.release()
        return await answer.finish()

    async def _stream(self, call: Call, answer: StreamAnswer) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def waiting(view: WaitView) -> None:
            if view.seconds >= COMMIT_SECONDS:
                await answer.commit({"x-plimsoll-model": call.model.id})
                await answer.comment(wait_text(call.model, view))

        async with self._host.turn(call.model, waiting=waiting) as turn:
            late = answer.committed
            opening = asyncio.ensure_future(self._post(call, turn).__aenter__())
            try:
                until_commit = max(0.0, started + COMMIT_SECONDS - loop.time())
                either: set[asyncio.Future[Any]] = {opening, turn.broken}
                await asyncio.wait(either, timeout=until_commit, return_when=asyncio.FIRST_COMPLETED)
                if not opening.done() and not turn.broken.done():
                    await answer.commit(turn_headers(turn))
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if turn.broken.done():
                    raise turn.broken.result()
                upstream = opening.result()
                if upstream.status != HTTPStatus.OK:
                    raise from_child(upstream.status, await upstream.read(), reduced_from=reduced_from(turn))
                await answer.commit(turn_headers(turn))
                extra = turn_object(turn, call.path) if late or turn.notices else None
                await self._pump(upstream, answer, turn, extra)
            except UPSTREAM_ERRORS as error:
                raise await _lost(turn, error) from error
            finally:
                opening.cancel()
                if opening.done() and not opening.cancelled() and opening.exception() is None:
                    opening.result().close()

    async def _pump(
        self, upstream: aiohttp.ClientResponse, answer: StreamAnswer, turn: Turn, extra: Mapping[str, Any] | None
    ) -> None:
        """Pass the child's events on, unchanged, until its stream is complete; ``extra`` stands before the last."""
        turn.broken.add_done_callback(lambda _: upstream.close())
        rest, ended = b"", False
        async for data in upstream.content.iter_any():
            events, rest = split_events(rest + data)
            plain = b"".join(events)
            if not stands_out(plain):  # nearly always: one write for all that came at once
                await answer.events(plain)
                continue
            for event in events:
                if event.startswith(ERROR_STARTS):
                    raise from_child(HTTPStatus.INTERNAL_SERVER_ERROR, event.split(b": ", 1)[1], begun=True)
                if event == DONE and extra is not None:
                    await answer.object(extra)
                ended = ended or event == DONE
                await answer.events(event)
        if not ended:
            raise await _lost(turn, None)

    def _post(self, call: Call, turn: Turn) -> aiohttp.client._RequestContextManager:
        return self._session.post(
            f"http://127.0.0.1:{turn.child.port}{call.path}",
            data=call.body,
            headers={"authorization": f"Bearer {turn.child.key}", "content-type": "application/json"},
        )


def _small_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A connection to a child that hands over little at a time: the loop is everybody's, the tray's too.

    With the system's buffer four streams at full speed kept the loop from its timers for 150 ms.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return made


async def _or_broken(read: Any, turn: Turn) -> bytes:
    """The whole answer, or the reason that the turn was broken off."""
    reading = asyncio.ensure_future(read)
    try:
        await asyncio.wait({reading, turn.broken}, return_when=asyncio.FIRST_COMPLETED)
        if turn.broken.done():
            raise turn.broken.result()
        data: bytes = reading.result()
        return data
    finally:
        reading.cancel()


async def _lost(turn: Turn, error: BaseException | None) -> Exception:
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


def stands_out(events: bytes) -> bool:
    """Whether one of these events is an error or the end of the stream. Pure."""
    return (
        events.startswith(ERROR_STARTS) or DONE in events or any(EVENT_END + start in events for start in ERROR_STARTS)
    )


def reduced_from(turn: Turn) -> int | None:
    """The window without the brake, where the brake lowered it: an overflow says so."""
    window = turn.child.plan.window
    return window.trained if window.bound_by == "brake" else None


def turn_facts(turn: Turn) -> dict[str, Any]:
    """What a client is told of its turn. Windows are tokens. Pure."""
    return {
        "model": turn.model.id,
        "window": turn.child.facts.allocated_window,
        "trained_window": turn.child.plan.window.trained,
        "queue_ms": round(turn.queued_seconds * 1000),
        "load_ms": round(turn.load_seconds * 1000) if turn.load_seconds is not None else None,
        "notices": [{"kind": n.kind, "text": n.text, "numbers": dict(n.numbers)} for n in turn.notices],
    }


def turn_headers(turn: Turn) -> dict[str, str]:
    """The same as response headers. Pure."""
    facts = turn_facts(turn)
    named = {
        "x-plimsoll-model": facts["model"],
        "x-plimsoll-window": facts["window"],
        "x-plimsoll-trained-window": facts["trained_window"],
        "x-plimsoll-queue-ms": facts["queue_ms"],
        "x-plimsoll-load-ms": facts["load_ms"],
        "x-plimsoll-notice": ", ".join(n.kind for n in turn.notices) or None,
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def turn_object(turn: Turn, path: str) -> dict[str, Any]:
    """The same as the last chunk of a stream; its empty choice does not disturb a client that reads choices[0]."""
    chat = path == CHAT_PATH
    empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    return {
        "object": "chat.completion.chunk" if chat else "text_completion",
        "id": f"plimsoll-{turn.id}",
        "created": 0,
        "model": turn.model.id,
        "choices": [{"index": 0, **empty, "finish_reason": None}],
        "plimsoll": turn_facts(turn),
    }


def wait_text(model: Model, view: WaitView) -> str:
    """What a waiting client reads in a comment line. Pure."""
    match view.reason:
        case WaitReason.LOADING:
            percent = f" {view.progress:.0%}" if view.progress is not None else ""
            return f"loading {model.name}{percent}".replace("%", " %")
        case WaitReason.SWITCHING:
            return f"making room for {model.name}"
        case WaitReason.QUEUED:
            return f"waiting for {model.name}, {view.ahead} ahead"
