"""A call to an MLX child: always streamed, asked once more where only its budget was too large, and translated."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol, runtime_checkable

import aiohttp

from app.endpoint.call import Call
from app.endpoint.errors import overflow
from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.mlx.budget import first_budget, second_budget
from app.endpoint.mlx.refusal import refused, too_long, window_changed
from app.endpoint.mlx.request import with_budget
from app.endpoint.mlx.stream import ChatStream, Ended, Step
from app.endpoint.mlx.whole import WholeChat
from app.endpoint.stream import DONE, StreamAnswer, event
from app.endpoint.turn_facts import reduced_from, turn_facts
from app.endpoint.upstream import UPSTREAM_ERRORS, lost, post, unless_broken
from app.host.turn import Turn
from engines.mlx.prefix_cache import Conversation

log = logging.getLogger(__name__)

MAX_TOKENS_HEADER = "x-plimsoll-max-tokens"


@runtime_checkable
class KeepsConversation(Protocol):
    """A child with a prefix cache, which holds one conversation at a time."""

    async def begin(self, conversation: Conversation) -> None:
        """Before a call is posted: make the cache ready for this conversation."""

    def ended(self, *, abandoned: bool, tokens: int | None) -> None:
        """After it. ``abandoned``: its stream did not reach its end. ``tokens``: prompt and answer, where known."""


class ChatTalk:
    """One chat, in its turn. Fulfils ``Talk``."""

    def __init__(self, session: aiohttp.ClientSession, call: Call, asked: ChatAsked, turn: Turn) -> None:
        self._session, self._call, self._asked, self._turn = session, call, asked, turn
        self._stream = ChatStream(call.model, asked)
        self._upstream: aiohttp.ClientResponse | None = None
        self._prompt: int | None = None
        """Tokens, once a refusal counted them."""
        self._reduced: int | None = None
        self._kept: KeepsConversation | None = None
        self._under_way = False
        """Whether the child may be generating, as far as is known."""

    async def open(self) -> aiohttp.ClientResponse:
        """As ``Talk``."""
        child = self._turn.child
        if isinstance(child, KeepsConversation):
            await child.begin(self._asked.conversation)
            self._kept = child
        wanted = self._asked.budget
        budget = first_budget(wanted, child.facts.allocated_window, child.plan.window.trained)
        opened = await self._post(budget)
        if isinstance(opened, aiohttp.ClientResponse):
            return opened
        refusal = too_long(opened[1])
        if refusal is None:
            raise refused(*opened, self._call.model)
        self._prompt = refusal.prompt
        second = second_budget(wanted, refusal.prompt, refusal.window)
        if second is None:
            raise overflow(refusal.prompt, refusal.window, reduced_from(self._turn))
        opened = await self._post(second)
        if not isinstance(opened, aiohttp.ClientResponse):
            raise refused(*opened, self._call.model) if too_long(opened[1]) is None else window_changed()
        if wanted is not None:
            self._reduced = second
        return opened

    async def pump(
        self, upstream: aiohttp.ClientResponse, answer: StreamAnswer, extra: Mapping[str, Any] | None
    ) -> None:
        """As ``Talk``."""

        async def pass_on(step: Step) -> None:
            if step.chunks:  # one write for all that came at once
                await answer.events(b"".join(event(chunk) for chunk in step.chunks))

        await self._translate(upstream, pass_on)
        usage = await self._usage() if self._asked.usage else None
        last = [] if usage is None else [self._stream.usage_chunk(usage)]
        last += [] if extra is None else [dict(extra)]
        await answer.events(b"".join(event(chunk) for chunk in last) + DONE)

    async def whole(self) -> bytes:
        """As ``Talk``."""
        async with unless_broken(self._turn):
            upstream = await self.open()
        whole = WholeChat()

        async def collect(step: Step) -> None:
            whole.add(step.chunks)

        await self._translate(upstream, collect)
        document = whole.answer(await self._usage(), self._stream.timings)
        if self._reduced is not None:
            document["plimsoll"] = {**turn_facts(self._turn), **self.told()}
        return json.dumps(document).encode()

    def headers(self) -> Mapping[str, str]:
        """As ``Talk``: the budget, where it was reduced."""
        return {} if self._reduced is None else {MAX_TOKENS_HEADER: str(self._reduced)}

    def told(self) -> Mapping[str, Any]:
        """As ``Talk``: the budget, where it was reduced."""
        return {} if self._reduced is None else {"reduced_max_tokens": self._reduced}

    def close(self) -> None:
        """As ``Talk``. The child hears how its stream ended."""
        if self._upstream is not None:
            self._upstream.close()
        if self._kept is not None:
            counted = self._count() if self._upstream is not None else None
            tokens = None if counted is None else int(counted["total_tokens"])
            self._kept.ended(abandoned=self._under_way, tokens=tokens)
            self._kept = None

    async def _post(self, budget: int) -> aiohttp.ClientResponse | tuple[int, bytes]:
        """The child's stream, or status and body of its refusal."""
        self._under_way = True  # from now on it may be at work, even if nobody hears its answer
        body = with_budget(self._call.body, budget)
        upstream = await post(self._session, self._turn, self._call.path, body)
        if upstream.status == HTTPStatus.OK:
            self._upstream = upstream
            return upstream
        said = await upstream.read()
        self._under_way = False
        return upstream.status, said

    async def _translate(self, upstream: aiohttp.ClientResponse, take: Callable[[Step], Awaitable[None]]) -> None:
        """Hand over what comes of the stream, to its end or a stop sequence; then the child is let go."""
        self._turn.broken.add_done_callback(lambda _: upstream.close())
        async for data in upstream.content.iter_any():
            step = self._stream.feed(data)
            if step.ended is Ended.DONE:
                self._under_way = False
            if step.ended is Ended.STOPPED or step.error is not None:
                upstream.close()
            await take(step)
            if step.error is not None:
                raise step.error
            if step.ended is not None:
                return
        raise await lost(self._turn, None)

    async def _usage(self) -> Mapping[str, Any] | None:
        """The tokens of a finished answer; None where the prompt's cannot be had."""
        if self._stream.usage is None and self._prompt is None:
            self._prompt = await self._ask_for_prompt_tokens()
        return self._count()

    def _count(self) -> Mapping[str, Any] | None:
        if self._stream.usage is not None:
            return self._stream.usage
        if self._prompt is None:
            return None
        prompt, completion = self._prompt, self._stream.generated
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    async def _ask_for_prompt_tokens(self) -> int | None:
        """The count of a stream that was cut before the child's own: a request it refuses counts its prompt."""
        window = self._turn.child.facts.allocated_window
        if window is None:
            return None
        body = with_budget(self._call.body, window)
        try:
            async with await post(self._session, self._turn, self._call.path, body) as upstream:
                if upstream.status == HTTPStatus.OK:  # it holds to no window: closed at once, and not counted
                    upstream.close()
                    return None
                refusal = too_long(await upstream.read())
        except UPSTREAM_ERRORS as error:
            log.info("the prompt's tokens could not be counted (%s)", type(error).__name__)
            return None
        return None if refusal is None else refusal.prompt
