"""One answer out of a stream: what OpenAI's client expects of a chat.completion."""

from __future__ import annotations

from typing import Any

import pytest

from app.endpoint.mlx.whole import WholeChat
from tests.app.endpoint.mlx.child import DONE, USAGE, chunk, says
from tests.app.endpoint.mlx.test_stream import CALL, LOGPROBS, MORE, run

SECOND = {"index": 1, "id": "c2", "type": "function", "function": {"name": "sub", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("data", "stops", "message", "reason"),
    [
        (says("He", "llo"), (), {"content": "Hello"}, "stop"),
        (says("a", reason="length"), (), {"content": "a"}, "length"),
        (says("one ST", "OP"), ("STOP",), {"content": "one "}, "stop"),
        (chunk("stop") + DONE, (), {"content": ""}, "stop"),
        (
            chunk(reasoning="h") + chunk(reasoning="m") + chunk(content="a") + chunk("stop") + DONE,
            (),
            {"content": "a", "reasoning_content": "hm"},
            "stop",
        ),
        (
            chunk(tool_calls=[CALL]) + chunk(tool_calls=[MORE]) + chunk("tool_calls", tool_calls=[SECOND]) + DONE,
            (),
            {
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
                ],
            },
            "tool_calls",
        ),
    ],
)
def test_a_message_is_put_together(data: bytes, stops: tuple[str, ...], message: dict[str, Any], reason: str) -> None:
    chunks, _, _ = run([data], *stops)
    whole = WholeChat()
    whole.add(chunks)
    answer = whole.answer(USAGE, {"prompt_n": 24})
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}],
        "usage": USAGE,
        "timings": {"prompt_n": 24},
    }


def test_logprobs_are_put_together_and_what_is_unknown_is_left_out() -> None:
    chunks, _, _ = run([chunk(content="a", logprobs=LOGPROBS) + chunk(content="b", logprobs=LOGPROBS) + chunk("stop")])
    whole = WholeChat()
    whole.add(chunks)
    answer = whole.answer(None, None)
    assert answer["choices"][0]["logprobs"] == {"content": LOGPROBS["content"] * 2}
    assert {"usage", "timings"}.isdisjoint(answer)
