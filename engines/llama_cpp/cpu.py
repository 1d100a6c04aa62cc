"""The CPU engine: a llama-server that uses no graphics card."""

from __future__ import annotations

from pathlib import Path

from engines.artifact.facts import ModelFacts, ModelKind
from engines.child.environment import planned_environment
from engines.engine import Child, Landed, Law, Progress
from engines.errors import ServerMissing
from engines.llama_cpp import arguments
from engines.llama_cpp.server import Launcher
from engines.machine import Machine
from engines.memory import repack
from engines.memory.bill import budget_for
from engines.memory.free_memory import fitted
from engines.memory.prediction import predict
from engines.memory.window import plan_window
from engines.plan import LaunchPlan, LaunchSettings

NO_GRAPHICS_DRIVERS = {"VK_LOADER_DRIVERS_DISABLE": "*"}
"""A build with Vulkan opens the machine's graphics drivers even when it may use no device: Mesa's software driver
cost 10 MiB of anonymous memory (measured)."""


class CpuEngine:
    """Plans purely, starts through a launcher."""

    name = "cpu"

    def __init__(self, launcher: Launcher, config_folder: Path, missing_server: str | None = None) -> None:
        self._launcher = launcher
        self._config_folder = str(config_folder)
        self._missing_server = missing_server or "The machine has no llama-server to plan with."

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """What starting ``model`` here would be. Raises ``ServerMissing`` where the machine has no llama-server."""
        if machine.llama_server is None:
            raise ServerMissing(self._missing_server)
        copied = settings.repacked_bytes
        if copied is None:
            copied = repack.expected(facts, machine.cpu_features)
        budget = budget_for(
            facts, ram=machine.ram_bytes, limit=machine.memory_limit_bytes, reserved=settings.reserved_bytes
        )
        window = plan_window(facts, settings, budget)
        available = settings.available_bytes if settings.free_memory_rule and not settings.respawn else None
        if available is not None and settings.window is None:
            window = fitted(window, facts, available, copied)
        cores = settings.threads or arguments.threads(machine.physical_cores)
        argv = (
            machine.llama_server.path,
            *arguments.NO_IDLE_SLEEP,
            "-m",
            str(facts.files[0]),
            *(("-c", str(window.planned)) if window.planned is not None else ()),
            "-ngl",
            "0",
            "--device",
            "none",
            "-t",
            str(cores),
            *arguments.purpose(facts, window.planned),
            *arguments.always(model),
        )
        return LaunchPlan(
            model=model,
            engine=self.name,
            argv=argv,
            env={**planned_environment(machine.environment, self._config_folder), **NO_GRAPHICS_DRIVERS},
            window=window,
            memory=predict(facts, window.planned, copied, budget.spent_on(facts, window.planned)),
            embedding=facts.kind is not ModelKind.CHAT,
        )

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """Nothing to read here; see ``Engine.at_load``."""
        return settings

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """Start it; see ``Engine.start``."""
        return await self._launcher.start(plan, progress)

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """See ``Engine.landed``."""
        return Landed(Law.RAM)
