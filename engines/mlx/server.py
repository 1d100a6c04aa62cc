"""An MLX server as a child: the handle of one that serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from engines.child.served import ServedChild
from engines.memory.mlx_budget import MlxBudget
from engines.mlx import settings
from engines.mlx.bound import holding_to, window_of
from engines.mlx.prefix_cache import Before, Conversation, Ownership

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
RESET = "/v1/cache/reset"
RESET_SECONDS = 5.0
"""Bound of a reset (specified)."""
BARRIER_SECONDS = 30.0
"""Bound of a one-token request: it waits for the end of an abandoned prefill (1 s after 7,000 tokens, measured)."""


@dataclass(slots=True)
class MlxChild(ServedChild):
    """An MLX server that serves. It does more than other children: it changes while it runs."""

    client: httpx.AsyncClient
    """For control calls; it has the key."""
    model_path: str
    """The only name under which the model may be asked for: any other unloads it."""
    last_request: int | None = None
    """Tokens of the last request whose size is known."""
    _ownership: Ownership = field(default_factory=Ownership)
    _step: asyncio.Task[bool] | None = None
    """A reset, release or bound that goes on though the turn that needed it may be gone."""

    @property
    def budget(self) -> MlxBudget:
        """What its bound comes from."""
        assert isinstance(self.plan.memory.budget, MlxBudget)
        return self.plan.memory.budget

    @property
    def planned_window(self) -> int | None:
        """The bound without a cap, in tokens."""
        return self.budget.bound(self.measured_bytes, None)

    # --- around a turn ------------------------------------------------------------------------------------------------

    async def begin(self, conversation: Conversation) -> None:
        """Make the prefix cache this conversation's; call it before the turn's request. Never fails the turn.

        What an earlier turn began, perhaps a cancelled one, is finished first.
        """
        await self._through(lambda: self._tidy(conversation))

    def ended(self, *, abandoned: bool, tokens: int | None = None) -> None:
        """The turn's request is over. ``abandoned``: its stream did not reach its end; ``tokens`` of prompt and
        answer, where they are known."""
        if abandoned:
            self._ownership = self._ownership.left()
        if tokens is not None:
            self.last_request = tokens

    async def _tidy(self, conversation: Conversation) -> bool:
        before = self._ownership.before(conversation)
        barrier = before in {Before.BARRIER, Before.BARRIER_AND_RESET}
        reset = before in {Before.RESET, Before.BARRIER_AND_RESET}
        done = (not barrier or await self._barrier()) and (not reset or await self._reset())
        self._ownership = self._ownership.owned_by(conversation) if done else self._ownership.failed(conversation)
        return done

    # --- for the brake ------------------------------------------------------------------------------------------------

    async def set_window(self, cap: int | None) -> bool:
        """Hold it to a cap, or to the bound without one; whether it does now. ``facts`` follow what it says.

        Survives cancellation: else the child would hold to a window that nobody knows of.
        """
        return await self._through(lambda: self._set_window(cap))

    async def _set_window(self, cap: int | None) -> bool:
        wanted = self.budget.bound(self.measured_bytes, cap)
        found = await settings.enforce(self.client, wanted)
        sentence = settings.warning(self.plan.model, wanted, found)
        if sentence is not None:
            log.warning("%s", sentence)
        if not found.known:
            return False
        enforced = found.window or self.budget.trained
        self.facts = replace(self.facts, allocated_window=enforced)
        plan = replace(self.plan, window=window_of(self.budget, self.measured_bytes, cap))
        self.plan = holding_to(plan, enforced)
        return found.window == wanted

    async def release(self) -> bool:
        """Give back the prefix cache and what MLX keeps besides; whether both succeeded. Survives cancellation."""
        return await self._through(self._release)

    async def _release(self) -> bool:
        done = (not self._ownership.abandoned or await self._barrier()) and await self._reset()
        self._ownership = self._ownership.emptied() if done else replace(self._ownership, dirty=True)
        return done and await self._barrier()  # only a request that is not streamed clears MLX's own cache

    # --- its end ------------------------------------------------------------------------------------------------------

    async def _stop(self, *, hurry: bool) -> None:
        if self._step is not None:
            self._step.cancel()
        await ServedChild._stop(self, hurry=hurry)  # super() misses the class made anew for slots
        await self.client.aclose()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _through(self, step: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Take a step once the one before is done, whatever becomes of the caller; False where a stop cuts it short."""
        while self._step is not None and not self._step.done():
            await asyncio.wait({self._step})
        if self._stopping is not None:
            return False
        taken = self._step = asyncio.create_task(step())
        await asyncio.wait({taken})  # not awaited itself: a stop that cancels it must not look like one of the caller
        return not taken.cancelled() and taken.result()

    async def _barrier(self) -> bool:
        """One token, awaited and not streamed."""
        if self.plan.embedding:  # it streams nothing, and a chat would load its model a second time
            return True
        body = one_token(self.model_path)
        return await self._succeeds("a one-token request", self.client.post(CHAT, json=body, timeout=BARRIER_SECONDS))

    async def _reset(self) -> bool:
        return await self._succeeds(
            "a reset of its prefix cache", self.client.post(RESET, json={}, timeout=RESET_SECONDS)
        )

    async def _succeeds(self, what: str, request: Coroutine[Any, Any, httpx.Response]) -> bool:
        try:
            answer = await request
        except httpx.HTTPError as error:
            problem = type(error).__name__
        else:
            if answer.is_success:
                return True
            problem = str(answer.status_code)
        log.warning("%s failed %s (%s)", self.plan.model, what, problem)
        return False


def one_token(model_path: str) -> dict[str, object]:
    """The smallest chat; ``context_management``: nothing is to be compacted, ever."""
    return {
        "model": model_path,
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
        "temperature": 0,
        "context_management": [],
    }
