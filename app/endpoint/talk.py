"""What the relay asks of the way in which a kind of child is spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp

from app.endpoint.stream import StreamAnswer


class Talk(Protocol):
    """One call to one child, inside its turn."""

    async def open(self) -> aiohttp.ClientResponse:
        """Ask the child; its stream, which has begun. Raises ``ApiError`` for what it refuses."""

    async def pump(
        self, upstream: aiohttp.ClientResponse, answer: StreamAnswer, extra: Mapping[str, Any] | None
    ) -> None:
        """Bring its stream to the client; ``extra`` stands before the last event.

        Raises ``ApiError``, and the errors of a broken connection.
        """

    async def whole(self) -> bytes:
        """The JSON of an answer in one piece. Raises ``ApiError``, and the errors of a broken connection."""

    def headers(self) -> Mapping[str, str]:
        """What this answer adds to the headers of its turn; known when it is open."""

    def told(self) -> Mapping[str, Any]:
        """The same for the turn's object."""

    def close(self) -> None:
        """Let the child go, however the call ended. The last that is called; nothing of the call runs any more."""
