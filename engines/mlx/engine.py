"""The MLX engine: plans purely, spawns mlx_vlm's server, and binds its window to the memory that is there."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import httpx

from engines import errors
from engines.artifact.errors import ArtifactError
from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.mlx import read_mlx
from engines.child import probe
from engines.child.ledger import Entry, Ledger
from engines.child.ports import MLX_PORTS, NoFreePort, free_port
from engines.child.process import ChildProcess
from engines.child.readiness import until_ready
from engines.child.served import on_another_port
from engines.engine import Child, ChildFacts, Landed, Law, Progress
from engines.machine import Machine
from engines.memory.footprint import anonymous_bytes
from engines.memory.mlx_budget import BASE_BYTES, MlxBudget, mlx_budget
from engines.mlx import process, settings
from engines.mlx.bound import holding_to, window_of
from engines.mlx.failures import classify
from engines.mlx.main import TOLD
from engines.mlx.progress import report
from engines.mlx.server import CHAT, MlxChild, one_token
from engines.plan import PER_SPAWN, LaunchPlan, LaunchSettings, Memory

log = logging.getLogger(__name__)
output_log = logging.getLogger("child")
"""Every line that a child prints."""

KEY = "MLX_VLM_SERVER_API_KEY"
QUEUE_SECONDS = 3660
"""How long a prefill may take: the server's own 600 s would cut a long one."""
BLOCK_TOKENS = 16
"""Of one block of the prefix cache."""
MODEL_FLAG = {
    ModelKind.CHAT: "--model",
    ModelKind.EMBEDDING: "--embedding-model",
    ModelKind.RERANK: "--reranker-model",
}
"""As the server's command line names the model that it is for."""
FIXED = {
    "HF_HUB_OFFLINE": "1",
    "MLX_TRUST_REMOTE_CODE": "false",
    "MLX_VLM_MAX_NUM_SEQS": "1",
    "MLX_VLM_LOG_PROGRESS_INTERVAL": "0",
    "MLX_VLM_TOKEN_QUEUE_TIMEOUT": str(QUEUE_SECONDS),
    "APC_ENABLED": "1",
    "APC_DISK_ENABLED": "0",
}
"""For every child; the disk tier would keep prompts across a reset and a restart."""
MISSING = (
    "The MLX engine needs mlx-vlm, which is not installed. Install it (pip install 'plimsoll[mlx]'), or set "
    'engine = "auto".'
)


class MlxEngine:
    """``installed``: whether mlx_vlm can be imported here; it never is in this process."""

    name = "mlx"

    def __init__(
        self,
        ledger: Ledger,
        config_folder: Path,
        *,
        load_seconds: float = 600.0,
        ports: Iterable[int] = MLX_PORTS,
        installed: bool | None = None,
    ) -> None:
        self._ledger = ledger
        self._config_folder = str(config_folder)
        self._load_seconds = load_seconds
        self._ports = tuple(ports)
        self._installed = find_spec("mlx_vlm") is not None if installed is None else installed

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """What starting ``model`` here would be, with the base that a child is expected to have.

        Raises ``EngineUnavailable`` where mlx-vlm is not installed.
        """
        if not self._installed:
            raise errors.EngineUnavailable(MISSING)
        budget = mlx_budget(
            facts,
            machine.gpu_working_set_bytes,
            cap=settings.cap,
            user=settings.window,
            reserved=settings.reserved_bytes,
        )
        base = facts.weights_bytes + BASE_BYTES
        window = window_of(budget, base, settings.cap)
        path, trained = str(facts.files[0].parent), facts.trained_window
        return LaunchPlan(
            model=model,
            engine=self.name,
            argv=(
                "mlx_vlm.server",
                MODEL_FLAG[facts.kind],
                path,
                *(("--max-kv-size", str(trained)) if trained is not None else ()),
            ),
            env=environment(machine.environment, self._config_folder, path, trained, facts.kind),
            window=window,
            memory=Memory(base, {"weights": facts.weights_bytes, "runtime": BASE_BYTES}, budget),
            embedding=facts.kind is not ModelKind.CHAT,
        )

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """Nothing to read here; see ``Engine.at_load``."""
        return settings

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """Start it; see ``Engine.start``."""
        return await on_another_port(lambda: self._start_once(plan, progress))

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """See ``Engine.landed``."""
        return Landed(Law.MLX)

    async def _start_once(self, plan: LaunchPlan, progress: Progress) -> MlxChild:
        started = time.monotonic()
        key = secrets.token_urlsafe(32)
        try:
            port = free_port(self._ports, start=random.randrange(len(self._ports)))  # noqa: S311
        except NoFreePort as error:
            raise errors.PortTaken(plan.model, detail=str(error)) from error
        running = self._spawn(plan, port, key)
        client = probe.control_client(port)
        reporting = asyncio.create_task(report(running.pid, plan.memory.predicted or 0, progress))
        try:
            await until_ready(
                _probe(plan, client, running.pid, port, key),
                running,
                model=plan.model,
                seconds=self._load_seconds,
                tail=lambda: running.tail.text().replace(key, "[key]"),
                classify=classify,
            )
            base = await asyncio.to_thread(anonymous_bytes, running.pid)
            plan = _measured(plan, base)
            enforced = await self._bind(plan, client)
            modalities = await asyncio.to_thread(_modalities, model_path(plan))
        except BaseException:
            await client.aclose()
            await running.stop(lifeline=True)
            raise
        finally:
            reporting.cancel()
        progress(1.0)
        facts = ChildFacts(enforced, slots=1, modalities=modalities, build=_build())
        plan = holding_to(plan, enforced)
        seconds = time.monotonic() - started
        log.info("%s serves on port %d (pid %d) after %.1f s", plan.model, port, running.pid, seconds)
        return MlxChild(running, plan, port, key, facts, seconds, base, client, model_path(plan))

    async def _bind(self, plan: LaunchPlan, client: httpx.AsyncClient) -> int | None:
        """Hold the child to its bound before anything else; the window that it really enforces."""
        wanted, trained = plan.window.planned, plan.window.trained
        found = await (settings.read(client) if wanted == trained else settings.enforce(client, wanted))
        sentence = settings.warning(plan.model, wanted, found)
        if sentence is not None:
            log.warning("%s", sentence)
        return found.window or trained if found.known else trained

    def _spawn(self, plan: LaunchPlan, port: int, key: str) -> ChildProcess:
        def on_line(line: str) -> None:
            if line.startswith(TOLD):
                log.warning("%s: %s", plan.model, line.removeprefix(TOLD))
            output_log.debug("%s: %s", plan.model, line.replace(key, "[key]"))

        try:
            running = process.spawn({**plan.env, KEY: key}, port, on_line)
        except OSError as error:
            raise errors.ExitedWhileLoading(plan.model, detail=f"it cannot be started: {error}") from error
        entry = Entry(running.pid, running.create_time, process.executable(), "")
        self._record(lambda: self._ledger.add(entry))
        running.died.add_done_callback(lambda _: self._record(lambda: self._ledger.remove(running.pid)))
        return running

    def _record(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:  # a full disk must not keep a model from being served
            log.warning("the ledger of children cannot be written: %s", error)


def model_path(plan: LaunchPlan) -> str:
    """The directory that the child was given, to the letter."""
    return plan.argv[2]


def environment(
    inherited: Mapping[str, str], config_folder: str, path: str, trained: int | None, kind: ModelKind
) -> dict[str, str]:
    """The whole environment of a child, with the key left open. Pure."""
    env = {**{name: inherited[name] for name in sorted(inherited)}, "XDG_CONFIG_HOME": config_folder, **FIXED}
    if kind is ModelKind.CHAT:  # the others are loaded by their first request, on a route of their own
        env["MLX_VLM_PRELOAD_MODEL"] = path
    if trained is not None:
        env["MAX_KV_SIZE"] = str(trained)
        env["APC_NUM_BLOCKS"] = str(max(1, trained // BLOCK_TOKENS))
    return {**env, KEY: PER_SPAWN}


def _modalities(path: str) -> frozenset[str]:
    try:
        return frozenset(read_mlx(Path(path)).modalities)
    except ArtifactError as error:
        log.warning("what %s takes besides text cannot be read again: %s", path, error)
        return frozenset()


def _build() -> str | None:
    try:
        return f"mlx-vlm {version('mlx-vlm')}"
    except PackageNotFoundError:  # a bundle may leave the package's description out
        return None


def _measured(plan: LaunchPlan, base: int | None) -> LaunchPlan:
    """The plan with the base that the child really has; unreadable: no bound but the user's and the brake's."""
    budget = plan.memory.budget
    assert isinstance(budget, MlxBudget)
    if base is None:
        log.warning("what %s holds cannot be read: no bound of memory is applied to it", plan.model)
    return replace(plan, window=window_of(budget, base, budget.cap))


async def _probe(plan: LaunchPlan, client: httpx.AsyncClient, pid: int, port: int, key: str) -> None:
    """Until it serves: the key goes to nobody before our child is seen to listen."""
    await probe.until_ours_listens(client, pid, port)
    probe.trust(client, key)
    client.headers["connection"] = "close"  # control calls are rare: none may meet a connection that is being closed
    try:
        await probe.until_healthy(client)
        path, body = first_request(plan)
        await probe.first_request(client, path, body)
    except probe.Refused as error:
        raise errors.KeyRefused(plan.model, detail=str(error)) from error
    except probe.NotServing as error:
        if plan.embedding:  # loaded by that request
            raise errors.LoadError(plan.model, detail=str(error)) from error
        log.warning("%s loaded, but its first request failed: %s", plan.model, error)


def first_request(plan: LaunchPlan) -> tuple[str, dict[str, object]]:
    """The request that proves a child, and compiles what its first answer needs."""
    path = model_path(plan)
    if plan.argv[1] == MODEL_FLAG[ModelKind.RERANK]:
        return "/v1/rerank", {"model": path, "query": "a", "documents": ["a"]}
    if plan.embedding:
        return "/v1/embeddings", {"model": path, "input": "a"}
    return CHAT, one_token(path)
