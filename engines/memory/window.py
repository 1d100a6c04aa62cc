"""The context window a child is given, and what bounds it. Pure."""

from __future__ import annotations

from engines.artifact.facts import ModelFacts, ModelKind
from engines.plan import LaunchSettings, Window

GRID = 256
"""llama.cpp pads a window up to a multiple of this many tokens (llama-context.cpp)."""
EMBEDDING_WINDOW = 8192
"""Tokens an embedding or rerank worker gets at most unless set: its batch is its window and is paid for at once."""


def padded(window: int) -> int:
    """The window that llama.cpp makes of ``window`` tokens: 8000 is 8192."""
    return -(-window // GRID) * GRID


def plan_window(facts: ModelFacts, settings: LaunchSettings) -> Window:
    """The window to pass as ``-c``; None leaves it to the server.

    A window above the trained one is never passed: the server would allocate its KV and then serve less.
    """
    trained = facts.trained_window
    if settings.window is not None:
        if trained is not None and settings.window > trained:
            reason = f"you asked for {settings.window:,} tokens; the model was trained for {trained:,}"
            return Window(trained, trained, "model", reason)
        return Window(settings.window, trained, "user", f"you set it to {settings.window:,} tokens")
    if trained is None:
        return Window(None, None, "model", "the model does not say for how many tokens it was trained")
    planned, bound, reason = trained, "model", f"the model was trained for {trained:,} tokens"
    if facts.kind is not ModelKind.CHAT and planned > EMBEDDING_WINDOW:
        planned, reason = EMBEDDING_WINDOW, f"an embedding worker gets at most {EMBEDDING_WINDOW:,} tokens"
    if settings.cap is not None and settings.cap < planned:
        planned, bound = settings.cap, "brake"
        reason = f"lowered to {settings.cap:,} tokens because memory ran short"
    return Window(planned, trained, bound, reason)
