"""What a client is told of its turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.endpoint.call import CHAT_PATH
from app.host.model import Model
from app.host.turn import Turn, WaitView
from app.host.vocabulary import WaitReason


def reduced_from(turn: Turn) -> int | None:
    """The window without the brake, where the brake lowered it: an overflow says so."""
    window = turn.child.plan.window
    return window.trained if window.bound_by == "brake" else None


def turn_facts(turn: Turn) -> dict[str, Any]:
    """What a client is told of its turn. Windows are tokens."""
    return {
        "model": turn.model.id,
        "window": turn.child.facts.allocated_window,
        "trained_window": turn.child.plan.window.trained,
        "queue_ms": round(turn.queued_seconds * 1000),
        "load_ms": round(turn.load_seconds * 1000) if turn.load_seconds is not None else None,
        "notices": [{"kind": n.kind, "text": n.text, "numbers": dict(n.numbers)} for n in turn.notices],
    }


def turn_headers(turn: Turn) -> dict[str, str]:
    """The same as response headers."""
    facts = turn_facts(turn)
    named = {
        "x-plimsoll-model": facts["model"],
        "x-plimsoll-window": facts["window"],
        "x-plimsoll-trained-window": facts["trained_window"],
        "x-plimsoll-queue-ms": facts["queue_ms"],
        "x-plimsoll-load-ms": facts["load_ms"],
        "x-plimsoll-notice": ", ".join(n.kind for n in turn.notices) or None,
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def turn_object(turn: Turn, path: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """The same as the last chunk of a stream; its empty choice does not disturb a client that reads choices[0].

    ``more`` is what this answer adds to the facts of the turn.
    """
    chat = path == CHAT_PATH
    empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    return {
        "object": "chat.completion.chunk" if chat else "text_completion",
        "id": f"plimsoll-{turn.id}",
        "created": 0,
        "model": turn.model.id,
        "choices": [{"index": 0, **empty, "finish_reason": None}],
        "plimsoll": {**turn_facts(turn), **more},
    }


def wait_text(model: Model, view: WaitView) -> str:
    """What a waiting client reads in a comment line."""
    match view.reason:
        case WaitReason.LOADING:
            percent = f" {view.progress:.0%}" if view.progress is not None else ""
            return f"loading {model.name}{percent}".replace("%", " %")
        case WaitReason.SWITCHING:
            return f"making room for {model.name}"
        case WaitReason.QUEUED:
            return f"waiting for {model.name}, {view.ahead} ahead"
