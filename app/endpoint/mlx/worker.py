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


MOST_TOKENS = 8192
"""Of one text: what is longer mlx_vlm cuts without a word (server/embeddings.py, 0.7.10), at its tokenizer's own limit
if that is less."""
SPECIAL_TOKENS = 8
"""What a tokenizer may add to a text, whose every other token is a byte at least."""


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


def worker_asked(body: Mapping[str, Any], model: Model) -> WorkerAsked:
    """What we have to do ourselves for this request."""
    limit = min(model.facts.trained_window or MOST_TOKENS, MOST_TOKENS)
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    long = tuple(text for text in texts if isinstance(text, str) and len(text.encode()) + SPECIAL_TOKENS > limit)
    return WorkerAsked(body.get("encoding_format") == "base64", long, limit)


def counted(data: bytes, asked: WorkerAsked) -> None:
    """Raise ``ApiError`` where the child's answer to one long text says that it may have cut it."""
    try:
        tokens = int(json.loads(data)["usage"]["prompt_tokens"])
    except (ValueError, TypeError, KeyError):
        raise unreadable() from None
    if tokens >= asked.limit:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "context_length_exceeded",
            f"A text has {asked.limit:,} tokens or more, and this model takes less than that at once. Split it.",
            "input",
            {"prompt_tokens": tokens, "context_window": asked.limit},
        )


def with_input(body: bytes, text: str) -> bytes:
    """The request for one text alone."""
    return json.dumps({**json.loads(body), "input": text}, ensure_ascii=False).encode()


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
