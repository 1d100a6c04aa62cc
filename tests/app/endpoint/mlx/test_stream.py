"""A child's stream becomes OpenAI's chunks, however its bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.mlx.stream import ChatStream, Chunk, Ended
from engines.mlx.prefix_cache import Conversation
from tests.app.endpoint.mlx.child import DONE, FOLDER, MODEL, USAGE, chunk, event, says, usage_event
from tests.app.endpoint.mlx.test_stop import STOPS, cut
from tests.app.endpoint.serving import pieces_of

SOMEBODY = Conversation("", ())
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}
MORE = {"index": 0, "function": {"arguments": ": 1}"}}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def run(data: list[bytes], *stops: str) -> tuple[list[Chunk], Any, ChatStream]:
    """All chunks, and the end: an ``Ended``, an error's code, or None."""
    stream = ChatStream(MODEL, ChatAsked(SOMEBODY, stops=stops))
    chunks: list[Chunk] = []
    for piece in data:
        step = stream.feed(piece)
        chunks += step.chunks
        if step.error is not None:
            return chunks, step.error.code, stream
        if step.ended is not None:
            return chunks, step.ended, stream
    return chunks, None, stream


def deltas(chunks: list[Chunk]) -> list[tuple[Any, Any]]:
    """What is new in each."""
    return [(choice["delta"], choice["finish_reason"]) for chunk in chunks for choice in chunk["choices"]]


def text_of(chunks: list[Chunk]) -> str:
    """What a client puts together."""
    return "".join(delta.get("content", "") for delta, _ in deltas(chunks))


FIRST = {"role": "assistant"}


@pytest.mark.parametrize(
    ("data", "stops", "said", "end"),
    [
        (says("He", "llo"), (), [({**FIRST, "content": "He"}, None), ({"content": "llo"}, None), ({}, "stop")], "done"),
        (says("a", reason="length"), (), [({**FIRST, "content": "a"}, None), ({}, "length")], "done"),
        (chunk("stop") + DONE, (), [(FIRST, "stop")], "done"),
        (
            chunk(reasoning="hm") + chunk(content="a") + chunk("stop") + DONE,
            (),
            [({**FIRST, "reasoning_content": "hm"}, None), ({"content": "a"}, None), ({}, "stop")],
            "done",
        ),
        (
            chunk(tool_calls=[CALL]) + chunk("tool_calls", tool_calls=[MORE]) + DONE,
            (),
            [({**FIRST, "tool_calls": [CALL]}, None), ({"tool_calls": [MORE]}, None), ({}, "tool_calls")],
            "done",
        ),
        (says("one ST", "OP two"), ("STOP",), [({**FIRST, "content": "one "}, None), ({}, "stop")], "stopped"),
        (says("STOP"), ("STOP",), [(FIRST, "stop")], "stopped"),
        (
            says("one ST", reason="length"),
            ("STOP",),
            [({**FIRST, "content": "one "}, None), ({"content": "ST"}, None), ({}, "length")],
            "done",
        ),
        (
            chunk(content="a S") + chunk(tool_calls=[CALL]) + chunk("tool_calls") + DONE,
            ("STOP",),
            [
                ({**FIRST, "content": "a "}, None),
                ({"content": "S", "tool_calls": [CALL]}, None),
                ({}, "tool_calls"),
            ],
            "done",
        ),
        (
            chunk(reasoning="STOP") + chunk(content="b") + chunk("stop") + DONE,
            ("STOP",),
            [({**FIRST, "reasoning_content": "STOP"}, None), ({"content": "b"}, None), ({}, "stop")],
            "done",
        ),
        (chunk(content="a"), (), [({**FIRST, "content": "a"}, None)], None),
        (b": ping\n\n" + chunk(content="a"), (), [({**FIRST, "content": "a"}, None)], None),
    ],
)
def test_what_the_client_reads(
    data: bytes, stops: tuple[str, ...], said: list[tuple[Any, Any]], end: Ended | None
) -> None:
    chunks, ended, _ = run([data], *stops)
    assert deltas(chunks) == said
    assert ended == end


def test_a_chunk_has_openais_fields_and_no_path_of_the_machine() -> None:
    (first, last), _, _ = run([says("a")])
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "tiny"}
    said = {"index": 0, "delta": {**FIRST, "content": "a"}, "finish_reason": None}
    assert first == {**frame, "choices": [said]}
    assert last == {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_the_count_is_kept_for_whom_it_may_concern() -> None:
    chunks, _, stream = run([says("a", "b", "c")])
    assert all(chunk["choices"] for chunk in chunks)
    assert stream.usage == USAGE
    assert stream.generated == 3
    last = stream.usage_chunk(USAGE)
    assert (last["choices"], last["usage"], last["timings"]) == ([], USAGE, {"prompt_n": 24})
    assert last["model"] == "tiny"


def test_logprobs_travel_with_their_chunk_but_not_past_a_stop() -> None:
    data = chunk(content="a", logprobs=LOGPROBS) + chunk(content="b", logprobs=LOGPROBS)
    chunks, _, _ = run([data], "b")
    assert [chunk["choices"][0].get("logprobs") for chunk in chunks] == [LOGPROBS, None]


@pytest.mark.parametrize(
    ("broken", "code", "words"),
    [
        (event({"error": "boom"}), "engine_failed", "boom"),
        (event({"error": f"no such file: {FOLDER}"}), "engine_failed", "no such file: tiny"),
        (
            event(
                {"error": "Request needs 700 context tokens (600 prompt + 100 max generation), but MAX_KV_SIZE is 512."}
            ),
            "context_length_exceeded",
            "600",
        ),
        (event({"error": None}), "engine_failed", "failed"),
        (b"data: {\n\n", "engine_failed", "cannot be read"),
        (event([]), "engine_failed", "cannot be read"),
        (event({}), "engine_failed", "cannot be read"),
        (event({"id": 1, "object": "", "created": 1, "choices": [{}]}), "engine_failed", "cannot be read"),
        (event({"id": 1, "object": "", "created": 1, "choices": 5}), "engine_failed", "cannot be read"),
    ],
)
def test_an_error_in_the_middle_is_ours_and_what_came_before_is_said(broken: bytes, code: str, words: str) -> None:
    stream = ChatStream(MODEL, ChatAsked(SOMEBODY))
    step = stream.feed(chunk(content="a") + broken)
    assert text_of(list(step.chunks)) == "a"
    assert step.error is not None
    assert step.error.code == code
    assert words in step.error.message
    assert str(FOLDER) not in step.error.message


PIECES = st.lists(st.text("ab\nä😀", max_size=4), max_size=8)


@settings(deadline=None)
@given(PIECES, STOPS, st.data())
def test_bytes_cut_anywhere_give_the_same_answer(
    pieces: list[str], stops: tuple[str, ...], data: st.DataObject
) -> None:
    stream = says(*pieces)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    whole, end, _ = run([stream], *stops)
    assert run(pieces_of(stream, cuts), *stops)[:2] == (whole, end)


@settings(deadline=None)
@given(PIECES, STOPS)
def test_a_stop_anywhere_equals_cutting_the_whole_text(pieces: list[str], stops: tuple[str, ...]) -> None:
    chunks, end, _ = run([says(*pieces)], *stops)
    text, met = cut("".join(pieces), stops)
    assert text_of(chunks) == text
    assert end is (Ended.STOPPED if met else Ended.DONE)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_are_a_fault_of_ours(noise: bytes) -> None:
    run([chunk(content="a") + b"data: " + noise + b"\n\n" + usage_event() + DONE])


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "id",
                        "object",
                        "created",
                        "choices",
                        "delta",
                        "content",
                        "reasoning",
                        "finish_reason",
                        "usage",
                        "error",
                        "tool_calls",
                    ]
                ),
                inner,
                max_size=11,
            )
        ),
    )
)
def test_no_event_is_a_fault_of_ours(value: Any) -> None:
    chunks, _, _ = run([event(value)])
    json.dumps(chunks)
