"""The real application with the MLX engine: one endpoint, whatever engine answers."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.natures import NO_MLX
from tests.fixtures.running import Running, chat
from tests.fixtures.tiny_mlx import make_tiny_mlx_text, make_tiny_mlx_vision

pytestmark = [pytest.mark.real, NO_MLX]

WINDOW = 4096
"""The floor of every window: a shorter one is the model's."""
NAME = "endless"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model that never stops by itself; a character is a token."""
    folder = tmp_path_factory.mktemp("mlx")
    make_tiny_mlx_text(folder / NAME, trained_window=WINDOW)
    return folder


@pytest.fixture
def app(start: Any, models: Path) -> Running:
    started: Running = start(models=(models,), settings='engine = "mlx"\n')
    return started


@pytest.fixture
async def client(app: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with app.client() as made:
        yield made


async def test_what_an_mlx_model_answers(client: httpx.AsyncClient, models: Path) -> None:
    """One run of the application for all of it: a load takes seconds."""
    (row,) = (await client.get("/v1/models")).json()["data"]
    model = row["id"]

    answer = await client.post("/v1/chat/completions", json=chat(model, max_tokens=12))
    assert answer.status_code == 200, answer.text
    value = answer.json()
    text = value["choices"][0]["message"]["content"]
    assert (value["model"], value["choices"][0]["finish_reason"], len(text)) == (model, "length", 12)
    assert answer.headers["x-plimsoll-window"] == str(WINDOW)
    prompt = value["usage"]["prompt_tokens"]

    streamed = await client.post("/v1/chat/completions", json=chat(model, max_tokens=12, stream=True))
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text
    assert str(models) not in streamed.text

    stop = text[6:8]
    cut = await client.post("/v1/chat/completions", json=chat(model, max_tokens=12, stop=stop))
    assert cut.json()["choices"][0]["message"]["content"] == text[: text.index(stop)]

    reduced = await client.post("/v1/chat/completions", json=chat(model, "x" * (WINDOW - 40), max_tokens=WINDOW))
    usage = reduced.json()["usage"]
    assert usage["total_tokens"] == WINDOW
    assert reduced.headers["x-plimsoll-max-tokens"] == str(usage["completion_tokens"])

    over = await client.post("/v1/chat/completions", json=chat(model, "x" * WINDOW, max_tokens=1))
    error = over.json()["error"]
    assert (over.status_code, error["code"]) == (400, "context_length_exceeded")
    assert (error["prompt_tokens"], error["context_window"]) == (WINDOW + prompt - len("Hi"), WINDOW)

    raw = await client.post("/v1/completions", json={"model": model, "prompt": "x"})
    assert (raw.status_code, raw.json()["error"]["code"]) == (400, "not_supported")


async def test_a_conversation_goes_on_in_its_prefix_cache(client: httpx.AsyncClient) -> None:
    first = {"role": "user", "content": "a" * 200}
    headers = {"x-conversation-id": "mine"}

    async def ask(messages: list[dict[str, str]]) -> tuple[str, int]:
        body = {"messages": messages, "max_tokens": 20, "temperature": 0}
        value = (await client.post("/v1/chat/completions", json=body, headers=headers)).json()
        return value["choices"][0]["message"]["content"], value["usage"]["prompt_tokens_details"]["cached_tokens"]

    text, _ = await ask([first])
    _, cached = await ask([first, {"role": "assistant", "content": text}, {"role": "user", "content": "b"}])
    assert cached >= 192
    _, other = await ask([{"role": "user", "content": "a" * 100 + "other"}])
    assert other == 0  # the history was rewritten: what lay there is gone


async def test_an_abandoned_answer_does_not_hold_the_next(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        await anext(answer.aiter_bytes())
    following = await client.post("/v1/chat/completions", json={**body, "stream": False, "max_tokens": 3})
    assert following.status_code == 200, following.text
    assert following.json()["usage"]["completion_tokens"] == 3


def picture(red: int) -> dict[str, Any]:
    """A part of a message: a small PNG of one colour, as a data URL."""
    from PIL import Image  # comes with mlx-vlm

    data = io.BytesIO()
    Image.new("RGB", (56, 56), (red, 0, 0)).save(data, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()},
    }


async def test_a_vision_model_is_given_the_picture_and_a_path_is_refused(start: Any, tmp_path: Path) -> None:
    make_tiny_mlx_vision(tmp_path / "models" / "seeing", trained_window=WINDOW)
    app: Running = start(models=(tmp_path / "models",), settings='engine = "mlx"\n')
    async with app.client() as client:
        (row,) = (await client.get("/v1/models")).json()["data"]
        assert "vision" in row["capabilities"] or "image" in row["capabilities"], row

        async def ask(*parts: dict[str, Any], **more: Any) -> httpx.Response:
            content = [{"type": "text", "text": "What is it?"}, *parts]
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, **more}
            return await client.post("/v1/chat/completions", json=body)

        blind, seeing = await ask(), await ask(picture(255))
        assert blind.status_code == 200, blind.text
        assert seeing.status_code == 200, seeing.text
        assert seeing.json()["usage"]["prompt_tokens"] > blind.json()["usage"]["prompt_tokens"]
        streamed = await ask(picture(255), stream=True)
        assert "data: [DONE]" in streamed.text
        for url in ("/etc/hostname", "file:///etc/hostname", "http://127.0.0.1:9/x.png"):
            refused = await ask({"type": "image_url", "image_url": {"url": url}})
            assert refused.status_code == 400, url
