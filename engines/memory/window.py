"""The context window a child is given, and what bounds it. Pure."""

from __future__ import annotations

from typing import Protocol

from engines.artifact.facts import ModelFacts, ModelKind
from engines.memory.grid import FLOOR, GRID, floor_of, padded
from engines.plan import LaunchSettings, Window

__all__ = ["EMBEDDING_WINDOW", "FLOOR", "GRID", "padded", "plan_window"]

EMBEDDING_WINDOW = 8192
"""Tokens an embedding or rerank worker gets at most unless set: its batch is its window and is paid for at once."""


class WindowBudget(Protocol):
    """What a window is sized with: a machine's memory, or a card's."""

    @property
    def holds(self) -> int | None:
        """Tokens of the largest window; None where the shape of the model does not tell."""

    @property
    def exact(self) -> bool:
        """False for an over-estimate of what a token costs."""

    def sentence(self) -> str:
        """The sum in words."""


def plan_window(facts: ModelFacts, settings: LaunchSettings, budget: WindowBudget) -> Window:
    """The window to pass as ``-c``; None leaves it to the server.

    A window above the trained one is never passed: the server would allocate its KV and then serve less. A window
    that the user set is passed as it is, whatever the memory; a model that does not fit at all gets the floor.
    """
    trained = facts.trained_window
    if settings.window is not None:
        return _set_by_user(settings.window, trained, budget)
    if trained is None:
        return Window(None, None, "model", "the model does not say for how many tokens it was trained")
    if budget.holds is None:
        reason = "how much a token costs this model is not known, so the server sizes the window itself"
        return Window(None, trained, "model", reason)
    window = _by_memory(facts, trained, budget.holds, budget)
    if settings.cap is not None and window.planned is not None and settings.cap < window.planned:
        reason = f"lowered to {settings.cap:,} tokens because memory ran short"
        return Window(settings.cap, trained, "brake", reason)
    return window


def _set_by_user(window: int, trained: int | None, budget: WindowBudget) -> Window:
    if trained is not None and window > trained:
        reason = f"you asked for {window:,} tokens; the model was trained for {trained:,}"
        return Window(trained, trained, "model", reason)
    reason = f"you set it to {window:,} tokens"
    if budget.holds is not None and budget.exact and padded(window) > budget.holds:
        reason += f", more than the {budget.holds:,} that memory holds"
    return Window(window, trained, "user", reason)


def _by_memory(facts: ModelFacts, trained: int, holds: int, budget: WindowBudget) -> Window:
    wanted, reason = trained, f"the model was trained for {trained:,} tokens"
    if facts.kind is not ModelKind.CHAT and wanted > EMBEDDING_WINDOW:
        wanted, reason = EMBEDDING_WINDOW, f"an embedding worker gets at most {EMBEDDING_WINDOW:,} tokens"
    if padded(wanted) <= holds:
        return Window(wanted, trained, "model", reason)
    planned = max(holds, floor_of(wanted))
    if not budget.exact:
        reason = f"{planned:,} of {trained:,} tokens, counted as if no layer had a sliding window"
        return Window(planned, trained, "model", reason)
    reason = f"memory holds {holds:,} of {trained:,} tokens: {budget.sentence()}"
    if holds < planned:
        reason += f"; {planned:,} is the least a model is given"
    return Window(planned, trained, "memory", reason)
