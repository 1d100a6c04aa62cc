"""Embeddings and reranking by an MLX child: what it is asked, and its answer in OpenAI's shape. Pure."""

from __future__ import annotations

import base64
import json
import struct
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from app.endpoint.errors import ApiError, lowered
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.refusal import unreadable
from app.endpoint.mlx.request import child_name
from app.host.model import Model
from engines.artifact.facts import ModelKind
from engines.artifact.mlx_tables import RERANKS
from engines.memory.mlx_budget import WORKER_TOKENS

FIELDS: Mapping[ModelKind, tuple[str, ...]] = {
    ModelKind.EMBEDDING: ("input",),
    ModelKind.RERANK: ("query", "documents", "top_n", "instruction", "return_documents"),
}
"""What the child is given of a request; ``encoding_format`` is ours, since it ignores it."""
TEXTS: Mapping[ModelKind, str] = {ModelKind.EMBEDDING: "input", ModelKind.RERANK: "documents"}
"""The field of many texts, each of which has to fit."""
SHARED = ("query", "instruction")
"""What stands beside every document in its prompt."""

SPECIAL_TOKENS = 8
"""What a tokenizer may add to a text or to a pair of them; the most known are XLM-RoBERTa's four (its tokenizer)."""
PROMPT_TOKENS = 512
"""What mlx_vlm may write around the query and the document for a model that answers yes or no: its own words, a default
instruction included, are 300 tokens of a byte each (measured; server/reranking.py, 0.7.10)."""
TOO_LONG: Mapping[str, tuple[str, str]] = {
    "input": ("", "Split the text."),
    "documents": (" together with the query", "Split the document or shorten the query."),
}
"""For each field of many texts: what counts besides, and what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """A text that the child may cut without a word."""

    field: str
    place: str
    """Where it stands in the request: ``documents[3]``."""
    body: Mapping[str, Any]
    """The same request for this text alone."""


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
    kept = {name: body[name] for name in FIELDS[model.facts.kind] if body.get(name) is not None}
    return {**kept, "model": child_name(model)}


def worker_asked(body: Mapping[str, Any], changed: Mapping[str, Any]) -> WorkerAsked:
    """What we have to do ourselves for this request; ``changed`` is what the child gets of it."""
    return WorkerAsked(body.get("encoding_format") == "base64", changed)


def limit_of(window: int | None) -> int:
    """Tokens at which a text counts as cut, in a child of this window."""
    return WORKER_TOKENS if window is None else min(window, WORKER_TOKENS)


def parts(body: Mapping[str, Any], model: Model, limit: int) -> list[Part]:
    """Of a child's request what may have ``limit`` tokens or more: each is to be counted alone, before the whole."""
    name = TEXTS[model.facts.kind]
    given = body.get(name)
    one = isinstance(given, str)
    texts = [given] if one else given if isinstance(given, list) else []
    judged = model.facts.kind is ModelKind.RERANK and model.facts.architecture in RERANKS
    added = PROMPT_TOKENS if judged else SPECIAL_TOKENS
    added += sum(_most_tokens(body[shared]) for shared in SHARED if isinstance(body.get(shared), str))
    return [
        Part(name, name if one else f"{name}[{number}]", {**body, name: [text]})
        for number, text in enumerate(texts)
        if isinstance(text, str) and _most_tokens(text) + added >= limit
    ]


def _most_tokens(text: str) -> int:
    """Of a text that its tokenizer may normalise: a token is a byte at least. Beyond every limit it is a guess."""
    size = len(text.encode())
    return size if size > WORKER_TOKENS else max(size, len(unicodedata.normalize("NFKD", text).encode()))


def counted(data: bytes, part: Part, limit: int, reduced_from: int | None = None) -> None:
    """Raise ``ApiError`` where the child's answer to one text says that it may have cut it.

    ``reduced_from``: the window without the brake, where the brake lowered it.
    """
    try:
        tokens = int(json.loads(data)["usage"]["prompt_tokens"])
    except (ValueError, TypeError, KeyError):
        raise unreadable() from None
    if tokens >= limit:
        beside, way_out = TOO_LONG[part.field]
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "context_length_exceeded",
            f"{part.place} has {limit:,} tokens or more{beside}, and this model takes less than that at once"
            f"{lowered(reduced_from)}. {way_out}",
            part.field,
            {"prompt_tokens": tokens, "context_window": limit},
        )


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
