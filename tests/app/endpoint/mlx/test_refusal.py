"""What an MLX child says instead of an answer, and what the client reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.endpoint.mlx.budget import UNKNOWN_WINDOW_TOKENS, first_budget, second_budget
from app.endpoint.mlx.refusal import TooLong, refused, too_long
from tests.app.endpoint.mlx.child import FOLDER, MODEL, refusal

SEEN = {"detail": "Request needs 624 context tokens (24 prompt + 600 max generation), but MAX_KV_SIZE is 512."}


def test_the_numbers_of_a_refusal_for_length() -> None:
    assert too_long(json.dumps(SEEN).encode()) == TooLong(24, 600, 512)


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 2**31), st.integers(1, 2**31))
def test_any_numbers_are_read(prompt: int, budget: int, window: int) -> None:
    assert too_long(refusal(prompt, budget, window)) == TooLong(prompt, budget, window)


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text(max_size=4),
        lambda x: st.lists(x, max_size=2) | st.dictionaries(st.sampled_from(["detail", "loc", "msg"]), x),
    ).map(lambda v: json.dumps(v).encode()),
    st.integers(400, 599),
)
def test_no_refusal_is_a_fault_of_ours(body: bytes, status: int) -> None:
    assert too_long(body) is None
    assert 400 <= refused(status, body, MODEL).status < 600


@pytest.mark.parametrize(
    ("status", "detail", "answered", "code", "words"),
    [
        (
            422,
            [{"type": "missing", "loc": ["body", "messages", 0, "role"], "msg": "Field required", "input": {}}],
            400,
            "invalid_request",
            "messages[0].role: Field required.",
        ),
        (422, [5], 400, "invalid_request", "body: its server cannot take it."),
        (422, [], 502, "engine_failed", "422 without a word"),
        (
            400,
            "Invalid tool_choice.",
            400,
            "invalid_request",
            "The model's server refused the request: Invalid tool_choice.",
        ),
        (400, f"no such file {FOLDER}", 400, "invalid_request", "no such file tiny"),
        (401, "Unauthorized", 502, "engine_failed", "401"),
        (
            500,
            "An unexpected error occurred: roles must alternate",
            400,
            "invalid_request",
            "The model cannot take this request: roles must alternate",
        ),
        (500, "Generation failed: out of memory", 502, "engine_failed", "Ask again"),
        (503, "busy", 502, "engine_failed", "Ask again"),
        (500, None, 502, "engine_failed", "without a word"),
    ],
)
def test_a_refusal_is_put_right(status: int, detail: Any, answered: int, code: str, words: str) -> None:
    error = refused(status, json.dumps({"detail": detail}).encode(), MODEL)
    assert (error.status, error.code) == (answered, code)
    assert words in error.message
    assert str(FOLDER) not in error.message


@pytest.mark.parametrize(
    ("asked", "allocated", "trained", "budget"),
    [
        (None, 512, 8192, 512),
        (None, None, 8192, 8192),
        (None, None, None, UNKNOWN_WINDOW_TOKENS),
        (7, 512, 8192, 7),
        (9000, 512, 8192, 9000),
        (0, 512, 8192, 0),
    ],
)
def test_the_first_budget(asked: int | None, allocated: int | None, trained: int | None, budget: int) -> None:
    assert first_budget(asked, allocated, trained) == budget


@pytest.mark.parametrize(
    ("asked", "prompt", "window", "budget"),
    [
        (None, 24, 512, 488),
        (600, 24, 512, 488),
        (8, 24, 512, 8),
        (None, 511, 512, 1),
        (5, 512, 512, None),
        (None, 600, 512, None),
    ],
)
def test_the_second_budget(asked: int | None, prompt: int, window: int, budget: int | None) -> None:
    assert second_budget(asked, prompt, window) == budget
