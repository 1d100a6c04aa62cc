"""Strangers, broken clients and stray surroundings: refused in a sentence, and the application goes on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.child.environment import KEY as KEY_VARIABLE
from engines.child.environment import LIFELINE, PORT
from engines.child.ledger import MARKER
from engines.child.probe import TRUSTS_NOBODY
from engines.llama_cpp.cpu import NO_GRAPHICS_DRIVERS
from engines.machine import INHERITED
from tests.fixtures.running import HELLO, JSON, ROOT, Running, chat

pytestmark = pytest.mark.real

SECRET = "a-secret-of-32-characters-or-more"
MIB = 1024 * 1024
LARGE = 200_000_000
"""Bytes of a body that is far too large."""
HEAD = "Host: 127.0.0.1\r\n"
CHAT = f"POST /v1/chat/completions HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
SLACK = 3.0
"""Seconds that a loaded machine may be late."""


def goes_on(app: Running, **headers: str) -> None:
    """It answers, generates, and found no fault of its own."""
    with httpx.Client(
        base_url=app.root_url, headers=headers, timeout=30, trust_env=False, verify=TRUSTS_NOBODY
    ) as client:
        assert client.get("/health").json() == {"status": "ok"}
        answer = client.post("/v1/chat/completions", json=chat("hello"))
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"].strip() == HELLO
    assert "Traceback" not in app.log()


@pytest.fixture
def target(running: Running) -> Iterator[Running]:
    """The module's application, which must be as well afterwards as before."""
    yield running
    goes_on(running)


async def raw(app: Running, *pieces: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes; what comes back until the server closes, or until one whole answer without a close is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.facts["port"])
    answer = b""
    try:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(seconds):
            with suppress(ConnectionError):
                while data := await reader.read(MIB):
                    answer += data
                    head, end, body = answer.partition(b"\r\n\r\n")
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    if end and length.isdigit() and len(body) >= int(length):
                        break
    finally:
        writer.transport.abort()
    return answer


def status_of(answer: bytes) -> int | None:
    """The status of a raw answer; None where the connection was just closed."""
    return int(answer.split(b" ", 2)[1]) if answer else None


# --- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "127.0.0.1.evil.example:27182"}, "host_not_allowed"),
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"origin": "http://localhost.evil.com"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
    ],
)
async def test_a_rebound_name_and_a_foreign_page_are_refused(
    target: Running, headers: dict[str, str], code: str
) -> None:
    async with target.client(headers=headers) as client:
        for answer in (
            await client.get("/health"),
            await client.get("/v1/models"),
            await client.get("/api/status"),
            await client.get("/api/events"),
            await client.post("/api/models/hello/load"),
            await client.post("/api/models/rescan"),
            await client.post("/v1/chat/completions", json=chat("hello")),
            await client.options("/v1/chat/completions", headers={"access-control-request-method": "POST"}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
            assert "access-control-allow-origin" not in answer.headers


async def test_a_page_of_this_machine_may_stream_and_read_errors(target: Running) -> None:
    async with target.client(headers={"origin": "http://localhost:3000"}) as client:
        streamed = await client.post("/v1/chat/completions", json=chat("hello", stream=True))
        refused = await client.post("/v1/chat/completions", json=chat("nothing"))
    for answer, status in ((streamed, 200), (refused, 404)):
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_on_the_lan_the_same_and_everybody_needs_the_key(start: Any) -> None:
    app: Running = start(settings=f'host = "0.0.0.0"\napi_key = "{SECRET}"\n')
    key = {"authorization": f"Bearer {SECRET}"}
    async with app.client() as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers=key)).status_code == 200
        for headers in ({"host": "evil.example"}, {"host": "0.0.0.0"}, {"origin": "https://evil.example"}):
            for path in ("/health", "/v1/models", "/api/status"):
                assert (await client.get(path, headers={**key, **headers})).status_code == 403
    goes_on(app, **key)


def test_the_lan_without_a_key_is_no_start_and_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('host = "0.0.0.0"\n')
    command = [sys.executable, "-m", "app", "serve", "--home", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("plimsoll: LAN without a key") or "LAN without a key" in done.stderr
    assert 'Set api_key = "..." or host = "127.0.0.1".' in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- broken clients -------------------------------------------------------------------------------------------------

SMUGGLED = "GET /api/status HTTP/1.1\r\nHost: evil.example\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        CHAT + f"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + f"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: 0\r\nContent-Length: 60\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: 0, 60\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: +5\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: -1\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: 0x10\r\n\r\n{SMUGGLED}",
        CHAT + f"Content-Length: {'9' * 30}\r\n\r\n{{}}",
        CHAT + f"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + f"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + f"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + f"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        CHAT + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
        CHAT + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}",
        CHAT + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
        CHAT + "X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        CHAT + "Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}",
        f"GET /v1/models HTTP/1.1\r\n{HEAD}{HEAD}\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n{SMUGGLED}",
        "GET /v1/models HTTP/1.1\r\n\r\n",
        "GET /v1/models HTTP/1.0\r\n\r\n",
        "GET /v1/models\r\n\r\n",
        f"GET /v1/models HTTP/9.9\r\n{HEAD}\r\n",
        f"GET /v1/models HTTP/1.1\n{HEAD}\n",
        "GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        f"CONNECT evil.example:443 HTTP/1.1\r\n{HEAD}\r\n",
        f"TRACE /v1/models HTTP/1.1\r\n{HEAD}\r\n",
        f"FROB /v1/models HTTP/1.1\r\n{HEAD}\r\n",
        f"PUT /v1/models HTTP/1.1\r\n{HEAD}Content-Length: 0\r\n\r\n",
        f"DELETE /v1/models/hello HTTP/1.1\r\n{HEAD}\r\n",
        f"GET /v1/models/../../etc/passwd HTTP/1.1\r\n{HEAD}\r\n",
        f"GET /v1/models/%00%ff%2e%2e HTTP/1.1\r\n{HEAD}\r\n",
        f"GET /v1/models/{'%41' * 2000} HTTP/1.1\r\n{HEAD}\r\n",
        f"GET /v1/chat/completions HTTP/1.1\r\n{HEAD}\r\n",
        f"POST /v1/nothing HTTP/1.1\r\n{HEAD}Content-Length: 0\r\n\r\n",
        f"POST /api/models/nothing/load HTTP/1.1\r\n{HEAD}Content-Length: 0\r\n\r\n",
        f"GET /{'a' * 20_000} HTTP/1.1\r\n{HEAD}\r\n",
        f"GET /health HTTP/1.1\r\n{HEAD}X: {'a' * 100_000}\r\n\r\n",
        f"GET /health HTTP/1.1\r\n{HEAD}" + "Y: b\r\n" * 50_000 + "\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\x00" * 200 + "\r\n\r\n",
        "\x00\xff\xfe\x00\r\n\r\n",
    ],
)
async def test_what_is_no_request_of_ours_is_refused_or_closed(target: Running, sent: str) -> None:
    answer = await raw(target, sent.encode("latin-1"))
    status = status_of(answer)
    assert status is None or 400 <= status < 500
    assert b'"engine"' not in answer
    if status is not None:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"].endswith(".")


async def test_binary_garbage(target: Running) -> None:
    chance = random.Random(27182)
    for _ in range(50):
        answer = await raw(target, chance.randbytes(chance.randrange(1, 2000)) + b"\r\n\r\n")
        assert status_of(answer) in {None, 400, 431}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"messages": [}',
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"x": ' + b"9" * 10_000 + b"}",
        b'{"model": "hello", "max_tokens": 1e999, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "hello", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"model": "hello", "messages": [{"role": "user", "content": "x"}], "\\ud83d": 1}',
        b'{"model": {"a": 1}, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "' + b"x" * 100_000 + b'", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "hello", "prompt": {"prompt_string": "x"}}',
    ],
)
async def test_malformed_json_is_a_400_that_says_where(target: Running, body: bytes) -> None:
    async with target.client(headers=JSON) as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = await client.post(path, content=body)
            assert 400 <= answer.status_code < 500
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert 20 < len(error["message"]) < 600


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    LEAVES | st.sampled_from(["user", "function", "f", "auto", "json_object", "text", "image_url"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "role", "content", "text", "image_url", "url", "schema"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
PLAUSIBLE: st.SearchStrategy[Any] = (
    st.booleans() | st.integers(0, 3) | st.floats(0, 2) | st.just({}) | st.lists(st.text(max_size=2), max_size=2)
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES | ROLES | ANYTHING, "content": st.text(max_size=20) | ANYTHING},
    optional={"tool_calls": ANYTHING, "tool_call_id": ANYTHING, "name": ANYTHING},
)
FEW = st.integers(-5, 4) | st.text(max_size=2) | st.booleans()
"""Never many tokens: null would mean all."""
FIELDS = (
    *("model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "user"),
    *("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "tools", "tool_choice"),
    *("parallel_tool_calls", "response_format", "grammar", "json_schema", "samplers", "logprobs", "top_logprobs"),
    *("n_probs", "id_slot", "cache_prompt", "lora", "chat_template_kwargs", "reasoning_format", "functions"),
)
CHANGE = (
    st.tuples(st.sampled_from(FIELDS), PLAUSIBLE | ANYTHING)
    | st.tuples(st.sampled_from(["max_tokens", "max_completion_tokens"]), FEW)
    | st.tuples(st.just("messages"), st.lists(MESSAGE, min_size=1, max_size=3) | ANYTHING)
)
BODIES = st.lists(CHANGE, max_size=3).map(dict)


def test_no_shape_of_a_body_is_an_error_of_ours_or_of_the_server(target: Running) -> None:
    statuses = []
    with httpx.Client(
        base_url=target.root_url, headers=JSON, timeout=30, trust_env=False, verify=TRUSTS_NOBODY
    ) as client:

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(BODIES)
        def try_one(body: dict[str, Any]) -> None:
            sound = chat("hello", max_tokens=3)
            answer = client.post("/v1/chat/completions", content=json.dumps({**sound, **body}))
            statuses.append(answer.status_code)
            assert answer.status_code < 500, answer.text
            if answer.status_code == 200 and "event: error" in answer.text:
                assert json.loads(answer.text.rpartition("data: ")[2])["error"]["status"] < 500
            if answer.status_code != 200:
                assert len(answer.json()["error"]["message"]) < 2000

        try_one()
    assert statuses.count(200) > 5
    assert target.notices() == []


async def test_bodies_of_200_mb_are_refused_without_being_kept(target: Running) -> None:
    memory = psutil.Process(target.pid).memory_info
    before = memory().rss
    block = b"x" * MIB
    declared = await raw(target, f"{CHAT}Content-Length: {LARGE}\r\n\r\n".encode(), block)
    assert status_of(declared) == 413
    assert memory().rss - before < 50 * MIB
    chunk = f"{MIB:x}\r\n".encode() + block + b"\r\n"
    pieces = [chunk] * (LARGE // MIB)
    chunked = await raw(target, f"{CHAT}Transfer-Encoding: chunked\r\n\r\n".encode(), *pieces, b"0\r\n\r\n")
    assert status_of(chunked) == 413
    assert "64 MiB" in json.loads(chunked.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert memory().rss - before < 200 * MIB


async def test_half_sent_headers_are_closed_after_ten_seconds_and_half_a_body_holds_nobody_up(target: Running) -> None:
    port = target.facts["port"]
    loop = asyncio.get_running_loop()
    half = f"POST /v1/chat/completions HTTP/1.1\r\n{HEAD}Content-Type: appl".encode()

    async def closed_after(*pieces: bytes) -> float:
        begun = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closing = asyncio.create_task(reader.read())
        for piece in pieces:
            if closing.done():
                break
            with suppress(ConnectionError):
                writer.write(piece)
                await writer.drain()
            await asyncio.wait({closing}, timeout=1)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(closing, 10 + SLACK) == b""
        writer.transport.abort()
        return loop.time() - begun

    async def half_a_body() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{CHAT}Content-Length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        goes_on_while = await asyncio.to_thread(target.get, "/health")
        assert goes_on_while == {"status": "ok"}
        writer.transport.abort()

    dripping = tuple(bytes([byte]) for byte in half)
    half_bodies = [half_a_body() for _ in range(20)]
    closed = await asyncio.gather(closed_after(), closed_after(half), closed_after(*dripping), *half_bodies)
    for seconds in closed[:3]:
        assert seconds is not None
        assert 9.5 < seconds < 10 + SLACK


# --- stray surroundings ---------------------------------------------------------------------------------------------


@pytest.fixture
async def plain(running: Running) -> tuple[Any, str]:
    """What the application says in clean surroundings: its models, and the window of a turn."""
    goes_on(running)
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("hello", max_tokens=2))
    return rows(running), answer.headers["x-plimsoll-window"]


def rows(app: Running) -> Any:
    """``/v1/models`` without what differs from run to run."""
    return [{**row, "state": None, "created": None} for row in app.get("/v1/models")["data"]]


async def test_stray_variables_and_files_change_nothing(start: Any, tmp_path: Path, plain: tuple[Any, str]) -> None:
    ini = "alias = evil\nctx-size = 8\nport = 1\n"
    for folder in (tmp_path / "xdg", tmp_path / "user" / ".config"):
        (folder / "llama.cpp").mkdir(parents=True)
        (folder / "llama.cpp" / "config.ini").write_text(ini)
    stray = {
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
        "LLAMA_ARG_CTX_SIZE": "8",
        "LLAMA_ARG_ALIAS": "evil",
        "LLAMA_ARG_PORT": "1",
        "LLAMA_ARG_N_PARALLEL": "x",
        "LLAMA_ARG_HOST": "0.0.0.0",
        "LLAMA_ARG_MODEL": "/nothing.gguf",
        "LLAMA_API_KEY": "stray",
        "LLAMA_CACHE": "/nothing",
        "GGML_VK_VISIBLE_DEVICES": "7",
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
        "HOME": str(tmp_path / "user"),
    }
    app: Running = start(environ=stray)
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("hello"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].strip() == HELLO
    assert (rows(app), answer.headers["x-plimsoll-window"]) == plain
    (child,) = app.children()
    environ = child.environ()
    assert set(environ) <= {
        *INHERITED,
        "XDG_CONFIG_HOME",
        "APPDATA",
        *NO_GRAPHICS_DRIVERS,
        KEY_VARIABLE,
        PORT,
        LIFELINE,
        MARKER,
    }
    assert environ["XDG_CONFIG_HOME"] == str(app.home / "child-config")
    assert environ[PORT] == str(app.status()["children"][0]["port"])
    assert environ[KEY_VARIABLE] != "stray"
    assert len(environ[KEY_VARIABLE]) > 30
    assert list((app.home / "child-config").iterdir()) == []
    assert not [word for word in child.cmdline() if environ[KEY_VARIABLE] in word]
    assert [c.laddr.ip for c in child.net_connections() if c.status == psutil.CONN_LISTEN] == ["127.0.0.1"]
    goes_on(app)


async def test_the_key_is_needed_and_stands_nowhere(start: Any) -> None:
    app: Running = start(settings=f'api_key = "{SECRET}"\nlog_level = "debug"\n')
    right = {"authorization": f"Bearer {SECRET}"}
    seen = []
    async with app.client() as client:
        assert (await client.get("/health")).status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": SECRET}, {"x-api-key": SECRET[:-1]}):
            for path in ("/v1/models", "/api/status", "/api/events", f"/v1/{SECRET}"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                seen.append(answer.text)
        answer = await client.post("/v1/chat/completions", json=chat("hello"))
        assert answer.status_code == 401
        for headers in (right, {"x-api-key": SECRET}):
            answer = await client.post("/v1/chat/completions", json=chat("hello"), headers=headers)
            assert answer.status_code == 200
            seen.append(answer.text)
        for path in ("/v1/models", "/v1/models/nothing", "/api/status", "/v1/nothing"):
            seen.append((await client.get(path, headers=right)).text)
        asked = client.stream("GET", "/api/events", headers={**right, "last-event-id": "0"})
        async with asyncio.timeout(10), asked as events:
            async for line in events.aiter_lines():
                seen.append(line)
                if "child_ready" in line:
                    break
    (child,) = app.children()
    (own,) = {value for name, value in child.environ().items() if name == KEY_VARIABLE}
    seen += [app.log(), *(path.read_text() for path in app.home.glob("*.json"))]
    seen += [path.read_text() for path in (app.home / "logs").iterdir()]
    for text in seen:
        assert SECRET not in text
        assert own not in text
    assert "child_ready" in "".join(seen)
    assert json.loads((app.home / "workers.json").read_text())[0]["pid"] == child.pid
    goes_on(app, **right)


async def test_the_home_is_its_users_alone(start: Any, tmp_path: Path) -> None:
    home = tmp_path / "open"
    home.mkdir(mode=0o755)
    (home / "settings.toml").write_text("log_level = 'debug'\n")
    (home / "settings.toml").chmod(0o644)
    before = os.umask(0)
    try:
        app: Running = start(home=home)
    finally:
        os.umask(before)
    goes_on(app)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (home, *home.rglob("*"))}
    assert {home / name for name in ("settings.toml", "endpoint.json", "workers.json", "instance.lock")} <= set(modes)
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
