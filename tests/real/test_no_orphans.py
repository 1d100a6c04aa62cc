"""However the application ends, no llama-server stays; and nobody else's is touched."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engines.child.ledger import MARKER
from tests.fixtures.natures import NATURES, Nature
from tests.fixtures.running import GEMMA, Running, chat, gemma
from tests.fixtures.waiting import is_gone, until, until_gone

pytestmark = pytest.mark.real

SPEAKS = re.compile(r'"content": ?"[^"]')
"""An event with a part of the answer."""
ROUNDS = 10
"""Of each of three states: 30 kills in all."""


async def generating(app: Running, model: str = "endless") -> asyncio.Task[httpx.Response]:
    """A stream that is under way."""
    begun = asyncio.Event()

    async def read() -> httpx.Response:
        async with app.client() as client:
            async with client.stream("POST", "/v1/chat/completions", json=chat(model, stream=True)) as response:
                async for line in response.aiter_lines():
                    if SPEAKS.search(line):
                        begun.set()
        return response

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 30)
    return task


async def ended(task: asyncio.Task[Any]) -> None:
    """The client's side of a kill."""
    await asyncio.wait({task}, timeout=10)
    assert task.done()
    task.exception()


@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_sigkill_while_idle(start: Any, round_: int) -> None:
    app: Running = start()
    async with app.client() as client:
        await client.post("/v1/chat/completions", json=chat("hello"))
    (child,) = app.children()
    app.process.kill()
    await until_gone(child.pid)


def with_endless(start: Any, tmp_path: Path, nature: Nature) -> Running:
    app: Running = start(models=(nature.models(tmp_path / "models", "endless"),), settings=nature.settings)
    return app


@pytest.mark.parametrize("nature", NATURES)
async def test_sigkill_while_generating(tmp_path: Path, nature: Nature) -> None:
    models = nature.models(tmp_path / "models", "endless")
    for round_ in range(nature.rounds):
        with Running(tmp_path / f"home{round_}", (models,), settings=nature.settings) as app:
            await sigkill_while_generating(app)


async def sigkill_while_generating(app: Running) -> None:
    answer = await generating(app)
    (child,) = app.children()
    app.process.kill()
    await until_gone(child.pid)
    await ended(answer)


@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_sigkill_while_loading(start: Any, round_: int) -> None:
    app: Running = start(models=(gemma().parent,))
    async with app.client() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(GEMMA.stem)))
        await until(app.ledger)
        (entry,) = app.ledger()
        assert app.status()["children"][0]["state"] == "loading"
        app.process.kill()
        await until_gone(entry["pid"])
        await ended(asking)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("nature", NATURES)
async def test_a_signal_while_generating_ends_everything_in_order(
    start: Any, tmp_path: Path, nature: Nature, number: int
) -> None:
    app = with_endless(start, tmp_path, nature)
    lines: list[str] = []
    begun = asyncio.Event()

    async def read() -> None:
        async with app.client() as client:
            async with client.stream("POST", "/v1/chat/completions", json=chat("endless", stream=True)) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    begun.set()

    reading = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 30)
    (child,) = app.children()
    app.process.send_signal(number)
    assert await asyncio.to_thread(app.process.wait, 5) == 0
    assert is_gone(child.pid)
    await asyncio.wait_for(reading, 5)
    error = json.loads(next(line for line in reversed(lines) if line.startswith("data: ")).removeprefix("data: "))
    assert error["error"]["code"] == "shutting_down"
    assert "Traceback" not in app.log()
    assert not (app.home / "endpoint.json").exists()
    assert app.ledger() == []


async def test_a_signal_while_loading_ends_everything_in_order(start: Any) -> None:
    app: Running = start(models=(gemma().parent,))
    async with app.client() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(GEMMA.stem)))
        await until(app.ledger)
        (entry,) = app.ledger()
        app.process.send_signal(signal.SIGTERM)
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert await asyncio.to_thread(app.process.wait, 5) == 0
    assert is_gone(entry["pid"])


@pytest.mark.parametrize("nature", NATURES)
async def test_a_child_killed_in_mid_stream_is_an_error_event_and_the_next_request_is_answered(
    start: Any, tmp_path: Path, nature: Nature
) -> None:
    app = with_endless(start, tmp_path, nature)
    lines: list[str] = []
    async with app.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=chat("endless", stream=True)) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if SPEAKS.search(line) and len(lines) < 20:
                    for child in app.children():
                        child.kill()
                    killed = asyncio.get_running_loop().time()
            seconds = asyncio.get_running_loop().time() - killed
        assert seconds < 2
        events = [line for line in lines if line.startswith(("event:", "data:"))]
        assert events[-2] == "event: error"
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["status"]) == ("worker_crashed", 502)
        (notice,) = app.notices()
        assert notice["kind"] == "worker_crashed"
        assert notice["numbers"]["exit_code"] == -9
        after = await client.post("/v1/chat/completions", json=chat("endless", max_tokens=3))
        assert after.status_code == 200
        assert after.headers["x-plimsoll-notice"] == "worker_crashed"


async def test_a_child_killed_under_a_whole_answer_is_a_502(start: Any) -> None:
    app: Running = start()
    async with app.client() as client:
        await client.post("/api/models/endless/load", json={})
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat("endless")))
        await until(lambda: app.status()["children"][0]["busy"])
        for child in app.children():
            child.kill()
        answer = await asyncio.wait_for(asking, 3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_crashed")


async def test_a_second_instance_with_another_home_leaves_the_first_ones_child_alone(
    start: Any, tmp_path: Path
) -> None:
    first: Running = start(home=tmp_path / "first")
    async with first.client() as client:
        await client.post("/v1/chat/completions", json=chat("hello"))
    (child,) = first.children()
    second: Running = start(home=tmp_path / "second")
    assert second.base_url != first.base_url
    async with second.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat("hello"))).status_code == 200
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(5) == 0
    assert child.is_running()
    async with first.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat("hello"))).status_code == 200


async def test_a_second_instance_with_the_same_home_says_where_the_first_serves(start: Any, tmp_path: Path) -> None:
    first: Running = start()
    with pytest.raises(AssertionError, match=f"already runs with this home, at {first.base_url}"):
        start()
    assert first.get("/health") == {"status": "ok"}


async def test_a_true_orphan_of_a_former_run_is_reaped_and_a_foreign_process_is_not(start: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    orphan, foreign = (
        subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], MARKER: marker})
        for marker in ("ours", "another")
    )
    rows = [
        {
            "pid": process.pid,
            "create_time": psutil.Process(process.pid).create_time(),
            "executable": psutil.Process(process.pid).exe(),
            "marker": "ours",
        }
        for process in (orphan, foreign)
    ]
    (home / "workers.json").write_text(json.dumps(rows))
    try:
        app: Running = start(home=home)
        assert is_gone(orphan.pid)
        assert not is_gone(foreign.pid)
        (notice,) = app.notices()
        assert notice["kind"] == "orphans_reaped"
        assert app.ledger() == []
    finally:
        for process in (orphan, foreign):
            process.kill()
            process.wait()


async def test_a_stopped_and_continued_application_and_child_go_on(start: Any) -> None:
    app: Running = start()
    count = 0
    async with app.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=chat("endless", stream=True)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    count += 1
                if count in {5, 10}:
                    target = app.process.pid if count == 5 else app.children()[0].pid
                    os.kill(target, signal.SIGSTOP)
                    await until(lambda pid=target: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
                    os.kill(target, signal.SIGCONT)
                    count += 1
                if count > 100:
                    break
        answer = await client.post("/v1/chat/completions", json=chat("endless", max_tokens=3))
    assert answer.status_code == 200
    assert app.notices() == []
