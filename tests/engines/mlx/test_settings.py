"""What a child's answers about its bound mean: it is believed only where it says so itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.settings import Enforced, confirms, said, warning

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
NEAR = st.fixed_dictionaries(
    {}, optional={"current": JSON | st.fixed_dictionaries({"max_kv_size": JSON}), "applied": JSON, "rejected": JSON}
)


def answer(applied: Any, current: Any, rejected: Any = ()) -> dict[str, Any]:
    return {"applied": applied, "rejected": list(rejected), "current": current}


@pytest.mark.parametrize(
    ("body", "wanted", "confirmed"),
    [
        (answer({"max_kv_size": 5000}, {"max_kv_size": 5000}), 5000, True),
        (answer({"max_kv_size": 0}, {"max_kv_size": 0}), 0, True),
        (answer({}, {"max_kv_size": 8192}, [{"name": "max_kv_size", "reason": "no"}]), 5000, False),
        (answer({}, {"max_kv_size": 5000}, [{"name": "max_kv_size", "reason": "no"}]), 5000, False),
        (answer({"max_kv_size": 5000}, {"max_kv_size": 8192}), 5000, False),
        (answer({"max_kv_size": 4999}, {"max_kv_size": 4999}), 5000, False),
        (answer({"max_kv_size": 5000}, {}), 5000, False),
        (answer(None, None), 5000, False),
        ([], 5000, False),
        ("applied", 5000, False),
    ],
)
def test_a_bound_is_confirmed_by_both_words_for_it(body: object, wanted: int, confirmed: bool) -> None:
    assert confirms(body, wanted) is confirmed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"current": {"max_kv_size": 5000}}, (True, 5000)),
        ({"current": {"max_kv_size": 0}}, (True, None)),
        ({"current": {"max_kv_size": None}}, (True, None)),
        ({"current": {"max_kv_size": True}}, (False, None)),
        ({"current": {"max_kv_size": "5000"}}, (False, None)),
        ({"current": {"max_kv_size": -1}}, (False, None)),
        ({"current": {}}, (False, None)),
        ({}, (False, None)),
        (None, (False, None)),
    ],
)
def test_what_a_child_says_of_its_bound(body: object, expected: tuple[bool, int | None]) -> None:
    assert said(body) == expected


@given(JSON | NEAR, st.integers(0, 10**6))
def test_no_answer_raises_and_none_confirms_what_it_does_not_say(body: object, wanted: int) -> None:
    known, window = said(body)
    assert known or window is None
    if confirms(body, wanted):
        assert (known, window) == (True, wanted or None)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Enforced(True, 5000, confirmed=True), None),
        (Enforced(True, 5000, confirmed=False, problem="ReadTimeout"), ("ReadTimeout", "read back", "5,000 tokens")),
        (Enforced(True, 8192, confirmed=False, problem="500"), ("500", "8,192 tokens")),
        (Enforced(True, None, confirmed=False, problem="500"), ("500", "holds to none")),
        (Enforced(False, None, confirmed=False, problem="401"), ("401", "none is recorded")),
    ],
)
def test_one_warning_says_what_became_of_a_bound(found: Enforced, words: tuple[str, ...] | None) -> None:
    sentence = warning("tiny", 5000, found)
    if words is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert "tiny did not confirm a bound of 5,000 tokens" in sentence
        assert all(word in sentence for word in words)
