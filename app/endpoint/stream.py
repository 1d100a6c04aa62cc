"""A streamed answer on its way to a client: uncommitted at first, then headers, comments, chunks and an end.

Until the headers are sent an error is a status; after it an ``error`` event carries the same body. Nothing is ever
cut silently. Ours stands only between the child's events, never inside one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from app.endpoint.errors import ApiError

COMMIT_SECONDS = 2.0
"""A streaming client gets its headers after this long, so that editors do not time out."""
SILENCE_SECONDS = 15.0
"""The longest a committed stream stays silent: editors and proxies give up on a mute connection."""
DONE = b"data: [DONE]\n\n"
EVENT_END = b"\n\n"
ERROR_STARTS = (b'data: {"error"', b"error: ")
"""How a llama-server reports an error in the middle of a stream."""


def split_events(data: bytes) -> tuple[list[bytes], bytes]:
    """Complete events, each with its end, and what is left of the last. Pure."""
    *events, rest = data.split(EVENT_END)
    return [event + EVENT_END for event in events], rest


def event(value: Mapping[str, Any]) -> bytes:
    """An event that carries an object. Pure."""
    return b"data: " + json.dumps(value).encode() + EVENT_END


class HeldHeaders(web.StreamResponse):
    """Its headers leave with its first event: one write for both, and one waking of the client.

    aiohttp does so for answers in one piece; for streams it has no public way to ask for it.
    """

    _send_headers_immediately = False


class StreamAnswer:
    """One streamed answer. All methods run on the loop."""

    def __init__(
        self, request: web.Request, extra_headers: Mapping[str, str], silence: float = SILENCE_SECONDS
    ) -> None:
        self._request = request
        self._silence = silence
        self._headers = dict(extra_headers)
        self.response: web.StreamResponse | None = None
        self._last_write: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._speaking: asyncio.Task[None] | None = None

    @property
    def committed(self) -> bool:
        """Whether the status is settled: sent, or about to be."""
        return self.response is not None

    async def commit(self, headers: Mapping[str, str]) -> None:
        """Settle status 200 and the headers; they leave with what is written next, a comment after a while."""
        if self.response is not None:
            return
        response = HeldHeaders(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **self._headers, **headers}
        )
        response.content_type = "text/event-stream"
        self.response = response
        await response.prepare(self._request)  # writes nothing yet, and so never waits
        loop = asyncio.get_running_loop()
        self._wake_at(loop.time() + min(COMMIT_SECONDS, self._silence), self._break_silence)

    def commit_at(self, when: float, headers: Callable[[], Mapping[str, str]], text: str) -> None:
        """Commit at ``when`` (the loop's time) with a comment, unless that is done before."""

        async def commit() -> None:
            await self.commit(headers())
            await self.comment(text)

        if self.response is None:
            self._wake_at(when, commit)

    async def comment(self, text: str) -> None:
        """A line that clients skip."""
        await self._write(f": {text}\n\n".encode())

    async def events(self, data: bytes) -> None:
        """Whole events, unchanged."""
        await self._write(data)

    async def error(self, error: ApiError) -> None:
        """The last event."""
        await self._write(error.event())

    async def finish(self) -> web.StreamResponse:
        """End the answer."""
        assert self.response is not None
        self.release()
        await self.response.write_eof()
        return self.response

    def release(self) -> None:
        """Stop the comments. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._speaking is not None:
            self._speaking.cancel()

    async def _write(self, data: bytes) -> None:
        assert self.response is not None
        self._last_write = asyncio.get_running_loop().time()
        await self.response.write(data)

    def _wake_at(self, when: float, speak: Callable[[], Awaitable[None]]) -> None:
        """A timer, and a task only when it rings: most answers end before that."""

        async def speaking() -> None:
            with suppress(ConnectionError):  # the client is gone; the handler hears of it by its cancellation
                await speak()

        def ring() -> None:
            self._speaking = asyncio.create_task(speaking())

        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, ring)

    async def _break_silence(self) -> None:
        loop = asyncio.get_running_loop()
        if self._last_write is None or loop.time() - self._last_write >= self._silence:
            await self.comment("still working")
        assert self._last_write is not None
        self._wake_at(self._last_write + self._silence, self._break_silence)
