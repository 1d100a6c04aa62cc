"""A server that serves: what every kind of child has, whatever it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from engines import errors
from engines.child.process import ChildProcess
from engines.engine import ChildFacts
from engines.memory.footprint import anonymous_bytes
from engines.memory.release import BACK_SECONDS, available_bytes, until_back
from engines.plan import LaunchPlan

log = logging.getLogger(__name__)

PORT_TRIES = 3
"""Another program may take a port between our choice and the child's bind."""

Started = TypeVar("Started")


@dataclass(slots=True)
class ServedChild:
    """The ``Child`` of engines/engine.py."""

    process: ChildProcess
    plan: LaunchPlan
    port: int
    key: str
    facts: ChildFacts
    load_seconds: float
    measured_bytes: int | None
    _stopping: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def died(self) -> asyncio.Future[int]:
        """Done, with the exit code, when the process has ended."""
        return self.process.died

    @property
    def tail(self) -> str:
        """The last lines it printed, its key taken out."""
        return self.process.tail.text().replace(self.key, "[key]")

    async def stop(self, *, hurry: bool = False) -> None:
        """Stop it; see ``Child.stop``. Close your own connections first: a llama-server with one open ignores SIGTERM
        for 30 s."""
        if hurry and self._stopping is not None:  # that one may be waiting for the system to have the memory back
            await self.process.stop(lifeline=True, hurry=True)
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(hurry=hurry))
        await asyncio.shield(self._stopping)

    async def _stop(self, *, hurry: bool) -> None:
        if hurry or not self.process.running:
            await self.process.stop(lifeline=True, hurry=hurry)
            return
        held = await asyncio.to_thread(anonymous_bytes, self.pid)
        before = available_bytes()
        await self.process.stop(lifeline=True)
        if held is not None and not await until_back(before, held):
            log.warning("the system has not got the memory of %s back within %.0f s", self.plan.model, BACK_SECONDS)


async def on_another_port(start: Callable[[], Awaitable[Started]]) -> Started:
    """What ``start`` comes to, tried again where somebody else took the port that it chose."""
    for last in (*[False] * (PORT_TRIES - 1), True):
        try:
            return await start()
        except (errors.PortTaken, errors.KeyRefused) as error:
            if last:
                raise
            log.info("%s: trying another port", error.sentence)
    raise AssertionError("unreachable")
