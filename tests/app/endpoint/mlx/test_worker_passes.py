"""A request to embed or to rank in passes that an MLX child can bear."""

from __future__ import annotations

import unicodedata
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.endpoint.mlx.worker_passes import PASS_TOKENS, SPECIAL_TOKENS, Part, limit_of, parts, passes
from app.host.model import Model
from engines.artifact.facts import ModelKind
from tests.app.endpoint.mlx.child import EMBEDDER, RANKER, model

NORMAL_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
WINDOW = 256
MOST = PASS_TOKENS
MANY = 10_000
"""As many texts at once as a request has."""
JUDGE = model(kind=ModelKind.RERANK, architecture="qwen3")
SEEING_JUDGE = model(kind=ModelKind.RERANK, architecture="qwen3_vl")


@pytest.mark.parametrize(
    ("sizes", "limit", "at_once", "expected"),
    [
        ([], WINDOW, MANY, [()]),
        ([5], WINDOW, MANY, [(0,)]),
        ([WINDOW], WINDOW, MANY, [(0,)]),
        ([0, 0, 0], WINDOW, MANY, [(0, 1, 2)]),
        ([8] * 1024, WINDOW, MANY, [tuple(range(1024))]),
        ([8] * 1025, WINDOW, MANY, [tuple(range(1024)), (1024,)]),
        ([MOST // 4] * 4, MOST, MANY, [(0, 1, 2, 3)]),  # exactly the bound
        ([MOST // 4, 9, MOST // 4 + 1, 9], MOST, MANY, [(0, 1, 3), (2,)]),  # one token too many
        ([MOST - 1, MOST - 1], MOST, MANY, [(0,), (1,)]),
        ([256, 300, 256], WINDOW, MANY, [(0,), (1,), (2,)]),  # all long
        ([10, 300, 20, 256, 255], WINDOW, MANY, [(1,), (3,), (0, 2, 4)]),
        ([10, 4000, 20, 4000, 30, 5000], MOST, MANY, [(0, 2, 4), (1, 3), (5,)]),  # a long one pads no short one
        ([9] * 300 + [MOST], MOST, MANY, [(300,), tuple(range(300))]),
        ([1024] * 500, MOST, 8, [tuple(range(500))]),  # the child makes batches itself
        ([1025] * 9, MOST, 8, [tuple(range(7)), (7, 8)]),
        ([4096] * 9, MOST, 2, [tuple(range(9))]),
        ([4097] * 2, MOST, 2, [(0,), (1,)]),
    ],
)
def test_a_pass_computes_no_more_at_once_than_a_text_of_full_length(
    sizes: list[int], limit: int, at_once: int, expected: list[tuple[int, ...]]
) -> None:
    assert passes(sizes, limit, at_once) == expected


@given(
    st.lists(st.integers(0, 2 * MOST) | st.integers(0, 40), max_size=80),
    st.integers(1, MOST),
    st.sampled_from([1, 2, 8, MANY]),
)
def test_every_text_is_in_one_pass_that_is_within_the_bound_or_its_own(
    sizes: list[int], limit: int, at_once: int
) -> None:
    found = passes(sizes, limit, at_once)
    assert sorted(number for numbers in found for number in numbers) == list(range(len(sizes)))
    long = [number for number, size in enumerate(sizes) if size >= limit]
    assert found[: len(long)] == [(number,) for number in long]
    for numbers in found:
        assert list(numbers) == sorted(numbers)
        longest = max((sizes[number] for number in numbers), default=0)
        assert len(numbers) == 1 or min(len(numbers), at_once) * longest <= PASS_TOKENS
    assert found == [()] or all(found)


def test_what_fits_one_pass_is_asked_as_it_is() -> None:
    body = {"query": "q", "documents": ["a", "b"], "top_n": 1}
    assert parts(body, RANKER, WINDOW) == [Part("documents", (0, 1), body)]
    long = {"query": "q", "documents": ["x" * WINDOW], "top_n": 1}
    assert parts(long, RANKER, WINDOW) == [Part("documents", (0,), long, "documents[0]")]
    text = {"input": "x" * WINDOW}
    assert parts(text, EMBEDDER, WINDOW) == [Part("input", (0,), text, "input")]
    assert parts({"input": []}, EMBEDDER, WINDOW) == [Part("input", (), {"input": []})]


def test_the_parts_of_a_request_have_all_of_it_but_the_choice_of_the_best() -> None:
    same = {"model": "m", "query": "q", "instruction": "i", "return_documents": True}
    body = {**same, "documents": ["a", "x" * WINDOW, "b"], "top_n": 1}
    assert parts(body, RANKER, WINDOW) == [
        Part("documents", (1,), {**same, "documents": ["x" * WINDOW]}, "documents[1]"),
        Part("documents", (0, 2), {**same, "documents": ["a", "b"]}),
    ]


@pytest.mark.parametrize(
    ("asked_of", "text", "count", "expected"),
    [
        (EMBEDDER, "x" * 1016, 16, [8, 8]),
        (EMBEDDER, "", 1025, [1024, 1]),
        (RANKER, "x" * 1015, 16, [16]),  # with the query 1,024
        (RANKER, "x" * 1016, 16, [7, 7, 2]),
        (JUDGE, "x" * 512, 16, [7, 7, 2]),
        (SEEING_JUDGE, "x" * 512, 16, [16]),
        (SEEING_JUDGE, "x" * 3584, 3, [1, 1, 1]),
    ],
)
def test_how_many_texts_a_pass_has_depends_on_the_model(
    asked_of: Model, text: str, count: int, expected: list[int]
) -> None:
    texts = [text] * count
    body = {"input": texts} if asked_of is EMBEDDER else {"query": "q", "documents": texts}
    assert [len(part.numbers) for part in parts(body, asked_of, MOST)] == expected


@given(st.text(max_size=90), st.lists(st.text(max_size=300), min_size=1, max_size=5))
def test_a_document_that_is_not_counted_has_less_than_the_limit(query: str, documents: list[str]) -> None:
    body = {"query": query, "documents": documents}
    places = {part.place for part in parts(body, RANKER, WINDOW)}
    for number, document in enumerate(documents):
        if f"documents[{number}]" not in places:
            for form in NORMAL_FORMS:
                pair = unicodedata.normalize(form, query) + unicodedata.normalize(form, document)
                assert len(pair.encode()) + SPECIAL_TOKENS < WINDOW


@pytest.mark.parametrize(
    ("asked_of", "body", "places"),
    [
        (EMBEDDER, {"input": "x" * 1015}, []),
        (EMBEDDER, {"input": "x" * 1016}, ["input"]),
        (EMBEDDER, {"input": ["\u0436" * 508, "a", "\u0436" * 507]}, ["input[0]"]),
        (EMBEDDER, {"input": "\ufdfa" * 31}, ["input"]),  # 93 bytes, and 1,023 when normalised
        (EMBEDDER, {"input": []}, []),
        (RANKER, {"query": "q" * 500, "documents": ["x" * 515, "x" * 516]}, ["documents[1]"]),
        (RANKER, {"query": "q", "documents": ["x" * 900], "instruction": "i" * 200}, ["documents[0]"]),
        (JUDGE, {"query": "q" * 100, "documents": ["x" * 411, "x" * 412]}, ["documents[1]"]),
        (JUDGE, {"query": "q" * 100, "documents": ["x" * 300], "instruction": "i" * 112}, ["documents[0]"]),
        (JUDGE, {"query": "q", "documents": ["x"], "instruction": 5}, []),
    ],
)
def test_what_may_be_too_long_is_known_by_its_bytes(asked_of: Model, body: dict[str, Any], places: list[str]) -> None:
    assert [part.place for part in parts(body, asked_of, 1024) if part.place is not None] == places


@pytest.mark.parametrize(("window", "limit"), [(None, 8192), (512, 512), (8192, 8192), (131_072, 8192)])
def test_the_limit_is_the_childs_window_and_never_more_than_its_server_takes(window: int | None, limit: int) -> None:
    assert limit_of(window) == limit
