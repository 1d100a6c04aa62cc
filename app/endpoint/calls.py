"""A request becomes a call in the dialect of the child that will answer it: the model's format decides, here alone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from app.endpoint.body import encode
from app.endpoint.call import COMPLETIONS_PATH, Call
from app.endpoint.mlx import request as mlx
from app.endpoint.mlx import worker as mlx_worker
from app.endpoint.rewrite import rewrite
from app.host.model import Model

SEED_BITS = 31
"""Of a seed that we draw: what every server takes as a whole number."""


def chat_call(model: Model, path: str, body: Mapping[str, Any], *, stream: bool, conversation: str | None) -> Call:
    """For a chat or a completion. ``conversation`` is the client's name for it, if any. Raises ``ApiError``."""
    if model.facts.format != mlx.FORMAT:
        return Call(model, path, encode(rewrite(body, model.id)), stream)
    if path == COMPLETIONS_PATH:
        raise mlx.no_completions(model)
    changed = mlx.rewrite(body, model, secrets.randbits(SEED_BITS))
    return Call(model, path, encode(changed), stream, mlx.chat_asked(body, conversation))


def worker_call(model: Model, path: str, body: Mapping[str, Any]) -> Call:
    """For embeddings or reranking. Raises ``ApiError``."""
    if model.facts.format != mlx.FORMAT:
        return Call(model, path, encode({**body, "model": model.id}), stream=False)
    changed = mlx_worker.rewrite(body, model)
    return Call(model, path, encode(changed), stream=False, mlx=mlx_worker.worker_asked(body, changed))
