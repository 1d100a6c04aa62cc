"""A real model answers a local client: listed, streamed, whole, cancelled, refused with numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fixtures.natures import NATURES, Nature
from tests.fixtures.running import HELLO, JSON, Running, chat

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=NATURES)
def nature(request: pytest.FixtureRequest) -> Nature:
    found: Nature = request.param
    return found


@pytest.fixture(scope="module")
def running(nature: Nature, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One application for all tests of an engine; they leave it as it was."""
    models = nature.models(tmp_path_factory.mktemp("models"), "hello", "endless")
    with Running(tmp_path_factory.mktemp("home"), (models,), settings=nature.settings) as app:
        yield app


def text_of(events: list[Any]) -> str:
    """What a streamed chat said."""
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


async def stream(app: Running, path: str, body: dict[str, Any]) -> tuple[httpx.Response, list[Any]]:
    """The response and its events: parsed, or the text as it is."""
    async with app.client() as client, client.stream("POST", path, json={**body, "stream": True}) as response:
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    return response, [json.loads(e) if e.startswith("{") else e for e in events]


async def test_the_models_are_listed_with_their_windows(running: Running) -> None:
    rows = {row["id"]: row for row in running.get("/v1/models")["data"]}
    assert set(rows) == {"hello", "endless"}
    assert rows["endless"]["trained_context_window"] == 131072
    assert rows["endless"]["context_window"] == 131072
    assert rows["endless"]["state"] == "unloaded"
    assert running.get("/v1/models/HELLO".lower()) == rows["hello"]


async def test_a_streamed_chat_says_its_sentence_and_ends(running: Running) -> None:
    response, events = await stream(running, "/v1/chat/completions", chat("hello"))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-plimsoll-model"] == "hello"
    assert events[-1] == "[DONE]"
    assert text_of(events[:-1]).strip() == HELLO


async def test_a_whole_chat_says_the_same_and_carries_the_turns_facts_in_its_headers(running: Running) -> None:
    _, events = await stream(running, "/v1/chat/completions", chat("hello"))
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("hello"))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == text_of(events[:-1])
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.headers["x-plimsoll-window"] == "4096"
    assert answer.headers["x-plimsoll-trained-window"] == "4096"
    assert int(answer.headers["x-plimsoll-queue-ms"]) >= 0


async def test_completions_stream_and_come_whole_or_are_refused(running: Running, nature: Nature) -> None:
    body = {"model": "hello", "prompt": "Say:\n", "max_tokens": 20, "temperature": 0}
    async with running.client() as client:
        if not nature.completions:
            for streamed in (False, True):
                refused = await client.post("/v1/completions", json={**body, "stream": streamed})
                assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_supported")
                assert "/v1/chat/completions" in refused.json()["error"]["message"]
            return
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    _, events = await stream(running, "/v1/completions", body)
    assert events[-1] == "[DONE]"
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == whole
    assert whole.strip() == HELLO


async def test_usage_comes_when_asked_for(running: Running) -> None:
    body = chat("hello", stream_options={"include_usage": True})
    _, events = await stream(running, "/v1/chat/completions", body)
    assert events[-2]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_unknown_model_is_a_404_with_close_names(running: Running, streamed: bool) -> None:
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("helo", stream=streamed))
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["code"] == "model_not_found"
    assert error["type"] == "invalid_request_error"
    assert "hello" in error["message"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_prompt_over_the_window_is_a_400_with_both_numbers(running: Running, streamed: bool) -> None:
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("hello", "x y " * 5000, stream=streamed))
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["context_window"] == 4096
    assert error["prompt_tokens"] > 4096
    assert f"{error['prompt_tokens']:,}" in error["message"]
    assert "4,096" in error["message"]


async def test_without_a_name_the_loaded_model_answers(running: Running) -> None:
    body = chat("hello")
    await stream(running, "/v1/chat/completions", body)
    del body["model"]
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["x-plimsoll-model"] == "hello"


async def test_what_the_servers_get_wrong_is_put_right(running: Running, nature: Nature) -> None:
    async with running.client() as client:

        async def ask(**more: Any) -> httpx.Response:
            return await client.post("/v1/chat/completions", json={**chat("hello"), "max_tokens": 4, **more})

        developer = await ask(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}])
        assert developer.status_code == 200
        few = await ask(max_tokens=None, max_completion_tokens=2)
        assert few.json()["usage"]["completion_tokens"] == 2
        if nature.enforces_json:
            as_object = await ask(response_format={"type": "json_object"}, max_tokens=8)
            assert as_object.json()["choices"][0]["message"]["content"].lstrip().startswith("{")
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        blind = await ask(messages=[{"role": "user", "content": image}])
        assert (blind.status_code, blind.json()["error"]["code"]) == (400, "media_not_supported")
        missing = await ask(tool_choice={"type": "function", "function": {"name": "f"}}, tools=[])
        assert missing.status_code == 400


async def test_status_and_events_tell_the_story(running: Running) -> None:
    async with running.client() as client, client.stream("GET", "/api/events") as events:
        lines = events.aiter_lines()
        await anext(lines)
        await client.post("/v1/chat/completions", json=chat("endless", max_tokens=2))
        kinds = []
        async for line in lines:
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
            if "child_ready" in kinds:
                break
    assert kinds[-2:] == ["child_loading", "child_ready"]
    (child,) = running.status()["children"]
    assert child["model"] == "endless"
    assert child["state"] == "ready"
    assert child["window"]["allocated"] == 131072
    assert child["pid"] in [p.pid for p in running.children()]


async def test_unload_and_load_by_the_api(running: Running) -> None:
    async with running.client() as client:
        assert (await client.post("/api/models/hello/load", headers=JSON)).json() == {
            "model": "hello",
            "state": "ready",
        }
        assert [c["model"] for c in running.status()["children"]] == ["hello"]
        await client.post("/api/models/hello/unload", headers=JSON)
        for _ in range(200):
            if not running.status()["children"]:
                break
        assert running.children() == []
