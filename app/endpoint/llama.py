"""A call to a llama-server: its bytes travel as they are."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

from app.endpoint.call import Call
from app.endpoint.errors import from_child
from app.endpoint.stream import DONE, ERROR_STARTS, StreamAnswer, event, split_events
from app.endpoint.turn_facts import reduced_from
from app.endpoint.upstream import lost, post, unless_broken
from app.host.turn import Turn


class LlamaTalk:
    """One call, in its turn."""

    def __init__(self, session: aiohttp.ClientSession, call: Call, turn: Turn) -> None:
        self._session, self._call, self._turn = session, call, turn

    async def open(self) -> aiohttp.ClientResponse:
        """As ``Talk``."""
        upstream = await self._post()
        if upstream.status != HTTPStatus.OK:
            raise from_child(upstream.status, await upstream.read(), reduced_from=reduced_from(self._turn))
        return upstream

    async def pump(
        self, upstream: aiohttp.ClientResponse, answer: StreamAnswer, extra: Mapping[str, Any] | None
    ) -> None:
        """Pass the child's events on, unchanged, until its stream is complete; ``extra`` stands before the last."""
        turn = self._turn
        turn.broken.add_done_callback(lambda _: upstream.close())
        rest, ended = b"", False
        async for data in upstream.content.iter_any():
            events, rest = split_events(rest + data)
            good, failure = until_failure(events)
            if DONE in good:
                ended = True
                if extra is not None:
                    good.insert(good.index(DONE), event(extra))
            if good:
                await answer.events(b"".join(good))  # one write for all that came at once
            if failure is not None:
                raise from_child(HTTPStatus.INTERNAL_SERVER_ERROR, failure, begun=True)
        if not ended:
            raise await lost(turn, None)

    async def whole(self) -> bytes:
        """As ``Talk``."""
        async with unless_broken(self._turn), await self._post() as upstream:
            data = await upstream.read()
        if upstream.status != HTTPStatus.OK:
            raise from_child(upstream.status, data, reduced_from=reduced_from(self._turn))
        return data

    def headers(self) -> Mapping[str, str]:
        """As ``Talk``: none."""
        return {}

    def told(self) -> Mapping[str, Any]:
        """As ``Talk``: nothing."""
        return {}

    def close(self) -> None:
        """As ``Talk``: there is nothing to tell."""

    async def _post(self) -> aiohttp.ClientResponse:
        return await post(self._session, self._turn, self._call.path, self._call.body)


def until_failure(events: list[bytes]) -> tuple[list[bytes], bytes | None]:
    """The events before the one that reports a failure, and its JSON text. Pure."""
    for number, this in enumerate(events):
        if this.startswith(ERROR_STARTS):
            return events[:number], this.split(b": ", 1)[1]
    return events, None
