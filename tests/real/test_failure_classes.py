"""Every way in which a model does not load, provoked for real: what the user is told, and that nothing stays."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from engines import LaunchSettings
from engines.artifact.gguf import read_facts
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.child.ports import free_port
from engines.child.probe import TRUSTS_NOBODY
from engines.engine import Child
from engines.errors import KeyRefused, PortTaken
from engines.llama_cpp import server as launching
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.cpu import CpuEngine
from engines.llama_cpp.server import Launcher
from engines.machine import read_machine
from tests.fixtures import tiny_gguf
from tests.fixtures.headers import Writer
from tests.fixtures.running import GEMMA, ROOT, Running, chat, gemma
from tests.fixtures.waiting import is_gone, until

pytestmark = pytest.mark.real

SERVER = ROOT / "artifacts" / "llama-cpp" / "cpu" / "bin" / "llama-server"
CUT_BYTES = 5000
"""What a cut file lacks: the tensors at its end."""
ADDRESS_SPACE = 600 * 1024 * 1024
"""Bytes a limited server may map: its libraries fit, a cache of 1 GiB does not."""
TEST_PORTS = range(27290, 27300)


async def ask(app: Running, model: str, *, streamed: bool) -> tuple[int, dict[str, Any]]:
    """Status and error of a chat; of a stream that was committed the error is its last event."""
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat(model, max_tokens=2, stream=streamed))
    if answer.headers["content-type"].startswith("application/json"):
        return answer.status_code, answer.json()["error"]
    kind, data = answer.text.rstrip("\n").split("\n")[-2:]
    assert kind == "event: error"
    return answer.status_code, json.loads(data.removeprefix("data: "))["error"]


async def refused(app: Running, model: str, code: str, status: int, *says: str, notice: bool = True) -> None:
    """Ask both ways: the same refusal, in words for a user, told to everybody, and no process left."""
    for streamed in (False, True):
        found, error = await ask(app, model, streamed=streamed)
        assert (found, error["code"]) == (status, code), error
        for words in (model, *says):
            assert words in error["message"]
        told = [n["text"] for n in app.status()["notices"]]
        assert (error["message"] in told) is notice
        assert app.children() == []
        assert app.ledger() == []
    assert "Traceback" not in app.log()


def script(folder: Path, text: str) -> str:
    """Settings whose llama-server is this shell script; its version and devices it says as the real one does."""
    path = folder / "server.sh"
    asked = f'case "$1" in --version|--list-devices) exec {SERVER} "$1";; esac\n'
    path.write_text(f"#!/bin/sh\n{asked}{text}\n")
    path.chmod(0o755)
    return f'llama_server = "{path}"\n'


# --- what is wrong with the file -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An application whose models were spoiled after its scan."""
    folder = tmp_path_factory.mktemp("spoiled")
    for name in ("missing", "cut", "replaced", "listed"):
        tiny_gguf.make(folder / f"{name}.gguf", say="Hi", ctx=4096, name=name)
    os.truncate(folder / "listed.gguf", (folder / "listed.gguf").stat().st_size - CUT_BYTES)
    sizes = {"context_length": 4096, "block_count": 2, "embedding_length": 64, "attention.head_count": 4}
    header = {"general.architecture": "alien", "general.name": "alien"}
    Writer().write(folder / "alien.gguf", header | {f"alien.{key}": value for key, value in sizes.items()})
    with Running(tmp_path_factory.mktemp("home"), (folder,)) as app:
        (folder / "missing.gguf").unlink()
        os.truncate(folder / "cut.gguf", (folder / "cut.gguf").stat().st_size - CUT_BYTES)
        (folder / "replaced.gguf").write_text("<html>Not found</html>")
        yield app


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        ("missing", "model_missing", "Put the file back"),
        ("cut", "model_truncated", "download the model again"),
        ("replaced", "not_gguf", "Download the model again"),
        ("alien", "architecture_unsupported", "(alien). Use a newer llama-server"),
    ],
)
async def test_a_file_that_changed_since_the_scan(spoiled: Running, model: str, code: str, says: str) -> None:
    await refused(spoiled, model, code, 503, says)


async def test_a_broken_file_is_listed_with_its_reason_and_never_loaded(spoiled: Running) -> None:
    await refused(spoiled, "listed", "model_broken", 422, "is incomplete", "download it again", notice=False)
    assert "listed" not in [row["id"] for row in spoiled.get("/v1/models")["data"]]
    async with spoiled.client() as client:
        rescanned = (await client.post("/api/models/rescan")).json()
    assert "is incomplete" in rescanned["broken"]["listed"]


# --- what is wrong with the server ---------------------------------------------------------------------------------


async def test_a_server_that_exits_at_once_is_given_up_after_three_times_until_the_user_asks(
    start: Any, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    app: Running = start(settings=script(tmp_path, f"echo x >> {starts}; exit 3"))
    await refused(app, "hello", "exited", 503, "(exit code 3)", "log")
    await ask(app, "hello", streamed=False)
    assert starts.read_text() == "x\n" * 3
    for streamed in (False, True):
        status, error = await ask(app, "hello", streamed=streamed)
        assert (status, error["code"]) == (503, "model_keeps_crashing")
        assert "3 times" in error["message"]
        assert "To try again choose it in the tray, or POST" in error["message"]
        assert "(exit code 3)" in error["message"]
    assert starts.read_text() == "x\n" * 3
    async with app.client() as client:
        answer = await client.post("/api/models/hello/load")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "exited")
    assert starts.read_text() == "x\n" * 4
    assert app.children() == []


async def test_a_server_that_does_not_know_a_flag(start: Any, tmp_path: Path) -> None:
    app: Running = start(settings=script(tmp_path, f'exec {SERVER} "$@" --no-such-flag'))
    await refused(app, "hello", "server_too_old", 503, "Use another build of llama-server")


async def test_a_server_that_never_becomes_healthy(start: Any, tmp_path: Path) -> None:
    settings = script(tmp_path, "exec cat > /dev/null") + "load_seconds = 1\n"
    app: Running = start(settings=settings)
    await refused(app, "hello", "load_timeout", 504, "(1 s)", "load_seconds")


async def test_a_setting_that_names_no_program(start: Any, tmp_path: Path) -> None:
    app: Running = start(settings=f'llama_server = "{tmp_path}/nothing"\n')
    for streamed in (False, True):
        status, error = await ask(app, "hello", streamed=streamed)
        assert (status, error["code"]) == (503, "server_missing")
        assert "llama-server" in error["message"]
        assert error["message"] in [n["text"] for n in app.status()["notices"]]
    assert [row["id"] for row in app.get("/v1/models")["data"]] == ["endless", "hello"]
    assert app.children() == []


async def test_a_load_that_fails_after_the_stream_began_is_its_last_event(start: Any, tmp_path: Path) -> None:
    app: Running = start(settings=script(tmp_path, "sleep 3; exit 3"))
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("hello", stream=True))
    assert answer.status_code == 200
    assert answer.headers["x-plimsoll-model"] == "hello"
    *comments, kind, data = answer.text.rstrip("\n").split("\n")
    assert set(comments) == {": loading hello", ""}
    error = json.loads(data.removeprefix("data: "))["error"]
    assert kind == "event: error"
    assert (error["code"], error["status"], error["type"]) == ("exited", 503, "server_error")
    assert app.children() == []


# --- memory and the system -----------------------------------------------------------------------------------------


async def test_memory_that_is_not_there(start: Any, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shape: Any = {"layers": 8, "embd": 256, "heads": 4, "kv_heads": 4}
    tiny_gguf.make(models / "wide.gguf", say="Hi", ctx=131072, name="wide", **shape)
    limited = f'exec prlimit --as={ADDRESS_SPACE} {SERVER} "$@"'
    app: Running = start(models=(models,), settings=script(tmp_path, limited))
    await refused(app, "wide", "out_of_memory", 503, "Close other programs", "smaller")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_is_killed_while_it_loads(start: Any, streamed: bool) -> None:
    app: Running = start(models=(gemma().parent,))
    asking = asyncio.create_task(ask(app, GEMMA.stem, streamed=streamed))
    await until(app.ledger)
    (entry,) = app.ledger()
    for child in app.children():
        child.kill()
    status, error = await asking
    assert (status, error["code"]) == (503, "killed")
    assert "close other programs or choose a smaller model" in error["message"]
    assert error["message"] in [n["text"] for n in app.status()["notices"]]
    assert is_gone(entry["pid"])
    assert app.children() == []


# --- ports: the launcher itself, since an application has a hundred of them -----------------------------------------


@asynccontextmanager
async def stranger(port: int) -> AsyncIterator[list[str]]:
    """Another server on the port that answers 200 to everything; what it was asked."""
    asked: list[str] = []

    async def agreeing(request: web.Request) -> web.Response:
        asked.append(request.path)
        assert "authorization" not in request.headers, "a stranger was given the key"
        return web.json_response({"status": "ok"})

    application = web.Application()
    application.router.add_route("*", "/{anything:.*}", agreeing)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield asked
    finally:
        await runner.cleanup()


def starting(tmp_path: Path, models: Path, ports: tuple[int, ...], program: Path = SERVER) -> Any:
    """A start of ``hello`` by the real launcher, on one of these ports."""
    server = find_server(setting=program, flavour="cpu")
    machine = read_machine(look_for_gpus=False).with_server(server)
    launcher = Launcher(Ledger(tmp_path / "workers.json"), for_this_system(), load_seconds=20, ports=ports)
    engine = CpuEngine(launcher, tmp_path)
    plan = engine.plan("hello", read_facts(models / "hello.gguf"), machine, LaunchSettings())
    return engine.start(plan, lambda _: None)


async def test_no_port_is_left(tmp_path: Path, tiny_models: Path) -> None:
    port = free_port(TEST_PORTS)
    async with stranger(port) as asked:
        with pytest.raises(PortTaken) as caught:
            await starting(tmp_path, tiny_models, (port,))
    assert (caught.value.code, caught.value.status) == ("port_in_use", 503)
    assert f"no free port from {port} to {port}" in caught.value.sentence
    assert "Try again" in caught.value.sentence
    assert asked == []


async def test_a_stranger_that_says_yes_to_everything_never_gets_our_key(
    tmp_path: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = free_port(TEST_PORTS)
    other = free_port(TEST_PORTS, start=TEST_PORTS.index(taken) + 1)
    chosen = iter((taken, other))
    monkeypatch.setattr(launching, "free_port", lambda *_, **__: next(chosen))
    caplog.set_level(logging.INFO, "engines.child.served")
    script(tmp_path, f'sleep 0.5; exec {SERVER} "$@"')  # the stranger answers before ours can say that it is there
    async with stranger(taken) as asked:
        child: Child = await starting(tmp_path, tiny_models, (taken, other), tmp_path / "server.sh")
        assert child.port == other
        await child.stop()
    assert set(asked) == {"/health"}
    assert "another program took the port that was chosen for it. Try again." in caplog.text


@pytest.mark.parametrize("free_later", [True, False])
async def test_a_port_that_is_taken_between_the_choice_and_the_bind(
    tmp_path: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, free_later: bool
) -> None:
    taken = free_port(TEST_PORTS)
    other = free_port(TEST_PORTS, start=TEST_PORTS.index(taken) + 1)
    chosen = iter((taken, other) if free_later else (taken, taken, taken))
    monkeypatch.setattr(launching, "free_port", lambda *_, **__: next(chosen))
    async with stranger(taken):
        if free_later:
            child: Child = await starting(tmp_path, tiny_models, (taken, other))
            assert child.port == other
            async with httpx.AsyncClient(trust_env=False, verify=TRUSTS_NOBODY) as client:
                assert (await client.get(f"http://127.0.0.1:{other}/health")).status_code == 200
            await child.stop()
        else:
            # By its own words, or by the stranger's answer if that came first.
            with pytest.raises((PortTaken, KeyRefused)) as caught:
                await starting(tmp_path, tiny_models, (taken, other))
            assert "Try again" in caught.value.sentence
    assert json.loads((tmp_path / "workers.json").read_text()) == []
