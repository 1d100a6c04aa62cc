"""A client that leaves, at whatever moment: the slot is free at once, shown by the next request."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures.natures import NATURES, Nature
from tests.fixtures.running import GEMMA, Running, chat, gemma
from tests.fixtures.waiting import until

pytestmark = pytest.mark.real

FREE_SECONDS = 1.0
"""How soon the slot is free for the next one."""


async def next_answer(app: Running, model: str, seconds: float = FREE_SECONDS) -> None:
    """The proof: another request is granted within the time and answered."""
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat(model, max_tokens=1))
    assert answer.status_code == 200
    assert int(answer.headers["x-plimsoll-queue-ms"]) <= seconds * 1000


async def leave(asking: asyncio.Task[Any]) -> None:
    asking.cancel()
    await asyncio.wait({asking})


def ask(app: Running, model: str, text: str = "Hi", **more: Any) -> asyncio.Task[Any]:
    async def go() -> None:
        async with app.client() as client:
            await client.post("/v1/chat/completions", json=chat(model, text, **more))

    return asyncio.create_task(go())


def with_endless(start: Any, tmp_path: Path, nature: Nature) -> Running:
    app: Running = start(models=(nature.models(tmp_path / "models", "endless"),), settings=nature.settings)
    return app


@pytest.mark.parametrize("nature", NATURES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_while_generating(start: Any, tmp_path: Path, nature: Nature, streamed: bool) -> None:
    app = with_endless(start, tmp_path, nature)
    asking = ask(app, "endless", stream=streamed)
    await until(lambda: [c["busy"] for c in app.status()["children"]] == [1])
    await leave(asking)
    await next_answer(app, "endless")


@pytest.mark.parametrize("nature", NATURES)
async def test_while_queued(start: Any, tmp_path: Path, nature: Nature) -> None:
    app = with_endless(start, tmp_path, nature)
    first = ask(app, "endless")
    await until(lambda: [c["busy"] for c in app.status()["children"]] == [1])
    second = ask(app, "endless")
    await until(lambda: len(app.status()["waiting"]) == 1)
    await leave(second)
    await until(lambda: app.status()["waiting"] == [], FREE_SECONDS)
    await leave(first)
    await next_answer(app, "endless")


async def test_during_a_load_which_finishes_and_stays(start: Any) -> None:
    app: Running = start(models=(gemma().parent,))
    asking = ask(app, GEMMA.stem)
    await until(lambda: [c["state"] for c in app.status()["children"]] == ["loading"])
    await leave(asking)
    await until(lambda: app.status()["waiting"] == [], FREE_SECONDS)
    await until(lambda: [c["state"] for c in app.status()["children"]] == ["ready"], 60)
    await next_answer(app, GEMMA.stem)


async def cpu_seconds_of(child: psutil.Process, work: Awaitable[object]) -> float:
    """What the child spends while the work is done: unlike time, the same on a busy machine."""
    before = child.cpu_times().user
    await work
    return child.cpu_times().user - before


async def test_during_a_prompt_of_5000_tokens(start: Any) -> None:
    app: Running = start(models=(gemma().parent,))
    await next_answer(app, GEMMA.stem, seconds=60)
    (child,) = app.children()
    quarter = await cpu_seconds_of(child, ask(app, GEMMA.stem, "whole " * 1250, max_tokens=1))
    whole = 4 * quarter  # at least: attention grows faster than the prompt
    for streamed, word in ((True, "word "), (False, "other ")):
        before = child.cpu_times().user
        asking = ask(app, GEMMA.stem, word * 5000, stream=streamed)
        await until(lambda begun=before + whole / 20: child.cpu_times().user > begun)  # it reads the prompt by now
        await leave(asking)
        after = await cpu_seconds_of(child, next_answer(app, GEMMA.stem))
        assert after < whole / 3, "the child went on reading for nobody"


async def test_fifty_clients_that_leave_at_once_leave_nothing(start: Any) -> None:
    app: Running = start()
    asking = [ask(app, "endless", stream=bool(i % 2)) for i in range(50)]
    await until(lambda: len(app.status()["waiting"]) == 49, 30)
    await asyncio.gather(*(leave(task) for task in asking))
    await until(lambda: app.status()["waiting"] == [] and app.status()["children"][0]["busy"] == 0, 5)
    await next_answer(app, "endless")


async def test_a_connection_that_is_reset_in_mid_answer(start: Any) -> None:
    app: Running = start()
    body = json.dumps(chat("endless", stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", app.facts["port"])
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    await reader.readuntil(b'"content":"')
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
    await next_answer(app, "endless")
    assert "Traceback" not in app.log()
