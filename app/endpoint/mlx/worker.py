"""Embeddings and reranking by an MLX child: what it is asked, and its answer in OpenAI's shape. Pure."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.refusal import unreadable
from app.endpoint.mlx.request import child_name
from app.host.model import Model

FIELDS = ("input", "query", "documents", "top_n", "instruction", "return_documents")
"""What the child is given of a request; ``encoding_format`` is ours, since it ignores it."""


def rewrite(body: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The body for the child. Raises ``ApiError`` for tokens instead of texts."""
    given = body.get("input")
    if isinstance(given, list) and not all(isinstance(text, str) for text in given):
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "not_supported",
            f"{model.name} is an MLX model: its server takes texts, not token numbers. Send input as text.",
            "input",
        )
    kept = {name: body[name] for name in FIELDS if body.get(name) is not None}
    return {**kept, "model": child_name(model)}


def worker_asked(body: Mapping[str, Any]) -> WorkerAsked:
    """What we have to do ourselves for this request."""
    return WorkerAsked(base64=body.get("encoding_format") == "base64")


def answer(data: bytes, model: Model, asked: WorkerAsked) -> bytes:
    """The child's answer under our name for the model, its vectors as they are wanted. Raises ``ApiError``."""
    try:
        document = json.loads(data)
        document["model"] = model.id
        if asked.base64:
            for row in document["data"]:
                vector = row["embedding"]
                row["embedding"] = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    except (ValueError, TypeError, KeyError, struct.error):
        raise unreadable() from None
    return json.dumps(document, ensure_ascii=False).encode()
