"""Embeddings and reranking by real MLX children, beside an MLX chat model, and that none of it is cut without a word.

One application for all of it: a load takes seconds.
"""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.endpoint.mlx.worker_passes import PROMPT_TOKENS, SPECIAL_TOKENS, passes
from engines.memory.mlx_budget import WORKER_TOKENS
from tests.fixtures.natures import MLX, NO_MLX
from tests.fixtures.running import Running, chat

pytestmark = [pytest.mark.real, NO_MLX]

WINDOW = 256
"""Tokens of a text to embed, or of a pair to rank; a byte is a token."""
JUDGE_WINDOW = 512
"""Tokens of a prompt of the judge, most of which are the server's own words."""
WIDE_WINDOW = 32_768
EMBEDDER, WIDE, RANKER, JUDGE, TALKER, OTHER = "embedder", "wide-embedder", "ranker", "rerank-judge", "talker", "other"
DOCUMENTS = ["The sea.", "A ship at sea.", "Bread."]
MARK = "<|im_end|>"
"""One token of ten bytes."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that chat, two that embed, two that rank: by a number and by yes or no."""
    from tests.fixtures.tiny_mlx_workers import make_tiny_mlx_embedder, make_tiny_mlx_judge, make_tiny_mlx_ranker

    folder = MLX.models(tmp_path_factory.mktemp("workers"), TALKER, OTHER)
    make_tiny_mlx_embedder(folder / EMBEDDER, trained_window=WINDOW)
    make_tiny_mlx_embedder(folder / WIDE, trained_window=WIDE_WINDOW)
    make_tiny_mlx_ranker(folder / RANKER, trained_window=WINDOW)
    make_tiny_mlx_judge(folder / JUDGE, trained_window=JUDGE_WINDOW)
    return folder


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Running]:
    """Room for one model besides the workers."""
    with Running(tmp_path_factory.mktemp("home"), (models,), settings=f"{MLX.settings}max_models = 1\n") as started:
        yield started


@pytest.fixture
async def client(app: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with app.client() as made:
        yield made


async def embed(client: httpx.AsyncClient, given: str | list[str], **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/embeddings", json={"model": EMBEDDER, "input": given, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plimsoll-window"] == str(WINDOW)
    found: dict[str, Any] = answer.json()
    return found


async def rank(client: httpx.AsyncClient, model: str, query: str, documents: list[str], **more: Any) -> dict[str, Any]:
    body = {"model": model, "query": query, "documents": documents, **more}
    answer = await client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refusal(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def pids(app: Running) -> dict[str, int]:
    return {child["model"]: child["pid"] for child in app.status()["children"]}


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    assert [row["index"] for row in answer["data"]] == list(range(len(answer["data"])))
    return [row["embedding"] for row in answer["data"]]


async def test_models_of_another_kind_are_refused_before_anything_is_loaded(
    app: Running, client: httpx.AsyncClient
) -> None:
    """First of all: no child serves yet."""
    ranks = {"query": "a", "documents": ["b"]}
    for path, name, can in (
        ("/v1/embeddings", TALKER, EMBEDDER),
        ("/v1/embeddings", RANKER, EMBEDDER),
        ("/v1/rerank", TALKER, RANKER),
        ("/v1/rerank", EMBEDDER, JUDGE),
    ):
        error = await refusal(client, path, {"model": name, "input": "a", **ranks})
        assert (error["code"], error["param"]) == ("wrong_kind_of_model", "model")
        assert can in error["message"]
    for name in (EMBEDDER, RANKER, JUDGE):
        error = await refusal(client, "/v1/chat/completions", chat(name))
        assert error["code"] == "wrong_kind_of_model"
    tokens = await refusal(client, "/v1/embeddings", {"model": EMBEDDER, "input": [1, 2, 3]})
    assert (tokens["code"], tokens["param"]) == ("not_supported", "input")
    assert pids(app) == {}


async def test_texts_become_vectors_as_floats_or_as_base64(client: httpx.AsyncClient, models: Path) -> None:
    one = await embed(client, "The sea.")
    (sea,) = vectors(one)
    assert math.isclose(math.hypot(*sea), 1.0, abs_tol=1e-3)
    assert (one["model"], one["usage"]["prompt_tokens"]) == (EMBEDDER, len("The sea."))

    several = await embed(client, DOCUMENTS)
    assert str(models) not in str(several)
    found = vectors(several)
    assert found[0] == pytest.approx(sea, abs=1e-4)
    assert found[1] != pytest.approx(sea, abs=1e-2)

    packed = await embed(client, DOCUMENTS, encoding_format="base64")
    for row, vector in zip(packed["data"], found, strict=True):
        assert struct.unpack(f"<{len(vector)}f", base64.b64decode(row["embedding"])) == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("x" * (WINDOW - 1), None),
        ("x" * WINDOW, "input"),
        ("\u00e9" * (WINDOW // 2), "input"),
        (MARK * (WINDOW - 1), None),  # ten times as many bytes
        (MARK * WINDOW, "input"),
        (["short", "x" * (WINDOW - 1)], None),
        (["short", "x" * 4 * WINDOW], "input[1]"),
    ],
)
async def test_a_text_is_embedded_whole_or_refused(
    client: httpx.AsyncClient, given: str | list[str], place: str | None
) -> None:
    if place is None:
        text = given if isinstance(given, str) else "".join(given)
        answer = await embed(client, given)
        assert answer["usage"]["prompt_tokens"] == len(text.replace(MARK, "1"))
        return
    error = await refusal(client, "/v1/embeddings", {"model": EMBEDDER, "input": given})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert (error["prompt_tokens"], error["context_window"]) == (WINDOW, WINDOW)  # the server did cut it
    assert error["message"].startswith(f"{place} has {WINDOW:,} tokens or more")


async def test_the_vectors_of_many_passes_are_those_of_each_text_alone(client: httpx.AsyncClient) -> None:
    """Short ones of all lengths, and some that may be too long among them."""
    texts = [f"{number} is " + "abc " * (number * 2 % 59) for number in range(40)]
    for number in (0, 7, 39):
        texts[number] = MARK * (WINDOW - 1 - number)
    sizes = [len(text) + SPECIAL_TOKENS for text in texts]
    assert [len(numbers) for numbers in passes(sizes, WINDOW, len(sizes))] == [1, 1, 1, 35, 2]

    whole = await embed(client, texts)
    alone = [await embed(client, text) for text in texts]
    for found, one in zip(vectors(whole), alone, strict=True):
        assert found == pytest.approx(vectors(one)[0], abs=1e-4)
    assert whole["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


async def test_a_wide_worker_has_the_window_that_its_server_takes(client: httpx.AsyncClient) -> None:
    (row,) = [row for row in (await client.get("/v1/models")).json()["data"] if row["id"] == WIDE]
    assert (row["context_window"], row["trained_context_window"]) == (WORKER_TOKENS, WIDE_WINDOW)
    answer = await client.post("/v1/embeddings", json={"model": WIDE, "input": "hello"})
    assert answer.headers["x-plimsoll-window"] == str(WORKER_TOKENS)


@pytest.mark.parametrize("name", [RANKER, JUDGE])
async def test_documents_are_ranked_by_what_they_say(client: httpx.AsyncClient, name: str) -> None:
    answer = await rank(client, name, "ship", DOCUMENTS)
    scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
    assert answer["model"] == name
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert sorted(scores) == [0, 1, 2]
    assert all(0 < score < 1 for score in scores.values())
    assert len(set(scores.values())) == 3

    turned = await rank(client, name, "ship", DOCUMENTS[::-1])
    again = {2 - row["index"]: row["relevance_score"] for row in turned["results"]}
    assert again == pytest.approx(scores, abs=1e-4)

    best = await rank(client, name, "ship", DOCUMENTS, top_n=1, return_documents=True)
    (row,) = best["results"]
    first = max(scores, key=lambda index: scores[index])
    assert (row["index"], row["document"]) == (first, DOCUMENTS[first])


@pytest.mark.parametrize(("name", "count"), [(RANKER, 14), (JUDGE, 4)])
async def test_a_ranking_in_many_passes_is_that_of_each_document_alone(
    client: httpx.AsyncClient, name: str, count: int
) -> None:
    """Of the judge each document may be too long: the server's own words nearly fill its window."""
    documents = [f"{number} " + "sea " * number for number in range(count)]
    documents[1], documents[3] = MARK * 100, MARK * 50
    whole = await rank(client, name, "ship", documents)
    alone = [await rank(client, name, "ship", [document]) for document in documents]
    scores = [answer["results"][0]["relevance_score"] for answer in alone]
    found = [row["relevance_score"] for row in whole["results"]]
    assert [row["index"] for row in whole["results"]] == sorted(range(count), key=lambda index: -scores[index])
    assert found == pytest.approx(sorted(scores, reverse=True), abs=1e-4)
    assert whole["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)

    best = await rank(client, name, "ship", documents, top_n=2, return_documents=True)
    for row, same in zip(best["results"], whole["results"][:2], strict=True):
        assert (row["index"], row["document"]) == (same["index"], documents[same["index"]])
        assert row["relevance_score"] == pytest.approx(same["relevance_score"], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "window", "most"), [(RANKER, WINDOW, SPECIAL_TOKENS), (JUDGE, JUDGE_WINDOW, PROMPT_TOKENS)]
)
async def test_a_document_is_ranked_whole_or_refused(
    client: httpx.AsyncClient, name: str, window: int, most: int
) -> None:
    smallest = await rank(client, name, "q", ["d"])
    added = smallest["usage"]["prompt_tokens"] - 2
    assert added <= most  # what is short by its bytes is never too long
    room = window - added - 2

    fits = await rank(client, name, "q", ["d", "x" * room])
    assert fits["usage"]["prompt_tokens"] == (window - 1) + (added + 2)
    many = await rank(client, name, "q", ["d", MARK * room])
    assert many["usage"]["prompt_tokens"] == (window - 1) + (added + 2)

    for query, documents, place in (
        ("q", ["d", "x" * (room + 1)], 1),
        ("q" * 2, ["x" * room], 0),
        ("q" * 2 * window, ["d"], 0),
        ("q", ["d"] * 9 + ["x" * 4 * window], 9),
    ):
        body = {"model": name, "query": query, "documents": documents}
        error = await refusal(client, "/v1/rerank", body)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "documents")
        assert error["context_window"] == window
        assert error["prompt_tokens"] >= window
        assert error["message"].startswith(f"documents[{place}] has {window:,} tokens or more")


async def test_workers_stay_beside_one_chat_model_when_chats_change(app: Running, client: httpx.AsyncClient) -> None:
    async def talk(name: str) -> None:
        answer = await client.post("/v1/chat/completions", json=chat(name, max_tokens=8))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-plimsoll-model"] == name

    before = vectors(await embed(client, "A plain sentence."))
    worker = pids(app)[EMBEDDER]
    await talk(TALKER)
    _, beside = await asyncio.gather(talk(TALKER), embed(client, "A plain sentence."))
    assert vectors(beside)[0] == pytest.approx(before[0], abs=1e-5)
    assert {TALKER, EMBEDDER} <= pids(app).keys()
    await talk(OTHER)
    assert OTHER in pids(app)
    assert TALKER not in pids(app)
    assert pids(app)[EMBEDDER] == worker


async def test_without_a_name_a_worker_of_the_kind_answers(app: Running, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"input": "hello"})
    assert answer.headers["x-plimsoll-model"] == EMBEDDER
    answer = await client.post("/v1/rerank", json={"query": "hello", "documents": ["hello"]})
    assert answer.headers["x-plimsoll-model"] in {RANKER, JUDGE}
    assert app.notices() == []
