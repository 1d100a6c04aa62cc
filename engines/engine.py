"""The contract: what the application asks of any engine, and of a server that an engine runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engines.artifact.facts import ModelFacts
from engines.machine import Machine
from engines.nvidia.spill import SpillReading
from engines.plan import LaunchPlan, LaunchSettings

Progress = Callable[[float], None]
"""Called on the loop with 0..1 while a model loads."""


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """What was read back from a server that serves. Windows are tokens; None is unknown."""

    allocated_window: int | None
    slots: int
    modalities: frozenset[str] = frozenset()
    """What it takes besides text: ``image``, ``audio``, ``video``."""
    template: Mapping[str, bool] = field(default_factory=dict)
    """Capabilities of the chat template: ``supports_system_role``, ``supports_tools`` ..."""
    build: str | None = None


class Law(StrEnum):
    """What decides about a child's window while it runs."""

    NONE = "none"
    """Nothing: its engine does not know what lies where."""
    RAM = "ram"
    """The system's memory; a smaller window is another start."""
    SPILL = "spill"
    """What Windows serves of the child's graphics memory from RAM; a smaller window is another start."""
    MLX = "mlx"
    """The system's memory; a smaller window is sent to the running child."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What an engine saw of a child right after its load."""

    law: Law
    spill: Callable[[], SpillReading] | None = None
    """Looks at the child's graphics memory, with ``Law.SPILL``. Blocking."""


class Child(Protocol):
    """A running server. It owns its facts; they die with it."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""

    @property
    def key(self) -> str:
        """The bearer key that this spawn alone accepts."""

    @property
    def plan(self) -> LaunchPlan:
        """How it was started."""

    @property
    def facts(self) -> ChildFacts:
        """What it said of itself."""

    @property
    def load_seconds(self) -> float:
        """From spawn to ready."""

    @property
    def measured_bytes(self) -> int | None:
        """Its anonymous memory right after the load; what it held on its card where ``plan.memory.on_card``."""

    @property
    def died(self) -> Awaitable[int]:
        """Done, with the exit code, when the process has ended, asked or not."""

    @property
    def tail(self) -> str:
        """The last lines it printed, its key taken out."""

    async def stop(self, *, hurry: bool = False) -> None:
        """Stop it and its descendants; returns when all are gone. Safe to call twice, survives cancellation.

        ``hurry``: the application quits, which it does within 5 s.
        """


class Engine(Protocol):
    """Plans and starts servers."""

    @property
    def name(self) -> str:
        """``cpu``, ``cuda``, ``mlx`` or ``vulkan``."""

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """Say what a launch would be. Pure: the same inputs give the same plan."""

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """The settings of a launch that happens now, with what this engine reads at that moment. Blocking."""

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """Start what was planned and wait until it serves; the child's plan is the one that it really has.

        Raises ``EngineError``; then, and when cancelled, nothing of it runs any more.
        """

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """Look at a child of ``start`` once; ``respawned``: the brake started it. Logs what is odd. Blocking."""
