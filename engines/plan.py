"""What a launch will be, before anything is launched: a value that prints the same twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.memory.bill import Budget
from engines.memory.mlx_budget import MlxBudget
from engines.nvidia.window import CardBudget

PER_SPAWN = "<per spawn>"
"""Stands in a plan for a value that each spawn gets anew: its key, its port, its marker."""


@dataclass(frozen=True, slots=True)
class Window:
    """A planned context window in tokens, and what bounds it."""

    planned: int | None
    trained: int | None
    bound_by: str
    """``model``, ``memory``, ``free memory``, ``brake`` or ``user``."""
    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes the child is predicted to hold, term by term; None where the model's shape does not tell."""

    predicted: int | None
    bill: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | CardBudget | MlxBudget | None = None
    """The sum that the window was sized with, where the engine sizes it."""
    on_card: bool = False
    """All of it lies on a graphics card, none in RAM."""


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """What a user may say about a launch; None is: decide."""

    window: int | None = None
    threads: int | None = None
    cap: int | None = None
    """The brake's remembered cap in tokens."""
    reserved_bytes: int = 0
    """What other children that stay hold or are predicted to hold."""
    available_bytes: int | None = None
    """What is free at this load; None: the plan depends on nothing that changes from one second to the next."""
    free_memory_rule: bool = True
    """Whether a window is reduced to what is free."""
    respawn: bool = False
    """The brake starts the same model again: what is free now does not count."""
    repacked_bytes: int | None = None
    """The server's own copy of this model's weights, where an earlier child's output or the file's tensors tell it;
    None: as much as one copy is assumed."""
    free_vram_bytes: int | None = None
    """What is free on the card at this load; None: the plan depends on nothing that changes."""
    vram_unreadable: bool = False
    """The card was asked at this load and did not tell: no window is sized for it."""
    vram_override_bytes: int | None = None
    """QA only: stands in for what is free on a real card."""
    live_window: int | None = None
    """Tokens that the child had which the brake starts again (only with ``respawn``)."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch: command line, environment, window and memory."""

    model: str
    engine: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    window: Window
    memory: Memory
    slots: int = 1
    embedding: bool = False
    """The child answers embedding or rerank requests instead of chats."""
    brake: bool = True
    """Whether the brake may act on the child."""
    device: str | None = None
    """UUID of the one card that the child is pinned to."""
    retry: LaunchPlan | None = None
    """What to start, once, where the card's memory turns out not to hold this one."""

    def to_json(self) -> dict[str, Any]:
        """As ``plan MODEL --json`` prints it."""
        w, m = self.window, self.memory
        return {
            "model": self.model,
            "engine": self.engine,
            "argv": list(self.argv),
            "env": dict(self.env),
            "window": {
                "planned": w.planned,
                "trained": w.trained,
                "bound_by": w.bound_by,
                "reason": w.reason,
            },
            "memory": {
                "predicted": m.predicted,
                "bill": dict(m.bill),
                "budget": m.budget.to_json() if m.budget is not None else None,
            },
        }
