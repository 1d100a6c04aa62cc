"""One request on its way to a child."""

from __future__ import annotations

from dataclasses import dataclass

from app.endpoint.mlx.asked import Asked
from app.host.model import Model

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a child."""

    model: Model
    path: str
    body: bytes
    """JSON. An MLX child's lacks the budget, which the turn decides."""
    stream: bool
    mlx: Asked | None = None
    """What the client asked of an MLX child; None for a llama-server, whose bytes travel as they are."""
