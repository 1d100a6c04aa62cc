"""What an MLX child is asked: the table, and what we keep for ourselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.endpoint.body import encode
from app.endpoint.call import CHAT_PATH, COMPLETIONS_PATH
from app.endpoint.calls import chat_call
from app.endpoint.errors import ApiError
from app.endpoint.mlx import request as mlx
from app.endpoint.mlx.asked import ChatAsked
from app.host.model import Model
from engines.mlx.prefix_cache import conversation_of
from tests.app.endpoint.mlx.child import FOLDER, MODEL
from tests.fixtures.facts import facts

USER = {"role": "user", "content": "Hi"}
SAME = {
    "seed": 5,
    "messages": [USER],
    "stream": True,
    "stream_options": {"include_usage": True},
    "context_management": [],
    "model": str(FOLDER),
}


def changed(**more: Any) -> dict[str, Any]:
    """What differs from the plainest request."""
    body = mlx.rewrite({"model": "tiny", "messages": [USER], **more}, MODEL, 5)
    return {name: body.get(name) for name in body.keys() | SAME.keys() if body.get(name) != SAME.get(name)}


@pytest.mark.parametrize(
    ("given", "different"),
    [
        ({}, {}),
        ({"stream": False}, {}),
        ({"stream": True, "stream_options": {"include_usage": False}}, {}),
        ({"context_management": [{"type": "compaction", "compact_threshold": 10}]}, {}),
        ({"max_tokens": 9}, {}),
        ({"max_completion_tokens": 9}, {}),
        ({"stop": ["x"], "n": 1}, {}),
        ({"temperature": None, "seed": None, "tools": None, "adapter_path": None, "n": None}, {}),
        ({"temperature": 0.5, "seed": 7}, {"temperature": 0.5, "seed": 7}),
        ({"repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.1}, {"repetition_penalty": 1.2}),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
        ({"chat_template_kwargs": 5}, {}),
        ({"user": "me", "metadata": {}, "tool_parser": "x", "draft_model": "/etc"}, {}),
        ({"seed": -1}, {}),
        ({"top_logprobs": 0, "logprobs": True}, {"logprobs": True}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100.0}}),
        ({"logit_bias": [[5, 1.5], [6, -1]]}, {"logit_bias": {"5": 1.5, "6": -1.0}}),
        ({"messages": [{"role": "developer", "content": "x"}]}, {"messages": [{"role": "developer", "content": "x"}]}),
        (
            {"tools": [{"type": "function"}], "tool_choice": "required"},
            {"tools": [{"type": "function"}], "tool_choice": "required"},
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,QQ=="}]}
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}],
                    }
                ]
            },
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "input_audio", "input_audio": {"data": "QUI=", "format": "mp3"}}],
                    }
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "input_audio",
                                "input_audio": {"format": "mp3", "data": "data:audio/wav;base64,QUI="},
                            }
                        ],
                    }
                ]
            },
        ),
    ],
)
def test_the_child_is_asked(given: dict[str, Any], different: dict[str, Any]) -> None:
    assert changed(**given) == different


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"n": 2}, "n", "not_supported"),
        ({"max_tokens": 0}, "max_tokens", "invalid_request"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens", "invalid_request"),
        ({"grammar": "root ::= x"}, "grammar", "not_supported"),
        ({"json_schema": {}}, "json_schema", "not_supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not_supported"),
        ({"adapter_path": "/etc"}, "adapter_path", "invalid_request"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_request"),
        ({"logit_bias": {"a word": 1}}, "logit_bias", "invalid_request"),
        ({"logit_bias": {"5": None}}, "logit_bias", "invalid_request"),
        (
            {
                "messages": [
                    USER,
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "/etc/passwd.wav"}}]},
                ]
            },
            "messages[1].content[0]",
            "invalid_request",
        ),
    ],
)
def test_a_request_that_the_child_would_take_wrongly_is_refused(given: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        changed(**given)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)


@pytest.mark.parametrize("format_", ["wav", "x,../../etc/passwd", "wav;base64,x", 5, None])
def test_no_format_of_audio_becomes_a_reference(format_: Any) -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": format_}}
    body = mlx.rewrite({"messages": [{"role": "user", "content": [part]}]}, MODEL, 5)
    assert body["messages"][0]["content"][0]["input_audio"]["data"] == "data:audio/wav;base64,AAAA"


def test_the_clients_body_is_left_as_it_was() -> None:
    body = {"model": "tiny", "messages": [USER], "stop": "x", "n": 1, "repeat_penalty": 1.1}
    before = json.dumps(body)
    mlx.rewrite(body, MODEL, 5)
    assert json.dumps(body) == before


@pytest.mark.parametrize(
    ("given", "budget", "stops", "usage"),
    [
        ({}, None, (), False),
        ({"max_tokens": 9}, 9, (), False),
        ({"max_tokens": -1}, None, (), False),
        ({"max_tokens": 9, "max_completion_tokens": 8}, 8, (), False),
        ({"max_tokens": 9, "max_completion_tokens": None}, 9, (), False),
        ({"stop": "x"}, None, ("x",), False),
        ({"stop": ["x", "", "y"]}, None, ("x", "y"), False),
        ({"stop": None, "stream_options": None}, None, (), False),
        ({"stream_options": {"include_usage": True}}, None, (), True),
    ],
)
def test_what_we_do_ourselves(given: dict[str, Any], budget: int | None, stops: tuple[str, ...], usage: bool) -> None:
    body = {"messages": [USER], **given}
    assert mlx.chat_asked(body, "me") == ChatAsked(conversation_of(body, "me"), budget, stops, usage)


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ({"tools": [{"type": "function"}]}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
    ],
)
def test_whether_an_answer_may_call_tools(given: dict[str, Any], tools: bool) -> None:
    assert mlx.chat_asked({"messages": [USER], **given}, "me").tools is tools


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1), st.integers(0, 2**40))
def test_a_budget_is_put_into_the_bytes(body: dict[str, Any], tokens: int) -> None:
    body.pop("max_tokens", None)
    body["model"] = "m"
    assert json.loads(mlx.with_budget(encode(body), tokens)) == {**body, "max_tokens": tokens}


def test_every_row_has_a_reason() -> None:
    assert all(row.name and row.reason for row in mlx.TABLE)


def test_the_format_of_the_model_decides() -> None:
    body = {"messages": [USER], "max_completion_tokens": 5}
    chat = chat_call(MODEL, CHAT_PATH, body, stream=False, conversation=None)
    assert chat.mlx is not None
    assert not chat.stream
    gguf = chat_call(Model("tiny", "Tiny", facts()), CHAT_PATH, body, stream=True, conversation=None)
    assert gguf.mlx is None
    assert json.loads(gguf.body) == {"messages": [USER], "max_tokens": 5, "model": "tiny"}


def test_seeds_differ_from_chat_to_chat() -> None:
    seeds = {chat_call(MODEL, CHAT_PATH, {"messages": [USER]}, stream=True, conversation=None).body for _ in range(4)}
    assert len(seeds) > 1


def test_completions_are_refused_with_a_way_out() -> None:
    with pytest.raises(ApiError, match="/v1/chat/completions") as refused:
        chat_call(MODEL, COMPLETIONS_PATH, {"prompt": "x"}, stream=True, conversation=None)
    assert (refused.value.status, refused.value.code) == (400, "not_supported")
