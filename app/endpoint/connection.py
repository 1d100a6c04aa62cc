"""A deadline for half-sent headers, which aiohttp does not have.

Wraps the protocol of one connection. The clock runs from the connection's beginning, or from the first byte after
a request, until the headers are complete; keep-alive between requests is aiohttp's own.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

log = logging.getLogger(__name__)

HEADER_SECONDS = 10.0
KEEPALIVE_SECONDS = 60.0


class Deadline(asyncio.Protocol):
    """Passes everything to ``inner`` and closes a connection whose headers do not come."""

    def __init__(self, inner: asyncio.Protocol, seconds: float = HEADER_SECONDS) -> None:
        self._inner = inner
        self._seconds = seconds
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False

    def begun(self) -> None:
        """The headers are complete and a request is being served."""
        self._serving = True
        self._disarm()

    def ended(self) -> None:
        """The request was answered; the next one may take its time to begin."""
        self._serving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._arm()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """asyncio calls it."""
        if not self._serving and self._timer is None:
            self._arm()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """asyncio calls it."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio calls it."""
        self._disarm()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """asyncio calls it."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """asyncio calls it."""
        self._inner.resume_writing()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        if self._transport is not None and not self._serving:
            log.info("closed a connection whose headers did not come within %.0f s", self._seconds)
            self._transport.abort()


def deadline_of(request: web.Request) -> Deadline | None:
    """The deadline of a request's connection; None once it is closed."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, Deadline) else None
