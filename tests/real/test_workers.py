"""Small workers beside a chat: embeddings and reranking by real children, and what the chat pays for them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from engines.memory.bill import SHARE
from tests.fixtures import tiny_gguf
from tests.fixtures.running import Running, chat

pytestmark = pytest.mark.real

ROUNDS = 20
CHAT_TOKENS = 200
LONG = 2000
"""Tokens of the long input: four times what a llama-server takes of an embedding at once unless it is told more."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that chat, one that embeds, one that ranks."""
    folder = tmp_path_factory.mktemp("workers")
    tiny_gguf.make(folder / "talker.gguf", say="lorem ipsum dolor", loop=True, ctx=8192, name="talker")
    tiny_gguf.make(folder / "other.gguf", say="I am the other one.", ctx=4096, name="other")
    tiny_gguf.make(folder / "embedder.gguf", arch="qwen3", ctx=32_768, pooling="mean", name="embedder")
    tiny_gguf.make(folder / "ranker.gguf", arch="qwen3", ctx=4096, pooling="rank", name="ranker")
    return folder


@pytest.fixture
def app(start: Any, models: Path) -> Running:
    """Room for one model besides the workers."""
    started: Running = start(models=(models,), settings="max_models = 1\n")
    return started


@pytest.fixture
async def client(app: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with app.client() as made:
        yield made


async def embed(client: httpx.AsyncClient, text: str, **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/embeddings", json={"model": "embedder", "input": text, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def talk(client: httpx.AsyncClient, model: str = "talker", tokens: int = CHAT_TOKENS) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(model, max_tokens=tokens))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plimsoll-model"] == model


def vector(answer: dict[str, Any]) -> list[float]:
    (row,) = answer["data"]
    found: list[float] = row["embedding"]
    return found


def pids(app: Running) -> dict[str, int]:
    return {child["model"]: child["pid"] for child in app.status()["children"]}


def in_words(what: str, seconds: list[float]) -> str:
    return f"{what}: median {median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms of {len(seconds)}"


async def test_an_embedder_and_a_chat_are_served_side_by_side_within_the_budget(
    app: Running, client: httpx.AsyncClient
) -> None:
    """Twenty of each at the same time; the times are in the test's output (``-rP``).

    The machine has one slot, so an embedding that takes milliseconds waits for the answer before it.
    """
    alone: dict[str, list[float]] = {"chat": [], "embedding": []}
    beside: dict[str, list[float]] = {"chat": [], "embedding": []}

    async def timed(into: dict[str, list[float]], what: str) -> None:
        began = time.perf_counter()
        await (talk(client) if what == "chat" else embed(client, f"The sea, {len(into[what])} fathoms deep."))
        into[what].append(time.perf_counter() - began)

    async def many(into: dict[str, list[float]], what: str) -> None:
        for _ in range(ROUNDS):
            await timed(into, what)

    await asyncio.gather(talk(client), embed(client, "warm"))
    before = pids(app)
    assert set(before) == {"talker", "embedder"}
    await many(alone, "chat")
    await many(alone, "embedding")
    await asyncio.gather(many(beside, "chat"), many(beside, "embedding"))
    for name, times in (("alone", alone), ("side by side", beside)):
        for what, seconds in times.items():
            print(in_words(f"{what} {name}", seconds))

    assert pids(app) == before
    measured = [child["memory"]["measured"] for child in app.status()["children"]]
    print(f"both hold {sum(measured) / 2**20:.0f} MiB")
    assert sum(measured) <= SHARE * psutil.virtual_memory().total
    assert app.log().count(" serves on port ") == 2
    assert [n for n in app.notices() if n["kind"] != "bound"] == []


async def test_with_room_for_one_chat_the_embedder_stays_when_chats_change(
    app: Running, client: httpx.AsyncClient
) -> None:
    await talk(client)
    chatting = pids(app)
    await embed(client, "hello")
    assert chatting.items() <= pids(app).items()  # the chat was not sent away for it
    embedding = pids(app)["embedder"]
    await talk(client, "other", 4)
    assert pids(app).keys() == {"other", "embedder"}
    assert pids(app)["embedder"] == embedding


async def test_the_same_input_has_the_same_embedding_whatever_else_runs(
    app: Running, client: httpx.AsyncClient
) -> None:
    first = vector(await embed(client, "A plain sentence."))
    assert math.isclose(math.hypot(*first), 1.0, abs_tol=1e-3)
    await embed(client, "1" * LONG)
    _, again = await asyncio.gather(talk(client), embed(client, "A plain sentence."))
    assert vector(again) == pytest.approx(first, abs=1e-5)
    assert vector(await embed(client, "Another.")) != pytest.approx(first, abs=1e-2)


async def test_an_input_of_two_thousand_tokens_is_embedded(app: Running, client: httpx.AsyncClient) -> None:
    answer = await embed(client, "1" * LONG)  # every digit is a token
    assert answer["usage"]["prompt_tokens"] >= LONG
    assert any(vector(answer))
    many = await client.post("/v1/embeddings", json={"model": "embedder", "input": ["one", "two", "1" * LONG]})
    assert [row["index"] for row in many.json()["data"]] == [0, 1, 2]


async def test_an_input_beyond_the_window_is_refused_and_the_worker_stays(
    app: Running, client: httpx.AsyncClient
) -> None:
    await embed(client, "hello")
    before = pids(app)
    window = app.status()["children"][0]["window"]["allocated"]
    refused = await client.post("/v1/embeddings", json={"model": "embedder", "input": "1" * (window + 1)})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"]
    await embed(client, "hello")
    assert pids(app) == before


async def test_without_a_name_the_worker_of_the_kind_answers(app: Running, client: httpx.AsyncClient) -> None:
    await talk(client)
    answer = await client.post("/v1/embeddings", json={"input": "hello"})
    assert answer.headers["x-plimsoll-model"] == "embedder"
    answer = await client.post("/v1/rerank", json={"query": "hello", "documents": ["hello"]})
    assert answer.headers["x-plimsoll-model"] == "ranker"


async def test_documents_are_ranked(app: Running, client: httpx.AsyncClient) -> None:
    documents = ["The sea.", "A ship at sea.", "Bread."]
    body = {"model": "ranker", "query": "ship", "documents": documents}
    answer = await client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert sorted(row["index"] for row in results) == [0, 1, 2]
    scores = {row["index"]: row["relevance_score"] for row in results}
    best = await client.post("/v1/rerank", json={**body, "top_n": 1})
    assert [row["index"] for row in best.json()["results"]] == [max(scores, key=lambda index: scores[index])]


@pytest.mark.parametrize(
    ("path", "body", "can"),
    [
        ("/v1/embeddings", {"model": "talker", "input": "hello"}, "embedder"),
        ("/v1/embeddings", {"model": "ranker", "input": "hello"}, "embedder"),
        ("/v1/rerank", {"model": "talker", "query": "a", "documents": ["b"]}, "ranker"),
        ("/v1/rerank", {"model": "embedder", "query": "a", "documents": ["b"]}, "ranker"),
    ],
)
async def test_a_model_of_another_kind_is_refused_with_the_name_of_one_that_can(
    app: Running, client: httpx.AsyncClient, path: str, body: dict[str, Any], can: str
) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("wrong_kind_of_model", "model")
    assert can in error["message"]
    assert app.status()["children"] == []  # refused before anything is loaded


@pytest.mark.parametrize("name", ["embedder", "ranker"])
async def test_a_worker_asked_to_chat_is_refused(app: Running, client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(name))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "wrong_kind_of_model"


async def test_where_no_model_ranks_the_refusal_says_so(start: Any, tiny_models: Path) -> None:
    app: Running = start(models=(tiny_models,))
    async with app.client() as client:
        answer = await client.post("/v1/rerank", json={"model": "hello", "query": "a", "documents": ["b"]})
    assert answer.status_code == 400
    assert "There is no rerank model" in answer.json()["error"]["message"]
