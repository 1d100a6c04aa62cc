"""Whose conversation lies in the prefix cache, and what has to happen before the next turn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.prefix_cache import Before, Conversation, Ownership, conversation_of

A1 = Conversation("a", ("1",))
A2 = Conversation("a", ("1", "2", "3"))
A_REWRITTEN = Conversation("a", ("1", "x", "3"))
B = Conversation("b", ("1",))


@pytest.mark.parametrize(
    ("ownership", "next_turn", "before"),
    [
        (Ownership(), A1, Before.NOTHING),
        (Ownership(A1), A1, Before.NOTHING),
        (Ownership(A1), A2, Before.NOTHING),
        (Ownership(A2), A1, Before.RESET),
        (Ownership(A2), A_REWRITTEN, Before.RESET),
        (Ownership(A1), B, Before.RESET),
        (Ownership(A1, dirty=True), A1, Before.RESET),
        (Ownership(A1, abandoned=True), A2, Before.BARRIER),
        (Ownership(A1, abandoned=True), B, Before.BARRIER_AND_RESET),
        (Ownership(A1, dirty=True, abandoned=True), A2, Before.BARRIER_AND_RESET),
    ],
)
def test_what_happens_before_a_turn(ownership: Ownership, next_turn: Conversation, before: Before) -> None:
    assert ownership.before(next_turn) is before


def test_a_failed_reset_is_tried_again_and_a_failed_barrier_too() -> None:
    failed = Ownership(A1, abandoned=True).failed(B)
    assert failed.before(B) is Before.BARRIER_AND_RESET
    assert Ownership(A1).failed(B).before(B) is Before.RESET


def test_what_succeeded_is_owned_and_clean() -> None:
    assert Ownership(A1, dirty=True, abandoned=True).owned_by(B) == Ownership(B)
    assert Ownership(A1, dirty=True, abandoned=True).emptied() == Ownership(A1)
    assert Ownership(A1).left() == Ownership(A1, abandoned=True)


conversations = st.builds(
    Conversation, st.sampled_from("ab"), st.lists(st.sampled_from("xyz"), max_size=4).map(lambda m: tuple(m))
)


@given(st.lists(st.tuples(conversations, st.booleans(), st.booleans())))
def test_a_turn_only_ever_meets_its_own_history_or_an_empty_cache(
    turns: list[tuple[Conversation, bool, bool]],
) -> None:
    """The law, against a model of the cache that holds what turns left since the last reset that succeeded."""
    ownership, held = Ownership(), list[Conversation]()
    for turn, works, abandons in turns:
        before = ownership.before(turn)
        resets = before in {Before.RESET, Before.BARRIER_AND_RESET}
        acts = before is not Before.NOTHING
        if resets and works:
            held = []
        ownership = ownership.owned_by(turn) if works or not acts else ownership.failed(turn)
        if works:
            assert all(turn.extends(other) for other in held)
        held.append(turn)
        if abandons:
            ownership = ownership.left()
            assert ownership.before(turn) in {Before.BARRIER, Before.BARRIER_AND_RESET}


def body(*contents: str, **others: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return {"model": "m", "messages": messages, **others}


def test_a_conversation_that_goes_on_is_the_same_one() -> None:
    first = conversation_of(body("s", "hello"), None)
    second = conversation_of(body("s", "hello", "hi", "and now?"), None)
    assert second.identity == first.identity
    assert second.extends(first)
    assert not first.extends(second)


@pytest.mark.parametrize(
    "other",
    [
        body("s", "another"),
        body("another", "hello"),
        body("s", "hello") | {"model": "other"},
        body("s", "hello", prompt_cache_key="k"),
    ],
)
def test_another_beginning_is_another_conversation(other: dict[str, Any]) -> None:
    assert conversation_of(other, None).identity != conversation_of(body("s", "hello"), None).identity


def test_what_a_client_calls_it_outranks_what_it_says() -> None:
    assert (
        conversation_of(body("s", "a"), "id").identity
        == conversation_of(body("s", "b"), "id").identity
        == conversation_of(body("s", "c", prompt_cache_key="id"), "other").identity
    )
    assert conversation_of(body("s", "a", prompt_cache_key=7), "id") == conversation_of(body("s", "a"), "id")


def test_an_edited_message_is_no_extension() -> None:
    told = conversation_of(body("s", "hello", "hi", "more"), "id")
    edited = conversation_of(body("s", "hello", "hi", "else"), "id")
    assert not edited.extends(told)


def test_only_digests_are_kept() -> None:
    kept = repr(conversation_of(body("sysword", "userword", prompt_cache_key="keyword"), "headerword"))
    assert not [word for word in ("sysword", "userword", "keyword", "headerword") if word in kept]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
MESSAGES = st.lists(st.fixed_dictionaries({}, optional={"role": JSON | st.just("user"), "content": JSON}) | JSON)


@given(st.fixed_dictionaries({}, optional={"messages": MESSAGES | JSON, "model": JSON, "prompt_cache_key": JSON}))
def test_any_body_has_a_conversation_that_json_does_not_change(any_body: dict[str, Any]) -> None:
    conversation = conversation_of(any_body, None)
    assert conversation.extends(conversation)
    assert conversation_of(json.loads(json.dumps(any_body)), None) == conversation
