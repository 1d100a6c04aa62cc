"""Embeddings and reranking by an MLX child."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import httpx
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.worker import answer, counted, merged, read, rewrite, worker_asked
from app.endpoint.mlx.worker_passes import Part, parts
from app.endpoint.workers import EMBEDDINGS_PATH, RERANK_PATH
from app.host.model import Model
from app.host.refused import Unserved
from engines.engine import ChildFacts
from tests.app.endpoint.mlx.child import EMBEDDER, FOLDER, RANKER, make_call
from tests.app.endpoint.upstream import Answer, refuses, relaying

EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -2.0]}],
    "model": str(FOLDER),
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


async def ask(child: Answer, path: str, body: dict[str, Any]) -> tuple[httpx.Response, dict[str, Any]]:
    """The client's answer, and what the child was asked."""
    async with relaying(child, make_call) as setting:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.port}", trust_env=False) as client:
            response = await client.post(path, json=body)
        return response, json.loads(setting.bodies[0])


async def test_embeddings_come_under_our_name() -> None:
    child = refuses(200, json.dumps(EMBEDDED).encode())
    response, asked = await ask(child, EMBEDDINGS_PATH, {"model": "tiny", "input": "a", "encoding_format": "float"})
    assert response.json() == {**EMBEDDED, "model": "tiny"}
    assert asked == {"model": str(FOLDER), "input": "a"}


async def test_vectors_come_as_base64_when_asked_for() -> None:
    child = refuses(200, json.dumps(EMBEDDED).encode())
    response, _ = await ask(child, EMBEDDINGS_PATH, {"input": ["a"], "encoding_format": "base64"})
    packed = base64.b64decode(response.json()["data"][0]["embedding"])
    assert struct.unpack("<2f", packed) == (0.5, -2.0)


async def test_reranking_keeps_what_the_child_knows() -> None:
    ranked = {"model": str(FOLDER), "results": [{"index": 1, "relevance_score": 0.9}], "usage": {}}
    child = refuses(200, json.dumps(ranked).encode())
    body = {"query": "q", "documents": ["a", "b"], "top_n": 1, "user": "me"}
    response, asked = await ask(child, RERANK_PATH, body)
    assert response.json() == {**ranked, "model": "tiny"}
    assert asked == {"model": str(FOLDER), "query": "q", "documents": ["a", "b"], "top_n": 1}


async def test_a_refusal_is_in_our_shape() -> None:
    child = refuses(400, b'{"detail": "`input` must be a non-empty string, image, or list."}')
    response, _ = await ask(child, EMBEDDINGS_PATH, {"input": ""})
    assert response.status_code == 400
    assert "non-empty" in response.json()["error"]["message"]


@pytest.mark.parametrize("tokens", [[1, 2], [[1], [2]]])
def test_tokens_are_refused_with_a_way_out(tokens: Any) -> None:
    with pytest.raises(ApiError, match="as text") as refused:
        rewrite({"input": tokens}, EMBEDDER)
    assert (refused.value.status, refused.value.code) == (400, "not_supported")


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b"\xff"])
def test_an_answer_that_is_no_object_is_unreadable(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        read(data)


@pytest.mark.parametrize("found", [{}, {"data": 5}, {"data": [{"embedding": ["a"]}]}, {"data": [[]]}])
def test_vectors_that_cannot_be_packed_are_unreadable(found: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        answer([(Part("input", (0,), {}), found)], EMBEDDER, WorkerAsked(base64=True))


async def test_a_ranking_has_no_vectors_to_pack() -> None:
    child = refuses(200, json.dumps({"results": []}).encode())
    response, _ = await ask(child, RERANK_PATH, {"query": "q", "documents": ["a"], "encoding_format": "base64"})
    assert response.json() == {"model": "tiny", "results": []}


@pytest.mark.parametrize("document", ["", " \n"])
def test_an_empty_document_is_refused_at_its_place(document: str) -> None:
    with pytest.raises(ApiError, match="is empty") as refused:
        rewrite({"query": "q", "documents": ["a", "b", document]}, RANKER)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_request", "documents[2]")


def test_base64_is_asked_of_us() -> None:
    assert worker_asked({"encoding_format": "base64"}, {}).base64
    assert not worker_asked({"encoding_format": "float"}, {}).base64
    assert not worker_asked({}, {}).base64


# --- nothing is cut without a word ------------------------------------------------------------------------------------

WINDOW = 256


def served(body: dict[str, Any], limit: int = WINDOW) -> dict[str, Any]:
    """The answer of a child whose tokens are bytes and that cuts as mlx_vlm does: each text, or pair with the query."""
    ranks = "query" in body
    given = body["documents"] if ranks else body["input"]
    texts = [given] if isinstance(given, str) else given
    beside = len(body["query"].encode()) + 3 if ranks else 0
    tokens = sum(min(limit, beside + len(text.encode())) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if not ranks:
        rows = [{"object": "embedding", "index": n, "embedding": [len(t), 0.5]} for n, t in enumerate(texts)]
        return {"object": "list", "data": rows, "model": body["model"], "usage": usage}
    scores = [len(text) % 7 / 8 for text in texts]  # some are equal
    order = sorted(range(len(texts)), key=lambda number: (-scores[number], number))[: body.get("top_n")]
    said = {n: {"document": texts[n]} if body.get("return_documents") else {} for n in order}
    results = [{"index": n, "relevance_score": scores[n], **said[n]} for n in order]
    return {"model": body["model"], "results": results, "usage": usage}


def cuts_at(limit: int) -> Answer:
    """A child that serves so."""

    async def handler(request: web.Request) -> web.Response:
        return web.json_response(served(json.loads(await request.read()), limit))

    return handler


async def asked(child: Answer, path: str, body: dict[str, Any]) -> tuple[httpx.Response, list[dict[str, Any]]]:
    """The client's answer, and all that a child of this window was asked."""
    async with relaying(child, make_call) as setting:
        setting.host.child.facts = ChildFacts(WINDOW, 1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.port}", trust_env=False) as client:
            response = await client.post(path, json=body)
        assert setting.host.open_turns == 0
        return response, [json.loads(body) for body in setting.bodies]


@pytest.mark.parametrize(
    ("path", "body", "first", "field", "place"),
    [
        (EMBEDDINGS_PATH, {"input": "x" * 256}, "x" * 256, "input", "input has"),
        (EMBEDDINGS_PATH, {"input": ["a", "x" * 9000]}, ["x" * 9000], "input", "input[1] has"),
        (EMBEDDINGS_PATH, {"input": ["x" * 300], "documents": ["a"]}, ["x" * 300], "input", "input[0] has"),
        (RERANK_PATH, {"query": "q", "documents": ["a", "x" * 252]}, ["x" * 252], "documents", "documents[1] has"),
        (RERANK_PATH, {"query": "q" * 252, "documents": ["a"]}, ["a"], "documents", "documents[0] has"),
        (
            RERANK_PATH,
            {"query": "q", "documents": ["x" * 300], "top_n": 1, "input": "a"},
            ["x" * 300],
            "documents",
            "[",
        ),
    ],
)
async def test_what_the_child_would_cut_is_refused_before_the_rest_is_asked(
    path: str, body: dict[str, Any], first: str | list[str], field: str, place: str
) -> None:
    response, requests = await asked(cuts_at(WINDOW), path, body)
    assert [request[field] for request in requests] == [first]
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert (error["prompt_tokens"], error["context_window"]) == (WINDOW, WINDOW)
    assert place in error["message"]
    assert "Split the" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "passes"),
    [
        (EMBEDDINGS_PATH, {"input": "x" * 255}, ["x" * 255]),
        (EMBEDDINGS_PATH, {"input": ["a", "x" * 255]}, [["x" * 255], ["a"]]),
        (
            EMBEDDINGS_PATH,
            {"input": ["b" * 240, "x" * 250, "a", "x" * 255]},
            [["x" * 250], ["x" * 255], ["b" * 240, "a"]],
        ),
        (EMBEDDINGS_PATH, {"input": ["a" * 120] * 70}, [["a" * 120] * 64, ["a" * 120] * 6]),
        (RERANK_PATH, {"query": "q", "documents": ["a", "x" * 251]}, [["x" * 251], ["a"]]),
        (RERANK_PATH, {"query": "q", "documents": ["a"] * 500, "top_n": 3}, [["a"] * 500]),
    ],
)
async def test_each_text_is_asked_once_and_the_answer_is_that_to_the_whole(
    path: str, body: dict[str, Any], passes: list[Any]
) -> None:
    field = "input" if path == EMBEDDINGS_PATH else "documents"
    response, requests = await asked(cuts_at(WINDOW), path, body)
    assert [request[field] for request in requests] == passes
    assert response.json() == served({**body, "model": "tiny"})


async def test_the_best_of_a_ranking_are_chosen_after_all_its_passes() -> None:
    documents = ["a" * 6, "x" * 250, "b" * 6, "c"]
    body = {"query": "q", "documents": documents, "top_n": 3, "return_documents": True}
    response, requests = await asked(cuts_at(WINDOW), RERANK_PATH, body)
    same = {"model": str(FOLDER), "query": "q", "return_documents": True}
    assert requests == [{**same, "documents": ["x" * 250]}, {**same, "documents": ["a" * 6, "b" * 6, "c"]}]
    found = response.json()
    assert [(row["index"], row["document"]) for row in found["results"]] == [
        (0, documents[0]),
        (2, documents[2]),
        (1, documents[1]),
    ]
    assert found == served({**body, "model": "tiny"})


async def test_vectors_of_several_passes_come_as_base64() -> None:
    body = {"input": ["a", "x" * 250], "encoding_format": "base64"}
    response, _ = await asked(cuts_at(WINDOW), EMBEDDINGS_PATH, body)
    packed = [base64.b64decode(row["embedding"]) for row in response.json()["data"]]
    assert [struct.unpack("<2f", vector) for vector in packed] == [(1.0, 0.5), (250.0, 0.5)]


async def test_a_part_that_the_child_refuses_refuses_the_request() -> None:
    async def handler(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if body["input"] == ["a"]:
            return web.json_response({"detail": "no."}, status=400)
        return web.json_response(served(body))

    response, requests = await asked(handler, EMBEDDINGS_PATH, {"input": ["x" * 250, "a"]})
    assert [request["input"] for request in requests] == [["x" * 250], ["a"]]
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert "data" not in response.json()


async def test_nothing_is_asked_after_the_turn_broke_off() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if body["input"] == ["x" * 250]:
            return web.json_response(served(body))
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    async with relaying(handler, make_call) as setting:
        setting.host.child.facts = ChildFacts(WINDOW, 1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.port}", trust_env=False) as client:
            body = {"input": ["x" * 250, "x" * 251, "a"]}
            answering = asyncio.create_task(client.post(EMBEDDINGS_PATH, json=body))
            async with asyncio.timeout(5):
                await arrived.wait()
                setting.host.broken.set_result(Unserved("worker_crashed", 502, "The server ended. Ask again."))
                response = await answering
                await left.wait()
        assert (response.status_code, response.json()["error"]["code"]) == (502, "worker_crashed")
        assert (len(setting.bodies), setting.host.open_turns) == (2, 0)


# --- many answers are one ---------------------------------------------------------------------------------------------


@given(
    st.booleans(),
    st.lists(st.integers(1, 2500).map(lambda size: "x" * size), min_size=1, max_size=20),
    st.none() | st.integers(1, 25),
    st.booleans(),
)
def test_the_answers_to_the_parts_make_the_answer_to_the_whole(
    ranks: bool, texts: list[str], top_n: int | None, returned: bool
) -> None:
    asked_of, limit = RANKER if ranks else EMBEDDER, 2048
    body: dict[str, Any] = {"model": "m", "input": texts}
    if ranks:
        body = {"model": "m", "query": "q", "documents": texts, "top_n": top_n, "return_documents": returned}
    answers = [(part, served(dict(part.body), limit)) for part in parts(body, asked_of, limit)]
    assert merged(answers, asked_of, top_n) == served(body, limit)


TWO = [Part("input", (1,), {}), Part("input", (0,), {})]
ROW = {"index": 0, "embedding": [0.5], "relevance_score": 0.5}
SPENT = {"prompt_tokens": 3}


@pytest.mark.parametrize("asked_of", [EMBEDDER, RANKER])
@pytest.mark.parametrize(
    "rows",
    [None, 5, [], [5], [{}], [{**ROW, "index": 1}], [{**ROW, "index": "0"}], [ROW, ROW], [{**ROW, "index": -1}] * 2],
)
def test_a_part_whose_rows_are_not_its_texts_is_unreadable(asked_of: Model, rows: Any) -> None:
    name = "data" if asked_of is EMBEDDER else "results"
    good, bad = {name: [ROW], "usage": SPENT}, {name: rows, "usage": SPENT}
    for answers in (zip(TWO, (good, bad), strict=True), zip(TWO, (bad, good), strict=True)):
        with pytest.raises(ApiError, match="cannot be read"):
            merged(list(answers), asked_of, None)


@pytest.mark.parametrize("usage", [None, 5, {}, {"prompt_tokens": None}])
def test_a_part_that_counts_nothing_is_unreadable(usage: Any) -> None:
    answers = [{"data": [ROW], "usage": SPENT}, {"data": [ROW], "usage": usage}]
    with pytest.raises(ApiError, match="cannot be read"):
        merged(list(zip(TWO, answers, strict=True)), EMBEDDER, None)


# --- what is counted --------------------------------------------------------------------------------------------------

COUNTED = Part("input", (0,), {}, "input")


def test_a_limit_that_the_brake_lowered_says_so() -> None:
    with pytest.raises(ApiError, match="lowered from 8,192 because memory ran short"):
        counted({"usage": {"prompt_tokens": 4096}}, COUNTED, 4096, 8192)


@pytest.mark.parametrize("found", [{}, {"usage": None}, {"usage": {"prompt_tokens": "many"}}])
def test_a_count_that_cannot_be_read_is_said(found: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        counted(found, COUNTED, 256)


def test_what_cannot_be_cut_needs_no_count() -> None:
    counted({}, Part("input", (0, 1), {}), 256)
