"""The relay over a real mlx_vlm server: what its source seems to say is proven here."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from aiohttp import web

from app.endpoint.call import CHAT_PATH, Call
from app.endpoint.calls import chat_call
from app.endpoint.mlx.request import CONVERSATION_HEADER
from engines.child.probe import TRUSTS_NOBODY
from tests.app.endpoint.mlx.child import DONE, KeepingChild
from tests.app.endpoint.mlx.server import MlxServer, serving_mlx
from tests.app.endpoint.upstream import FakeHost, relay_to
from tests.fixtures.tiny_mlx import TEMPLATE, make_tiny_mlx_text

pytestmark = pytest.mark.real

WINDOW = 512
TEXT = "hello"
THINKS = TEMPLATE + "{% if enable_thinking %}<think>\n{% endif %}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlxServer]:
    """A tiny model that never stops by itself: one character is one token."""
    folder = make_tiny_mlx_text(
        tmp_path_factory.mktemp("mlx") / "tiny model", trained_window=WINDOW, chat_template=THINKS
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with serving_mlx(folder, port, WINDOW) as made:
        yield made


@dataclass
class Asker:
    """A client of a relay over that server."""

    client: httpx.AsyncClient
    child: KeepingChild

    async def chat(self, text: str = TEXT, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        """One chat."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}
        return await self.client.post(CHAT_PATH, json=body, headers=headers)


@pytest.fixture
async def ask(server: MlxServer) -> AsyncIterator[Asker]:
    child = server.child()

    def make_call(request: web.Request, body: bytes) -> Call:
        value = json.loads(body)
        conversation = request.headers.get(CONVERSATION_HEADER)
        stream = value.get("stream") is True
        return chat_call(server.model, request.path, value, stream=stream, conversation=conversation)

    async with relay_to(FakeHost(child), make_call) as port:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=TRUSTS_NOBODY, timeout=120
        ) as client:
            yield Asker(client, child)


def values(answer: httpx.Response) -> list[Any]:
    """The events of a finished stream but for its end."""
    assert answer.status_code == 200, answer.text
    *events, end = answer.content.removesuffix(b"\n\n").split(b"\n\n")
    assert end + b"\n\n" == DONE
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def text_of(answer: httpx.Response) -> str:
    """Of a stream or of a whole answer."""
    if answer.headers["content-type"].startswith("application/json"):
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    choices = [choice for value in values(answer) for choice in value["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def prompt_tokens(ask: Asker) -> int:
    """Of the plain chat."""
    usage = (await ask.chat(max_tokens=1)).json()["usage"]
    tokens: int = usage["prompt_tokens"]
    return tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_a_budget_is_kept(ask: Asker, stream: bool) -> None:
    answer = await ask.chat(max_completion_tokens=12, stream=stream)
    assert len(text_of(answer)) == 12
    if not stream:
        value = answer.json()
        assert value["choices"][0]["finish_reason"] == "length"
        assert value["usage"]["completion_tokens"] == 12
        assert value["model"] == "tiny"
    assert "x-plimsoll-max-tokens" not in answer.headers


async def test_a_stream_looks_like_openais(ask: Asker, server: MlxServer) -> None:
    answer = await ask.chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage = values(answer)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [("role" in delta) for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert {chunk["model"] for chunk in [*chunks, usage]} == {"tiny"}
    assert str(server.model.facts.files[0].parent) not in answer.text


async def test_without_a_budget_the_answer_fills_the_window(ask: Asker) -> None:
    answer = await ask.chat()
    usage = answer.json()["usage"]
    assert usage["total_tokens"] == WINDOW
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert ask.child.told[-1] == (False, WINDOW)


async def test_a_budget_over_the_window_is_reduced_and_said(ask: Asker) -> None:
    prompt = await prompt_tokens(ask)
    answer = await ask.chat(max_tokens=WINDOW)
    assert answer.headers["x-plimsoll-max-tokens"] == str(WINDOW - prompt)
    assert answer.json()["plimsoll"]["reduced_max_tokens"] == WINDOW - prompt
    assert answer.json()["usage"]["completion_tokens"] == WINDOW - prompt


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_over_the_window_is_the_400_with_numbers(ask: Asker, stream: bool) -> None:
    around = await prompt_tokens(ask) - len(TEXT)
    answer = await ask.chat("x" * 1000, max_tokens=1, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert (error["prompt_tokens"], error["context_window"]) == (1000 + around, WINDOW)


async def test_a_long_history_is_never_compacted(ask: Asker) -> None:
    turns = [{"role": role, "content": "y" * 60} for role in ("user", "assistant") * 6]
    answer = await ask.chat(messages=[*turns, {"role": "user", "content": "z"}])
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["prompt_tokens"] > 12 * 60


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("more", [{}, {"max_tokens": 60}])
async def test_a_stop_sequence_cuts_where_the_whole_text_is_cut(
    ask: Asker, stream: bool, length: int, more: dict[str, Any]
) -> None:
    whole = text_of(await ask.chat(max_tokens=60))
    stop = whole[20 : 20 + length]
    answer = await ask.chat(stop=[stop, "never"], stream=stream, stream_options={"include_usage": True}, **more)
    assert text_of(answer) == whole[: whole.index(stop)]
    usage = values(answer)[-1]["usage"] if stream else answer.json()["usage"]
    assert usage["prompt_tokens"] == await prompt_tokens(ask)
    assert usage["completion_tokens"] == whole.index(stop) + length
    abandoned = [told for told in ask.child.told if isinstance(told, tuple) and told[0]]
    assert abandoned == [(True, usage["total_tokens"])]


async def test_a_client_that_leaves_frees_the_child(ask: Asker, server: MlxServer) -> None:
    body = {"messages": [{"role": "user", "content": TEXT}], "stream": True}
    async with ask.client.stream("POST", CHAT_PATH, json=body) as response:
        await anext(response.aiter_bytes())
    begun = time.monotonic()
    await ask.chat(max_tokens=1)
    assert time.monotonic() - begun < 5
    abandoned = [told[0] for told in ask.child.told if isinstance(told, tuple)]
    assert abandoned == [True, False]


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"n": 2}, 400, "one answer"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "refused"),
        ({"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].role"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"tool_choice": "required"}, 400, "tool"),
        ({"response_format": {"type": "xml"}}, 400, "response_format"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_says_so(
    ask: Asker, server: MlxServer, more: dict[str, Any], status: int, words: str
) -> None:
    answer = await ask.chat(**{"max_tokens": 2, **more})
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert str(server.model.facts.files[0].parent) not in answer.text


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": None, "top_p": None, "seed": None, "tools": None},
        {"messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"logit_bias": [[70, -100]]},
        {"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "required"},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True},
    ],
)
async def test_what_clients_send_is_taken(ask: Asker, more: dict[str, Any]) -> None:
    answer = await ask.chat(max_tokens=2, **more)
    assert answer.status_code == 200, answer.text


async def test_logprobs_come_with_the_answer(ask: Asker) -> None:
    choice = (await ask.chat(max_tokens=3, logprobs=True)).json()["choices"][0]
    assert len(choice["logprobs"]["content"]) == 3


async def test_a_schema_is_held_to_or_the_lack_of_metal_is_said(ask: Asker) -> None:
    """MLX masks tokens by a Metal kernel: its CPU build cannot."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = await ask.chat(response_format=wanted, max_tokens=100)
    if answer.status_code == 200:
        assert text_of(answer).lstrip().startswith("{")
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (502, "engine_failed")
        assert "No Metal back-end" in error["message"]


async def test_the_loaded_model_stays_whatever_the_client_calls_it(ask: Asker, server: MlxServer) -> None:
    await ask.chat(max_tokens=1, model="another name")
    assert server.get("/health").json()["loaded_model"] == str(server.model.facts.files[0].parent)


async def test_an_image_for_a_text_model_is_never_fetched_from_the_machine(ask: Asker) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no image").decode()
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": url}]
    answer = await ask.chat(messages=[{"role": "user", "content": content}], max_tokens=2)
    assert answer.status_code in {200, 400}, answer.text


@pytest.mark.parametrize("stream", [True, False])
async def test_what_it_thinks_is_reasoning_content(ask: Asker, stream: bool) -> None:
    answer = await ask.chat(enable_thinking=True, max_tokens=8, stream=stream)
    if stream:
        deltas = [choice["delta"] for value in values(answer) for choice in value["choices"]]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert not any("reasoning" in delta for delta in deltas)
    else:
        message = answer.json()["choices"][0]["message"]
        thought = message["reasoning_content"]
        assert message["content"] == ""
    assert len(thought) == 8
