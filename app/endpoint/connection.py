"""One client's connection: aiohttp's, with a deadline for half-sent headers and with errors in our shape.

The clock runs from the connection's beginning, or from the first byte after a request, until the headers are
complete; keep-alive between requests is aiohttp's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from app.endpoint.errors import ApiError, json_error

log = logging.getLogger(__name__)

HEADER_SECONDS = 10.0
KEEPALIVE_SECONDS = 60.0
HEADER_BYTES = 8190
"""The longest line of a request's head (aiohttp's default)."""

CORS: web.RequestKey[Mapping[str, str]] = web.RequestKey("cors", Mapping[str, str])
"""What an answer to this request has to carry so that an allowed page may read it."""


class Connection(web.RequestHandler):
    """Made by the server for each connection; ``begun`` and ``ended`` stand around every request."""

    def __init__(self, server: web.Server, header_seconds: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_SECONDS,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            auto_decompress=False,  # no SDK compresses its requests; a bomb would
        )
        self._seconds = header_seconds
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
        self._arm()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """asyncio calls it, and aiohttp with nothing."""
        if data and not self._serving and self._timer is None:
            self._arm()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio calls it."""
        self._disarm()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp calls it for what never became a request, and for what a handler let through."""
        if isinstance(exc, ConnectionError):  # the client left while it was written to: nobody reads an answer
            raise exc
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        error = malformed(exc)
        log.info("%s", error.message)
        response = json_error(error)
        response.force_close()
        return response

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        if self.transport is not None and not self._serving:
            log.info("closed a connection whose headers did not come within %.0f s", self._seconds)
            self.transport.abort()


def malformed(error: HttpProcessingError) -> ApiError:
    """What is told of bytes that are no request; of the bytes themselves nothing is repeated. Pure."""
    if isinstance(error, LineTooLong):
        return ApiError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers_too_large",
            f"The address or a header is longer than {HEADER_BYTES:,} bytes. Send less.",
        )
    why = error.message.partition("\n")[0].partition(":")[0].rstrip(".")
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "malformed_request",
        f"The request is not proper HTTP/1.1 ({why}). Send it with an HTTP client to an address with http://.",
    )
