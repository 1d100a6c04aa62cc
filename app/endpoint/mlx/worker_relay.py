"""A call to an MLX child that embeds or reranks: pass by pass, answered in one piece."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NoReturn

import aiohttp

from app.endpoint.body import THREAD_BYTES, encode
from app.endpoint.call import Call
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.refusal import refused
from app.endpoint.mlx.worker import Answered, answer, counted, read
from app.endpoint.mlx.worker_passes import limit_of, parts
from app.endpoint.turn_facts import reduced_from
from app.endpoint.upstream import post, unless_broken
from app.host.turn import Turn


class WorkerTalk:
    """One call, in its turn. Fulfils ``Talk``; it never streams."""

    def __init__(self, session: aiohttp.ClientSession, call: Call, asked: WorkerAsked, turn: Turn) -> None:
        self._session, self._call, self._asked, self._turn = session, call, asked, turn

    async def open(self) -> NoReturn:
        """Not asked: no route of these streams."""
        raise AssertionError(f"{self._call.path} does not stream")

    async def pump(self, *_: object) -> NoReturn:
        """Not asked: no route of these streams."""
        raise AssertionError(f"{self._call.path} does not stream")

    async def whole(self) -> bytes:
        """As ``Talk``."""
        call = self._call
        limit = limit_of(self._turn.child.facts.allocated_window)
        answers: list[Answered] = []
        split = functools.partial(parts, self._asked.body, call.model, limit)
        for part in await asyncio.to_thread(split) if len(call.body) > THREAD_BYTES else split():
            found = read(await self._answer(encode(part.body)))
            counted(found, part, limit, reduced_from(self._turn))
            answers.append((part, found))
        return answer(answers, call.model, self._asked)

    async def _answer(self, body: bytes) -> bytes:
        call = self._call
        async with (
            unless_broken(self._turn),
            await post(self._session, self._turn, call.path, body) as upstream,
        ):
            data = await upstream.read()
        if upstream.status != HTTPStatus.OK:
            raise refused(upstream.status, data, call.model)
        return data

    def headers(self) -> Mapping[str, str]:
        """As ``Talk``: none."""
        return {}

    def told(self) -> Mapping[str, Any]:
        """As ``Talk``: nothing."""
        return {}

    def close(self) -> None:
        """As ``Talk``: there is nothing to tell."""
