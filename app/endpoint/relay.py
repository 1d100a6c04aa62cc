"""A turn's way to the child and back: streamed, or whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import closing

from aiohttp import web

from app.endpoint.call import Call
from app.endpoint.errors import ApiError, from_fault, from_unserved
from app.endpoint.llama import LlamaTalk
from app.endpoint.mlx.asked import ChatAsked, WorkerAsked
from app.endpoint.mlx.relay import ChatTalk
from app.endpoint.mlx.worker_relay import WorkerTalk
from app.endpoint.stream import COMMIT_SECONDS, StreamAnswer
from app.endpoint.talk import Talk
from app.endpoint.turn_facts import turn_headers, turn_object, wait_text
from app.endpoint.upstream import UPSTREAM_ERRORS, lost, new_session, unless_broken
from app.host.host import Host
from app.host.refused import Unserved
from app.host.turn import Turn, WaitView

log = logging.getLogger(__name__)


class Relay:
    """Relays calls through the host's turns. One session for all; ``close`` it at the end."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._session = new_session()

    async def close(self) -> None:
        """Close every connection to a child."""
        await self._session.close()

    async def whole(self, call: Call, headers: Mapping[str, str]) -> web.Response:
        """Answer in one piece. Raises ``ApiError``."""
        try:
            async with self._host.turn(call.model) as turn:
                talk = self._talk(call, turn)
                try:
                    data = await talk.whole()
                except UPSTREAM_ERRORS as error:
                    raise await lost(turn, error) from error
                finally:
                    talk.close()
        except Unserved as error:
            raise from_unserved(error) from error
        said = {**headers, **turn_headers(turn), **talk.headers()}
        return web.Response(body=data, content_type="application/json", headers=said)

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
            talk = self._talk(call, turn)
            answer.commit_at(
                started + COMMIT_SECONDS, lambda: turn_headers(turn), f"{call.model.name} reads the prompt"
            )
            try:
                async with unless_broken(turn):
                    upstream = await talk.open()
                with closing(upstream):
                    await answer.commit({**turn_headers(turn), **talk.headers()})
                    told = talk.told()
                    extra = turn_object(turn, call.path, told) if late or turn.notices or told else None
                    await talk.pump(upstream, answer, extra)
            except UPSTREAM_ERRORS as error:
                raise await lost(turn, error) from error
            finally:
                talk.close()

    def _talk(self, call: Call, turn: Turn) -> Talk:
        """How the child is spoken to: a llama-server's bytes travel as they are, an MLX child's are translated."""
        match call.mlx:
            case ChatAsked() as asked:
                return ChatTalk(self._session, call, asked, turn)
            case WorkerAsked() as asked:
                return WorkerTalk(self._session, call, asked, turn)
            case None:
                return LlamaTalk(self._session, call, turn)
