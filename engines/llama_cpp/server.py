"""A llama-server as a child: started, probed, read back, stopped."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterable

from engines import errors
from engines.child import probe
from engines.child.environment import fill
from engines.child.failures import classify
from engines.child.ledger import Entry, Ledger
from engines.child.parent_death import ParentDeath
from engines.child.ports import LLAMA_PORTS, NoFreePort, free_port
from engines.child.process import ChildProcess
from engines.child.readiness import until_ready
from engines.child.served import ServedChild, on_another_port
from engines.engine import ChildFacts, Progress
from engines.llama_cpp.lifeline import load_progress
from engines.llama_cpp.properties import read_properties
from engines.memory.footprint import anonymous_bytes
from engines.plan import LaunchPlan

log = logging.getLogger(__name__)
output_log = logging.getLogger("child")
"""Every line that a child prints."""


class Launcher:
    """Starts llama-servers: everything a launch needs besides its plan."""

    def __init__(
        self,
        ledger: Ledger,
        parent_death: ParentDeath,
        *,
        load_seconds: float = 600.0,
        ports: Iterable[int] = LLAMA_PORTS,
    ) -> None:
        self._ledger = ledger
        self._parent_death = parent_death
        self._load_seconds = load_seconds
        self._ports = tuple(ports)

    async def start(self, plan: LaunchPlan, progress: Progress) -> ServedChild:
        """Start ``plan`` and wait until it serves. Raises ``EngineError``; then nothing of it runs any more."""
        return await on_another_port(lambda: self._start_once(plan, progress))

    async def _start_once(self, plan: LaunchPlan, progress: Progress) -> ServedChild:
        started = time.monotonic()
        key, marker = secrets.token_urlsafe(32), uuid.uuid4().hex
        try:
            port = free_port(self._ports, start=random.randrange(len(self._ports)))  # noqa: S311
        except NoFreePort as error:
            raise errors.PortTaken(plan.model, detail=str(error)) from error
        process = self._spawn(plan, port, key, marker, progress)
        try:
            facts = await self._until_ready(plan, process, port, key)
            measured = await asyncio.to_thread(anonymous_bytes, process.pid)
        except BaseException:
            await process.stop(lifeline=True)
            raise
        seconds = time.monotonic() - started
        log.info("%s serves on port %d (pid %d) after %.1f s", plan.model, port, process.pid, seconds)
        return ServedChild(process, plan, port, key, facts, seconds, measured)

    def _spawn(self, plan: LaunchPlan, port: int, key: str, marker: str, progress: Progress) -> ChildProcess:
        loop = asyncio.get_running_loop()

        def on_line(line: str) -> None:
            value = load_progress(line)
            if value is None:
                output_log.debug("%s: %s", plan.model, line.replace(key, "[key]"))
            elif not loop.is_closed():
                loop.call_soon_threadsafe(progress, value)

        env = fill(plan.env, key=key, port=port, marker=marker)
        try:
            process = ChildProcess.spawn(plan.argv, env, self._parent_death, on_line)
        except OSError as error:
            raise errors.ServerMissing(
                f"{plan.argv[0]} cannot be started ({error.strerror or error}). Correct the setting llama_server."
            ) from error
        entry = Entry(process.pid, process.create_time, plan.argv[0], marker)
        self._record(lambda: self._ledger.add(entry))
        process.died.add_done_callback(lambda _: self._record(lambda: self._ledger.remove(process.pid)))
        return process

    def _record(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:  # a full disk must not keep a model from being served
            log.warning("the ledger of children cannot be written: %s", error)

    async def _until_ready(self, plan: LaunchPlan, process: ChildProcess, port: int, key: str) -> ChildFacts:
        """Probe and read back, ended at once by the child's death."""
        return await until_ready(
            self._probe(plan, process.pid, port, key),
            process,
            model=plan.model,
            seconds=self._load_seconds,
            tail=lambda: process.tail.text().replace(key, "[key]"),
            classify=classify,
        )

    async def _probe(self, plan: LaunchPlan, pid: int, port: int, key: str) -> ChildFacts:
        path, body = first_request(plan)
        async with probe.control_client(port) as client:
            try:
                await probe.until_ours_is_healthy(client, pid, port)
                probe.trust(client, key)
                await probe.first_request(client, path, body)
            except probe.Refused as error:
                raise errors.KeyRefused(plan.model, detail=str(error)) from error
            except probe.NotServing as error:
                log.warning("%s loaded, but its first request failed: %s", plan.model, error)
            return await read_properties(client, plan)


def first_request(plan: LaunchPlan) -> tuple[str, dict[str, object]]:
    """The request that proves a child: one token of a chat, or one embedding."""
    if "--reranking" in plan.argv:
        return "/v1/rerank", {"query": "a", "documents": ["a"]}
    if plan.embedding:
        return "/v1/embeddings", {"input": "a"}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
