"""Embeddings and reranking by an MLX child."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import Any

import httpx
import pytest
from aiohttp import web

from app.endpoint.call import Call
from app.endpoint.calls import worker_call
from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import WorkerAsked
from app.endpoint.mlx.worker import answer, rewrite, worker_asked
from app.endpoint.workers import EMBEDDINGS_PATH, RERANK_PATH
from tests.app.endpoint.mlx.child import FOLDER, MODEL, make_call
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
        rewrite({"input": tokens}, MODEL)
    assert (refused.value.status, refused.value.code) == (400, "not_supported")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"data": 5}', b'{"data": [{"embedding": ["a"]}]}', b'{"data": [[]]}'])
def test_an_unreadable_answer_is_said(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        answer(data, MODEL, WorkerAsked(base64=True))


def test_base64_is_asked_of_us() -> None:
    assert worker_asked({"encoding_format": "base64"}, MODEL).base64
    assert not worker_asked({"encoding_format": "float"}, MODEL).base64
    assert not worker_asked({}, MODEL).base64


@pytest.mark.parametrize(("tokens", "status"), [(8191, 200), (8192, 400)])
async def test_a_text_that_the_child_would_cut_is_refused_before(tokens: int, status: int) -> None:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    child = refuses(200, json.dumps({**EMBEDDED, "usage": usage}).encode())
    model = replace(MODEL, facts=replace(MODEL.facts, trained_window=131_072))
    long = "word " * 4000

    def as_called(request: web.Request, body: bytes) -> Call:
        return worker_call(model, EMBEDDINGS_PATH, json.loads(body))

    async with relaying(child, as_called) as setting:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.port}", trust_env=False) as client:
            response = await client.post(EMBEDDINGS_PATH, json={"input": ["short", long]})
    assert response.status_code == status
    assert json.loads(setting.bodies[0])["input"] == long  # counted alone
    if status == 400:
        error = response.json()["error"]
        assert (error["code"], error["context_window"]) == ("context_length_exceeded", 8192)
    else:
        assert json.loads(setting.bodies[1])["input"] == ["short", long]
