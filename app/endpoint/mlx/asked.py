"""What a client asked of an MLX child, as far as we do it ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.mlx.prefix_cache import Conversation


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """Of a chat."""

    conversation: Conversation
    """Whose history it is: decides whether the child's prefix cache is kept."""
    budget: int | None = None
    """Tokens the answer may have; None is until the window is full."""
    stops: tuple[str, ...] = ()
    """The answer ends before the first of them."""
    usage: bool = False
    """Whether a streaming client wants the chunk that counts tokens."""
    tools: bool = False
    """Whether the answer may call tools."""


@dataclass(frozen=True, slots=True)
class WorkerAsked:
    """Of an embedding or rerank model."""

    base64: bool = False
    """Whether vectors are wanted as base64 of little-endian float32."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request as the child takes it, whole: it is asked in passes."""


Asked = ChatAsked | WorkerAsked
