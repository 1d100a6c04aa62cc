"""The known fields of a request are checked and named; all others travel on."""

from __future__ import annotations

from typing import Any

import pytest

from app.endpoint.errors import ApiError
from app.endpoint.requests import ChatRequest, Common, CompletionRequest, Message, check, check_media, place_of

USER = {"role": "user", "content": "Hi"}


def chat_with(**more: Any) -> dict[str, Any]:
    return {"messages": [USER], **more}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [USER, None]}, "messages[1]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        (chat_with(model=5), "model"),
        (chat_with(stream="true"), "stream"),
        (chat_with(stream=1), "stream"),
        (chat_with(stream_options=True), "stream_options"),
        (chat_with(max_tokens="5"), "max_tokens"),
        (chat_with(max_tokens=1.5), "max_tokens"),
        (chat_with(max_tokens=True), "max_tokens"),
        (chat_with(max_tokens=-2), "max_tokens"),
        (chat_with(max_completion_tokens=[]), "max_completion_tokens"),
        (chat_with(temperature="hot"), "temperature"),
        (chat_with(temperature=-0.1), "temperature"),
        (chat_with(temperature=True), "temperature"),
        (chat_with(top_p={}), "top_p"),
        (chat_with(top_k=1.5), "top_k"),
        (chat_with(n=0), "n"),
        (chat_with(seed="x"), "seed"),
        (chat_with(stop=5), "stop"),
        (chat_with(stop=["a", 5]), "stop"),
        (chat_with(stop=["a"] * 65), "stop"),
        (chat_with(logit_bias=5), "logit_bias"),
        (chat_with(user=5), "user"),
        (chat_with(tools={}), "tools"),
        (chat_with(tools=["f"]), "tools[0]"),
        (chat_with(tool_choice="maybe"), "tool_choice"),
        (chat_with(tool_choice=5), "tool_choice"),
        (chat_with(response_format="json"), "response_format"),
    ],
)
def test_a_wrong_field_of_a_chat_is_named(body: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(ChatRequest, body)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_request")
    assert error.param is not None
    assert error.param == place or error.param.startswith(place + "[")
    assert error.message.startswith(f"{error.param}: ")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["/etc/passwd"]}}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": "a", "suffix": 5}, "suffix"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(body: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(CompletionRequest, body)
    assert caught.value.param is not None
    assert caught.value.param.startswith(place)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, chat_with()),
        (ChatRequest, chat_with(model=None, stream=None, max_tokens=None, temperature=None, stop=None, tools=None)),
        (ChatRequest, chat_with(max_tokens=-1, temperature=0, top_p=1, top_k=0, n=1, seed=-1, stop=["a", "b"])),
        (ChatRequest, chat_with(temperature=0.5, stop="a", tool_choice="required", logit_bias=[[1, 2]])),
        (ChatRequest, chat_with(tool_choice={"type": "function", "function": {"name": "f"}}, tools=[{}])),
        (ChatRequest, chat_with(grammar=5, whatever={"deep": [1]})),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "5"}]}),
        (ChatRequest, {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]}),
        (CompletionRequest, {"prompt": ""}),
        (CompletionRequest, {"prompt": ["a", "b"]}),
        (CompletionRequest, {"prompt": [1, 2, 3]}),
        (CompletionRequest, {"prompt": []}),
    ],
)
def test_what_clients_send_is_let_through(kind: type[Common], body: dict[str, Any]) -> None:
    before = repr(body)
    checked = check(kind, body)
    assert checked.stream is None
    assert repr(body) == before


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ((), "body"),
        (("messages",), "messages"),
        (("messages", 0, "role"), "messages[0].role"),
        (("messages", 3, "content", "str"), "messages[3].content"),
        (("messages", 0, "content", "list[dict[str,any]]", 2), "messages[0].content[2]"),
        (("temperature", "float"), "temperature"),
        (("stop", "constrained-str"), "stop"),
        (("tool_choice", "literal['none','auto','required']"), "tool_choice"),
    ],
)
def test_a_place_reads_like_the_body(location: tuple[int | str, ...], place: str) -> None:
    assert place_of(location) == place


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
TEXT = {"type": "text", "text": "x"}


def message(*parts: dict[str, Any]) -> Message:
    return Message(role="user", content=list(parts))


@pytest.mark.parametrize(
    ("part", "modalities"),
    [
        (TEXT, ()),
        (IMAGE, ("image",)),
        ({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}, ("image",)),
        (AUDIO, ("audio",)),
        (AUDIO, ("image", "audio")),
    ],
)
def test_media_that_the_model_takes_travel(part: dict[str, Any], modalities: tuple[str, ...]) -> None:
    check_media([Message(role="system", content="x"), message(TEXT, part)], frozenset(modalities))


@pytest.mark.parametrize(
    "part",
    [
        *(
            {"type": "image_url", "image_url": {"url": url}}
            for url in (
                "http://169.254.169.254/latest",
                "https://evil.example/x.png",
                "file:///etc/passwd",
                "/etc/passwd",
                "data:text/html,<script>",
                " data:image/png;base64,AAAA",
                "ftp://x",
                "",
                None,
                5,
                ["data:image/png;base64,AAAA"],
            )
        ),
        {"type": "image_url"},
        {"type": "image_url", "image_url": []},
        {"type": "input_audio"},
        {"type": "input_audio", "input_audio": {"data": "http://evil.example/x.wav"}},
        {"type": "input_audio", "input_audio": {"data": "file:///x"}},
        {"type": "input_audio", "input_audio": {"data": 5}},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": ["text"]},
        {"type": "x" * 100_000},
        {},
    ],
)
def test_an_address_or_an_unknown_part_is_refused_with_its_place(part: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        check_media([message(TEXT, part)], frozenset({"image", "audio"}))
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content[1]")
    assert caught.value.message.startswith("messages[0].content[1]: ")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(("part", "what"), [(IMAGE, "image"), (AUDIO, "audio")])
def test_a_model_without_a_projector_is_not_sent_media(part: dict[str, Any], what: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_media([message(part)], frozenset())
    assert (caught.value.status, caught.value.code) == (400, "media_not_supported")
    assert what in caught.value.message
