"""Tool calls in a child's stream: whole, cut, broken, and left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.mlx.calls import Calls
from app.endpoint.mlx.stream import CALLS_DIFFER, ENDED_IN_CALL, SILENT_TOKENS, ChatStream, Step
from tests.app.endpoint.mlx.child import DONE, MODEL, USAGE, chunk, event, usage_event
from tests.app.endpoint.mlx.test_stream import CALL, MORE, SOMEBODY, deltas, text_of

LEAKED = '<tool_call>\n{"name": "add", "arguments": {"a"'
WHOLE = chunk(tool_calls=[CALL]) + chunk(tool_calls=[MORE])


def fed(data: bytes, *stops: str) -> Step:
    """What comes of all of it at once, for a client that offers tools."""
    return ChatStream(MODEL, ChatAsked(SOMEBODY, stops=stops, tools=True)).feed(data)


def failing(message: str) -> bytes:
    """How the child ends an answer that it cannot finish."""
    return event({"error": message})


def ends(step: Step) -> tuple[str, list[Any], Any]:
    """The text, the reasons, and the end or the error's code."""
    chunks = list(step.chunks)
    reasons = [reason for _, reason in deltas(chunks) if reason is not None]
    return text_of(chunks), reasons, step.error.code if step.error else step.ended


@pytest.mark.parametrize(
    ("data", "stops", "end"),
    [
        pytest.param(
            chunk(tool_calls=[CALL]) + chunk(content=LEAKED) + failing(ENDED_IN_CALL),
            (),
            ("", ["length"], "done"),
            id="cut in a call: its text is not said once more",
        ),
        pytest.param(
            chunk(tool_calls=[CALL]) + chunk(content=LEAKED, tool_calls=[MORE]) + failing(ENDED_IN_CALL),
            ("tool",),
            ("", ["length"], "done"),
            id="nor does a stop sequence find it",
        ),
        pytest.param(
            chunk(content="S") + chunk(tool_calls=[CALL]) + failing(ENDED_IN_CALL),
            ("STOP",),
            ("S", ["length"], "done"),
            id="what was said before the call is",
        ),
        pytest.param(WHOLE + failing(CALLS_DIFFER), (), ("", ["tool_calls"], "done"), id="another one was thought of"),
        pytest.param(
            WHOLE + chunk(content="so.") + failing(CALLS_DIFFER),
            (),
            ("so.", ["tool_calls"], "done"),
            id="and words follow",
        ),
        pytest.param(
            WHOLE + chunk(content="so.") + failing(CALLS_DIFFER),
            ("o",),
            ("s", ["stop"], "stopped"),
            id="to a stop sequence",
        ),
        pytest.param(
            chunk(tool_calls=[CALL]) + chunk(content=LEAKED) + failing(CALLS_DIFFER),
            (),
            ("", ["length"], "done"),
            id="cut in a call, and another was thought of",
        ),
        pytest.param(
            WHOLE + chunk(content="a") + chunk(content="b") + chunk("tool_calls") + DONE,
            (),
            ("ab", ["tool_calls"], "done"),
            id="words after a call",
        ),
        pytest.param(
            WHOLE + chunk(content="a") + failing("boom"), (), ("a", [], "engine_failed"), id="and a failure after them"
        ),
        pytest.param(failing(ENDED_IN_CALL), (), ("", [], "engine_failed"), id="a call that nobody saw"),
    ],
)
def test_how_an_answer_with_calls_ends(data: bytes, stops: tuple[str, ...], end: tuple[str, list[Any], Any]) -> None:
    assert ends(fed(data, *stops)) == end


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (chunk(tool_calls=[CALL]) + failing("Expecting value"), "a broken tool call (Expecting value)"),
        (WHOLE + failing("boom"), "The model's server failed (boom)"),
        (chunk(content="a") + failing("boom"), "The model's server failed (boom)"),
    ],
)
def test_a_failure_says_whether_it_was_in_a_call(data: bytes, words: str) -> None:
    error = fed(data).error
    assert error is not None
    assert words in error.message


@pytest.mark.parametrize(
    ("said", "tokens", "tools", "end"),
    [
        (chunk("stop"), SILENT_TOKENS, True, ("", ["stop"], "done")),
        (chunk("stop"), SILENT_TOKENS + 1, True, ("", [], "engine_failed")),
        (chunk("stop"), SILENT_TOKENS + 1, False, ("", ["stop"], "done")),
        (chunk("length"), SILENT_TOKENS + 1, True, ("", ["length"], "done")),
        (chunk(reasoning="hm") + chunk("stop"), SILENT_TOKENS + 1, True, ("", ["stop"], "done")),
    ],
)
def test_an_answer_whose_words_were_all_left_out_is_no_empty_one(
    said: bytes, tokens: int, tools: bool, end: tuple[str, list[Any], Any]
) -> None:
    stream = ChatStream(MODEL, ChatAsked(SOMEBODY, tools=tools))
    assert ends(stream.feed(said + usage_event(USAGE | {"completion_tokens": tokens}) + DONE)) == end


def test_an_empty_answer_ends_even_where_its_tokens_are_not_told() -> None:
    assert ends(fed(chunk("stop") + DONE)) == ("", ["stop"], "done")


ARGUMENTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3).map(json.dumps)


@settings(deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.data())
def test_calls_in_any_pieces_are_the_same_and_whole_only_at_their_end(texts: list[str], data: st.DataObject) -> None:
    calls = Calls()
    for index, text in enumerate(texts):
        cut = data.draw(st.integers(0, len(text)))
        begin = {"index": index, "id": f"c{index}", "type": "function"}
        calls.add([{**begin, "function": {"name": "add", "arguments": text[:cut]}}])
        assert calls.whole() == (cut == len(text))
        calls.add([{"index": index, "function": {"arguments": text[cut:]}}])
        assert calls.whole()
    assert [call["function"]["arguments"] for call in calls.listed()] == texts
    assert [call["id"] for call in calls.listed()] == [f"c{index}" for index in range(len(texts))]


def test_arguments_nested_without_end_are_not_whole() -> None:
    calls = Calls()
    calls.add([{"index": 0, "function": {"name": "add", "arguments": "[" * 100_000}}])
    assert not calls.whole()
