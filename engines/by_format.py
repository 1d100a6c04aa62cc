"""Several engines as one: each runs the model files of its format."""

from __future__ import annotations

from collections.abc import Mapping

from engines.artifact.facts import ModelFacts
from engines.engine import Child, Engine, Landed, Progress
from engines.errors import EngineUnavailable
from engines.machine import Machine
from engines.plan import LaunchPlan, LaunchSettings

ADVICE = {
    "mlx": 'It is an MLX model: set engine = "mlx" on a Mac with Apple Silicon, or use a GGUF file of the same model.',
    "gguf": "It is a GGUF file: name a llama-server (setting llama_server), or use the model as an MLX repository.",
}
"""What to do about a model whose format no engine here runs."""


class ByFormat:
    """The engines by the format of ``ModelFacts``; ``main`` is the one that the machine deserves."""

    def __init__(self, main: Engine, engines: Mapping[str, Engine]) -> None:
        self.name = main.name
        self._by_format = dict(engines)
        self._by_name = {engine.name: engine for engine in engines.values()}

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """See ``Engine.plan``. Raises ``EngineUnavailable`` for a format that nothing here runs."""
        engine = self._by_format.get(facts.format)
        if engine is None:
            raise EngineUnavailable(f"The {self.name.upper()} engine does not run {model}. {ADVICE[facts.format]}")
        return engine.plan(model, facts, machine, settings)

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """See ``Engine.at_load``: each engine fills in what it reads."""
        for engine in self._by_format.values():
            settings = engine.at_load(machine, settings)
        return settings

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """See ``Engine.start``."""
        return await self._by_name[plan.engine].start(plan, progress)

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """See ``Engine.landed``."""
        return self._by_name[child.plan.engine].landed(child, facts, respawned=respawned)
