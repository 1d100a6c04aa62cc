"""Embeddings and reranking by an MLX child: what it is asked, and its answer in OpenAI's shape. Pure."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from app.endpoint.errors import ApiError, lowered
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.refusal import unreadable
from app.endpoint.mlx.request import child_name
from app.endpoint.mlx.worker_passes import Part
from app.host.model import Model
from engines.artifact.facts import ModelKind

FIELDS: Mapping[ModelKind, tuple[str, ...]] = {
    ModelKind.EMBEDDING: ("input",),
    ModelKind.RERANK: ("query", "documents", "top_n", "instruction", "return_documents"),
}
"""What the child is given of a request; ``encoding_format`` is ours, since it ignores it."""
ROWS: Mapping[ModelKind, str] = {ModelKind.EMBEDDING: "data", ModelKind.RERANK: "results"}
"""The field of its answer that has a row for each text."""
TOO_LONG: Mapping[str, tuple[str, str]] = {
    "input": ("", "Split the text."),
    "documents": (" together with the query", "Split the document or shorten the query."),
}
"""For each field of many texts: what counts besides, and what to do."""
Answered = tuple[Part, dict[str, Any]]
"""What the child was asked, and its answer."""


def rewrite(body: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The body for the child. Raises ``ApiError`` for tokens instead of texts, and for an empty document.

    The child refuses that one too, but would name its place in a part of the request, and late.
    """
    given = body.get("input")
    if isinstance(given, list) and not all(isinstance(text, str) for text in given):
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "not_supported",
            f"{model.name} is an MLX model: its server takes texts, not token numbers. Send input as text.",
            "input",
        )
    if model.facts.kind is ModelKind.RERANK:
        for number, document in enumerate(body.get("documents") or ()):
            if isinstance(document, str) and not document.strip():
                place = f"documents[{number}]"
                raise ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"{place} is empty. Leave it out.", place)
    kept = {name: body[name] for name in FIELDS[model.facts.kind] if body.get(name) is not None}
    return {**kept, "model": child_name(model)}


def worker_asked(body: Mapping[str, Any], changed: Mapping[str, Any]) -> WorkerAsked:
    """What we have to do ourselves for this request; ``changed`` is what the child gets of it."""
    return WorkerAsked(body.get("encoding_format") == "base64", changed)


def read(data: bytes) -> dict[str, Any]:
    """An answer of the child. Raises ``ApiError``."""
    try:
        document = json.loads(data)
    except ValueError:
        raise unreadable() from None
    if not isinstance(document, dict):
        raise unreadable()
    return document


def counted(found: Mapping[str, Any], part: Part, limit: int, reduced_from: int | None = None) -> None:
    """Raise ``ApiError`` where the answer to a text that the child may cut says that it may have.

    ``reduced_from``: the window without the brake, where the brake lowered it.
    """
    if part.place is None:
        return
    try:
        tokens = int(found["usage"]["prompt_tokens"])
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


def merged(answers: Sequence[Answered], model: Model, top_n: int | None) -> dict[str, Any]:
    """The answers to all parts of a request as the answer to the whole; a single one as it is. Raises ``ApiError``.

    Texts to embed come in the request's order, documents by score; equal ones in the request's order.
    """
    _, first = answers[0]
    if len(answers) == 1:
        return first
    name = ROWS[model.facts.kind]
    try:
        rows = [{**row, "index": part.numbers[row["index"]]} for part, found in answers for row in found[name]]
        rows.sort(key=lambda row: row["index"])
        if [row["index"] for row in rows] != list(range(sum(len(part.numbers) for part, _ in answers))):
            raise unreadable()
        if model.facts.kind is ModelKind.RERANK:
            rows = sorted(rows, key=lambda row: -row["relevance_score"])[:top_n]
        usage = {count: sum(found["usage"][count] for _, found in answers) for count in first["usage"]}
    except (TypeError, KeyError, IndexError):
        raise unreadable() from None
    return {**first, name: rows, "usage": usage}


def answer(answers: Sequence[Answered], model: Model, asked: WorkerAsked) -> bytes:
    """The child's answer under our name for the model, its vectors as they are wanted. Raises ``ApiError``."""
    document = {**merged(answers, model, asked.body.get("top_n")), "model": model.id}
    if asked.base64 and model.facts.kind is ModelKind.EMBEDDING:
        try:
            for row in document["data"]:
                vector = row["embedding"]
                row["embedding"] = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        except (TypeError, KeyError, struct.error):
            raise unreadable() from None
    return json.dumps(document, ensure_ascii=False).encode()
