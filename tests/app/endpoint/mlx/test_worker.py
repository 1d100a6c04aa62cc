"""Embeddings and reranking by an MLX child."""

from __future__ import annotations

import base64
import json
import struct
import unicodedata
from typing import Any, Literal

import httpx
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.worker import SPECIAL_TOKENS, Part, answer, counted, limit_of, parts, rewrite, worker_asked
from app.endpoint.workers import EMBEDDINGS_PATH, RERANK_PATH
from app.host.model import Model
from engines.artifact.facts import ModelKind
from engines.engine import ChildFacts
from tests.app.endpoint.mlx.child import EMBEDDER, FOLDER, RANKER, make_call, model
from tests.app.endpoint.upstream import Answer, refuses, relaying

NORMAL_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
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


@pytest.mark.parametrize("data", [b"", b"[]", b'{"data": 5}', b'{"data": [{"embedding": ["a"]}]}', b'{"data": [[]]}'])
def test_an_unreadable_answer_is_said(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        answer(data, EMBEDDER, WorkerAsked(base64=True))


def test_base64_is_asked_of_us() -> None:
    assert worker_asked({"encoding_format": "base64"}, {}).base64
    assert not worker_asked({"encoding_format": "float"}, {}).base64
    assert not worker_asked({}, {}).base64


# --- nothing is cut without a word ------------------------------------------------------------------------------------

WINDOW = 256


def cuts_at(limit: int) -> Answer:
    """A child whose tokens are bytes and that cuts as mlx_vlm does: each text, or pair of query and document."""

    async def handler(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        texts = body.get("documents") or body["input"]
        texts = [texts] if isinstance(texts, str) else texts
        beside = len(body["query"].encode()) + 3 if "query" in body else 0
        tokens = sum(min(limit, beside + len(text.encode())) for text in texts)
        return web.json_response({"data": [], "results": [], "usage": {"prompt_tokens": tokens}})

    return handler


async def asked(window: int, path: str, body: dict[str, Any]) -> tuple[httpx.Response, list[dict[str, Any]]]:
    """The client's answer, and all that a child of this window was asked."""
    async with relaying(cuts_at(window), make_call) as setting:
        setting.host.child.facts = ChildFacts(window, 1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.port}", trust_env=False) as client:
            response = await client.post(path, json=body)
        return response, [json.loads(body) for body in setting.bodies]


@pytest.mark.parametrize(
    ("path", "body", "alone", "field", "place"),
    [
        (EMBEDDINGS_PATH, {"input": "x" * 255}, "x" * 255, "input", None),
        (EMBEDDINGS_PATH, {"input": "x" * 256}, "x" * 256, "input", "input has"),
        (EMBEDDINGS_PATH, {"input": ["a", "x" * 255]}, "x" * 255, "input", None),
        (EMBEDDINGS_PATH, {"input": ["a", "x" * 9000]}, "x" * 9000, "input", "input[1] has"),
        (EMBEDDINGS_PATH, {"input": ["x" * 300], "documents": ["a"]}, "x" * 300, "input", "input[0] has"),
        (RERANK_PATH, {"query": "q", "documents": ["a", "x" * 251]}, "x" * 251, "documents", None),
        (RERANK_PATH, {"query": "q", "documents": ["a", "x" * 252]}, "x" * 252, "documents", "documents[1] has"),
        (RERANK_PATH, {"query": "q" * 252, "documents": ["a"]}, "a", "documents", "documents[0] has"),
        (RERANK_PATH, {"query": "q", "documents": ["x" * 300], "top_n": 1, "input": "a"}, "x" * 300, "documents", "["),
    ],
)
async def test_what_the_child_would_cut_is_refused_before(
    path: str, body: dict[str, Any], alone: str, field: str, place: str | None
) -> None:
    response, requests = await asked(WINDOW, path, body)
    assert requests[0][field] == [alone]  # counted alone
    if place is None:
        assert response.status_code == 200
        assert requests[1:] == [requests[-1]]
        assert requests[-1][field] == body[field]
        return
    assert (response.status_code, len(requests)) == (400, 1)
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert (error["prompt_tokens"], error["context_window"]) == (WINDOW, WINDOW)
    assert place in error["message"]
    assert "Split the" in error["message"]


async def test_what_is_short_is_not_asked_twice() -> None:
    _, requests = await asked(WINDOW, RERANK_PATH, {"query": "q", "documents": ["a"] * 500})
    assert len(requests) == 1


@given(st.text(max_size=90), st.lists(st.text(max_size=300), min_size=1, max_size=5))
def test_a_document_that_is_not_counted_has_less_than_the_limit(query: str, documents: list[str]) -> None:
    body = {"query": query, "documents": documents}
    places = {part.place for part in parts(body, RANKER, WINDOW)}
    for number, document in enumerate(documents):
        if f"documents[{number}]" not in places:
            for form in NORMAL_FORMS:
                pair = unicodedata.normalize(form, query) + unicodedata.normalize(form, document)
                assert len(pair.encode()) + SPECIAL_TOKENS < WINDOW


JUDGE = model(kind=ModelKind.RERANK, architecture="qwen3")


@pytest.mark.parametrize(
    ("asked_of", "body", "places"),
    [
        (EMBEDDER, {"input": "x" * 1015}, []),
        (EMBEDDER, {"input": "x" * 1016}, ["input"]),
        (EMBEDDER, {"input": ["\u0436" * 508, "a", "\u0436" * 507]}, ["input[0]"]),
        (EMBEDDER, {"input": "\ufdfa" * 31}, ["input"]),  # 93 bytes, and 1,023 when normalised
        (EMBEDDER, {"input": []}, []),
        (RANKER, {"query": "q" * 500, "documents": ["x" * 515, "x" * 516]}, ["documents[1]"]),
        (RANKER, {"query": "q", "documents": ["x" * 900], "instruction": "i" * 200}, ["documents[0]"]),
        (JUDGE, {"query": "q" * 100, "documents": ["x" * 411, "x" * 412]}, ["documents[1]"]),
        (JUDGE, {"query": "q" * 100, "documents": ["x" * 300], "instruction": "i" * 112}, ["documents[0]"]),
        (JUDGE, {"query": "q", "documents": ["x"], "instruction": 5}, []),
    ],
)
def test_what_may_be_too_long_is_known_by_its_bytes(asked_of: Model, body: dict[str, Any], places: list[str]) -> None:
    assert [part.place for part in parts(body, asked_of, 1024)] == places


@pytest.mark.parametrize(("window", "limit"), [(None, 8192), (512, 512), (8192, 8192), (131_072, 8192)])
def test_the_limit_is_the_childs_window_and_never_more_than_its_server_takes(window: int | None, limit: int) -> None:
    assert limit_of(window) == limit


def test_a_limit_that_the_brake_lowered_says_so() -> None:
    part = Part("input", "input", {})
    with pytest.raises(ApiError, match="lowered from 8,192 because memory ran short"):
        counted(b'{"usage": {"prompt_tokens": 4096}}', part, 4096, 8192)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"usage": null}', b'{"usage": {"prompt_tokens": "many"}}'])
def test_a_count_that_cannot_be_read_is_said(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        counted(data, Part("input", "input", {}), 256)
