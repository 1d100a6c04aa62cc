"""The guard around every route: who is let in, what a page may read, and that a fault of ours is a sentence."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import httpx
import pytest
from aiohttp import web

from app.endpoint import server
from app.endpoint.connection import CORS
from app.endpoint.errors import ApiError
from app.endpoint.guard import GuardRules
from app.endpoint.server import PortUnavailable, bind
from app.endpoint.stream import StreamAnswer
from engines.child.probe import TRUSTS_NOBODY
from tests.app.endpoint.serving import HEAD, request, send, serving, status_of

PAGE = "http://localhost:3000"
KEY = "k" * 20


async def fine(request: web.Request) -> web.Response:
    return web.json_response({"path": request.path})


async def refused(request: web.Request) -> web.Response:
    raise ApiError(409, "some_code", "Do this.")


async def faulty(request: web.Request) -> web.Response:
    raise KeyError("/home/me/secret")


async def streamed(request: web.Request) -> web.StreamResponse:
    cors = request[CORS]
    answer = StreamAnswer(request, cors)
    await answer.commit({})
    await answer.events(b"data: a\n\n")
    return await answer.finish()


ROUTES = (
    web.get("/v1/models", fine),
    web.get("/v1/stream", streamed),
    web.post("/v1/chat/completions", fine),
    web.get("/v1/refused", refused),
    web.get("/v1/faulty", faulty),
    web.get("/api/status", fine),
)


def client(port: int, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, verify=TRUSTS_NOBODY
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/health", 200, None),
        ("GET", "/v1/models", 200, None),
        ("GET", "/v1/models?limit=5", 200, None),
        ("POST", "/v1/chat/completions", 200, None),
        ("GET", "/api/status", 200, None),
        ("GET", "/", 404, "route_not_found"),
        ("GET", "/v1", 404, "route_not_found"),
        ("GET", "/v1/models/", 404, "route_not_found"),
        ("GET", "//v1/models", 404, "route_not_found"),
        ("GET", "/v1//models", 404, "route_not_found"),
        ("GET", "/v1/../v1/models", 404, "route_not_found"),
        ("GET", "/%ff%00", 404, "route_not_found"),
        ("GET", "/V1/MODELS", 404, "route_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/refused", 409, "some_code"),
    ],
)
async def test_routes_and_what_is_none(method: str, path: str, status: int, code: str | None) -> None:
    async with serving(*ROUTES) as port:
        raw = await send(port, request(f"{method} {path}"))
    assert status_of(raw) == status
    error = json.loads(raw.partition(b"\r\n\r\n")[2]).get("error")
    assert (error or {}).get("code") == code
    if status == 405:
        assert b"\r\nallow: " in raw.lower()


@pytest.mark.parametrize(
    ("path", "status"), [("/health", 200), ("/v1/models", 200), ("/nowhere", 404), ("/v1/chat/completions", 405)]
)
async def test_head_is_get_without_its_body(path: str, status: int) -> None:
    async with serving(*ROUTES) as port:
        raw = await send(port, request(f"HEAD {path}"))
    assert status_of(raw) == status
    assert raw.endswith(b"\r\n\r\n")
    assert int(raw.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) > 0


async def test_expect_100_continue_is_answered() -> None:
    async with serving(*ROUTES) as port:
        head = request("POST /v1/chat/completions", "Expect: 100-continue", "Content-Length: 2")
        raw = await send(port, head, b"{}")
    assert raw.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/api/status", "/nowhere"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "127.0.0.1.evil.example"}, "host_not_allowed"),
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
    ],
)
async def test_a_foreign_host_or_page_is_refused_everywhere_and_may_not_read_why(
    path: str, headers: dict[str, str], code: str
) -> None:
    async with serving(*ROUTES) as port, client(port, **headers) as http:
        for method in ("GET", "POST", "OPTIONS"):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/models", 200), ("/v1/stream", 200), ("/v1/refused", 409), ("/v1/faulty", 500), ("/nowhere", 404)],
)
async def test_an_allowed_page_may_read_answers_streams_and_errors(path: str, status: int) -> None:
    async with serving(*ROUTES) as port, client(port, origin=PAGE) as http:
        answer = await http.get(path)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"


async def test_a_program_gets_no_cors_headers() -> None:
    async with serving(*ROUTES) as port, client(port) as http:
        answer = await http.get("/v1/models")
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health", "/nowhere"])
async def test_a_preflight_needs_no_key(path: str) -> None:
    rules = GuardRules(key=KEY, origins=frozenset({"https://app.example"}))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-stainless-os"}
    async with serving(*ROUTES, rules=rules) as port, client(port, **asked) as http:
        for origin in (PAGE, "https://app.example"):
            answer = await http.options(path, headers={"origin": origin})
            assert answer.status_code == 204
            assert answer.headers["access-control-allow-origin"] == origin
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert "*" in answer.headers["access-control-allow-headers"]


async def test_a_key_guards_all_but_health() -> None:
    async with serving(*ROUTES, rules=GuardRules(key=KEY)) as port, client(port) as http:
        assert (await http.get("/health")).status_code == 200
        for path in ("/v1/models", "/api/status", "/nowhere", "/v1/faulty"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
        assert (await http.get("/v1/models", headers={"x-api-key": KEY})).status_code == 200
    async with serving(*ROUTES, rules=GuardRules(key=KEY)) as port:
        raw = await send(port, b"GET /v1/models HTTP/1.0\r\n" + HEAD + b"Authorization: Bearer \xff\xfe\r\n\r\n")
        assert status_of(raw) == 401


async def test_a_fault_of_ours_is_a_sentence_and_its_text_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(*ROUTES) as port, client(port) as http:
        answer = await http.get("/v1/faulty")
        assert (await http.get("/health")).status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None


async def test_a_client_that_leaves_ends_the_handler_and_leaves_no_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = StreamAnswer(request, {})
        await answer.commit({})
        begun.set()
        try:
            while True:
                await answer.events(b"data: " + b"x" * 10_000 + b"\n\n")
        finally:
            answer.release()
            ended.set()

    for _ in range(5):
        begun.clear()
        ended.clear()
        async with serving(web.get("/endless", endless)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("GET /endless"))
            await asyncio.wait_for(begun.wait(), 5)
            writer.transport.abort()
            await asyncio.wait_for(ended.wait(), 5)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stop_lets_answers_say_why_and_closes_the_rest() -> None:
    begun = asyncio.Event()
    told = asyncio.Event()

    async def waits(request: web.Request) -> web.Response:
        begun.set()
        await told.wait()
        return web.Response(text="closing")

    async with serving(web.get("/waits", waits)) as port:
        idle, unused = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET /waits"))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, told.set)
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"closing")
    assert await asyncio.wait_for(idle.read(), 5) == b""
    writer.close()
    unused.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_taken_port_is_a_sentence_or_the_next_one(fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port: Any = taken.getsockname()[1]
    monkeypatch.setattr(server, "PORTS", range(port, port + 1))
    with taken, pytest.raises(PortUnavailable) as caught:
        bind("127.0.0.1", port if fixed else 0)
    assert str(port) in caught.value.sentence
    assert "Close the program that has it" in caught.value.sentence
