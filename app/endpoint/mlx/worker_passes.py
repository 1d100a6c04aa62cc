"""How a request to embed or to rank is split into passes, each of which an MLX child serves by itself. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.host.model import Model
from engines.artifact.facts import ModelKind
from engines.artifact.mlx_tables import RERANKS
from engines.memory.mlx_budget import WORKER_TOKENS

TEXTS: Mapping[ModelKind, str] = {ModelKind.EMBEDDING: "input", ModelKind.RERANK: "documents"}
"""The field of many texts, each of which has to fit."""
SHARED = ("query", "instruction")
"""What stands beside every document in its prompt."""

PASS_TOKENS = WORKER_TOKENS
"""Tokens that the child computes at once, padding included: it pads all texts of a batch to the longest. Ours: one text
of full length, which it has to bear anyway. What attention needs is texts × longest², so no pass needs more."""
RANKED_AT_ONCE = 8
"""Documents in a batch that mlx_vlm makes itself (server/reranking.py, 0.7.10); of texts to embed it makes none."""
RANKED_AT_ONCE_OF: Mapping[str, int] = {"qwen3_vl": 2}
"""The same, of an architecture that has another number."""
SPECIAL_TOKENS = 8
"""What a tokenizer may add to a text or to a pair of them; the most known are XLM-RoBERTa's four (its tokenizer)."""
PROMPT_TOKENS = 512
"""What mlx_vlm may write around the query and the document for a model that answers yes or no: its own words, a default
instruction included, are 300 tokens of a byte each (measured; server/reranking.py, 0.7.10)."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one pass asks of the child."""

    field: str
    """Whose texts were split."""
    numbers: tuple[int, ...]
    """Which of them it has, in the request's order."""
    body: Mapping[str, Any]
    place: str | None = None
    """Where its one text stands in the request (``documents[3]``), if the child may cut that without a word."""


def limit_of(window: int | None) -> int:
    """Tokens at which a text counts as cut, in a child of this window."""
    return WORKER_TOKENS if window is None else min(window, WORKER_TOKENS)


def parts(body: Mapping[str, Any], model: Model, limit: int) -> list[Part]:
    """A child's request in the order to ask: first each text that may have ``limit`` tokens or more, alone.

    So its own answer counts it, and a refusal comes before the work. What fits one pass is asked as it is.
    """
    name = TEXTS[model.facts.kind]
    given = body.get(name, [])
    one = isinstance(given, str)
    texts: Sequence[str] = [given] if one else given
    added = _added(body, model)
    sizes = [_most_tokens(text) + added for text in texts]
    split = passes(sizes, limit, _at_once(model, len(texts)))
    if len(split) == 1:
        bodies = [body]
    else:  # the best of a part need not be the best of all
        rest = {field: value for field, value in body.items() if field != "top_n"}
        bodies = [{**rest, name: [texts[number] for number in numbers]} for numbers in split]
    return [
        Part(name, numbers, asked, _place(name, numbers, sizes, limit, one))
        for numbers, asked in zip(split, bodies, strict=True)
    ]


def passes(sizes: Sequence[int], limit: int, at_once: int) -> list[tuple[int, ...]]:
    """The numbers of the texts of each pass, ascending; at least one pass, be it of nothing.

    ``sizes``: tokens that each text has at most. ``limit``: one that may have so many is alone in its pass; these come
    first. ``at_once``: texts that the child computes in one batch. The others are taken by size, so that a long one
    pads few: what a pass computes at once stays within ``PASS_TOKENS``.
    """
    alone = [(number,) for number, size in enumerate(sizes) if size >= limit]
    together: list[list[int]] = []
    for number in sorted((n for n, size in enumerate(sizes) if size < limit), key=lambda n: sizes[n]):
        if together and min(len(together[-1]) + 1, at_once) * sizes[number] <= PASS_TOKENS:
            together[-1].append(number)
        else:
            together.append([number])
    return [*alone, *(tuple(sorted(numbers)) for numbers in together)] or [()]


def _place(field: str, numbers: tuple[int, ...], sizes: Sequence[int], limit: int, one: bool) -> str | None:
    if not numbers or sizes[numbers[0]] < limit:
        return None
    return field if one else f"{field}[{numbers[0]}]"


def _at_once(model: Model, count: int) -> int:
    if model.facts.kind is ModelKind.EMBEDDING:
        return count
    return RANKED_AT_ONCE_OF.get(model.facts.architecture, RANKED_AT_ONCE)


def _added(body: Mapping[str, Any], model: Model) -> int:
    """Tokens that stand beside every text, at most."""
    judged = model.facts.kind is ModelKind.RERANK and model.facts.architecture in RERANKS
    shared = sum(_most_tokens(body[field]) for field in SHARED if isinstance(body.get(field), str))
    return shared + (PROMPT_TOKENS if judged else SPECIAL_TOKENS)


def _most_tokens(text: str) -> int:
    """Of a text that its tokenizer may normalise: a token is a byte at least. Beyond every limit it is a guess."""
    size = len(text.encode())
    return size if size > WORKER_TOKENS else max(size, len(unicodedata.normalize("NFKD", text).encode()))
