"""What a llama-server says to the one who holds its stdin: upstream's own protocol of router and child."""

from __future__ import annotations

import json

PREFIX = "cmd_child_to_router:"
STATE = PREFIX + "state:"


def load_progress(line: str) -> float | None:
    """The progress 0..1 that a line of output reports; None for any other line.

    A load has stages (text model, projector ...): each is an equal part.
    """
    if not line.startswith(PREFIX):
        return None
    if not line.startswith(STATE):
        return None
    try:
        message = json.loads(line.removeprefix(STATE))
        if message["state"] == "ready":
            return 1.0
        payload = message["payload"]
        stages = payload["stages"]
        return float(min(1.0, (stages.index(payload["current"]) + float(payload["value"])) / len(stages)))
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None  # another build may speak differently: progress is a courtesy
