"""Real MLX servers on the CPU build of MLX: bound, prefix cache, release, failures, and their end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from engines.artifact.mlx import read_mlx
from engines.child import probe
from engines.child.ledger import is_ours, look
from engines.child.probe import TRUSTS_NOBODY
from engines.memory.bill import GIB, MIB
from engines.memory.footprint import anonymous_bytes
from engines.memory.mlx_budget import mlx_budget
from engines.mlx import engine as engine_module
from engines.mlx import settings
from engines.mlx.server import MlxChild
from tests.fixtures.mlx_proxy import Break, proxy_to
from tests.fixtures.mlx_world import (
    CHAT,
    GET,
    PATCH,
    RESET,
    TRAINED,
    World,
    behind,
    body,
    chat,
    current,
    make_world,
    talk,
)
from tests.fixtures.waiting import is_gone, until, until_gone

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("mlx_vlm") is None, reason="mlx-vlm is not installed (extra: test)"),
    pytest.mark.asyncio(loop_scope="module"),
]
REPOSITORY = Path(__file__).parents[2]
CEILING = 5000
BASE = 100 * MIB
"""What the child is said to hold: the real base moves by more than the tiny model's tokens weigh."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("mlx"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def child(world: World) -> AsyncIterator[MlxChild]:
    """One child whose memory ceiling is 5,000 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "anonymous_bytes", lambda pid: BASE)
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "4096")  # else glibc keeps what is freed, which Metal does not
        running = await world.child(world.plan(working_set=working_set_for(world, CEILING)))
    yield running
    await running.stop()


def working_set_for(world: World, ceiling: int) -> int:
    """The working set that gives a child of ``BASE`` this ceiling."""
    budget = mlx_budget(read_mlx(world.model), GIB)
    grown = budget.predict(ceiling + 512)
    assert grown is not None
    size = round((BASE + grown) / 0.9)
    while replace(budget, working_set=size).ceiling(BASE) != ceiling:
        size += 64
    return size


async def post(child: MlxChild, asked: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=TRUSTS_NOBODY, timeout=60) as client:
        headers = {"authorization": f"Bearer {child.key}"}
        return await client.post(f"http://127.0.0.1:{child.port}/v1/chat/completions", json=asked, headers=headers)


async def cached(child: MlxChild, messages: list[dict[str, str]]) -> int:
    """Tokens of the prompt that came from the prefix cache."""
    answer = await post(child, body(child, messages))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def begins(child: MlxChild, asked: dict[str, Any]) -> int:
    """The status of a stream; it is left after its first line."""
    async with httpx.AsyncClient(trust_env=False, verify=TRUSTS_NOBODY, timeout=60) as client:
        headers = {"authorization": f"Bearer {child.key}"}
        url = f"http://127.0.0.1:{child.port}/v1/chat/completions"
        async with client.stream("POST", url, json=asked, headers=headers) as answer:
            await anext(answer.aiter_lines())
            return answer.status_code


SYSTEM = "You are a sailor who answers in a word. " * 10
ONE, ONE_ON = chat(SYSTEM, "port?"), chat(SYSTEM, "port?", "left", "starboard?")
TWO = chat(SYSTEM, "bow?")


# --- the bound --------------------------------------------------------------------------------------------------------


async def test_a_child_enforces_the_bound_that_is_recorded(child: MlxChild) -> None:
    assert child.facts.allocated_window == child.plan.window.planned == child.planned_window == CEILING
    assert child.plan.window.bound_by == "memory"
    assert (await current(child))["max_kv_size"] == CEILING
    fixed = (await post(child, body(child, chat("", "a"), max_tokens=1))).json()["usage"]["prompt_tokens"]
    assert await begins(child, body(child, chat("", "a"), max_tokens=CEILING - fixed, stream=True)) == 200
    over = await post(child, body(child, chat("", "a"), max_tokens=CEILING - fixed + 1))
    assert over.status_code == 400
    assert f"Request needs {CEILING + 1} context tokens" in over.json()["detail"]
    assert f"but MAX_KV_SIZE is {CEILING}." in over.json()["detail"]


async def test_the_brake_moves_the_bound_and_lifts_it(child: MlxChild) -> None:
    assert await child.set_window(4096)
    assert child.facts.allocated_window == (await current(child))["max_kv_size"] == 4096
    assert "MAX_KV_SIZE is 4096." in (await post(child, body(child, chat("", "a"), max_tokens=4096))).json()["detail"]
    assert await child.set_window(7000)
    assert child.facts.allocated_window == CEILING
    assert await child.set_window(None)
    assert child.facts.allocated_window == (await current(child))["max_kv_size"] == CEILING


@pytest.mark.parametrize(
    ("patch", "get", "applied", "window", "words"),
    [
        (Break.LOST, None, True, 4096, "ReadTimeout.*read back, it holds to 4,096"),
        (Break.SWALLOWED, None, False, CEILING, "ReadTimeout.*read back, it holds to 5,000"),
        (Break.REFUSED, None, False, CEILING, "200.*read back, it holds to 5,000"),
        (Break.HALF, None, False, 6000, "200.*read back, it holds to 6,000"),
        (Break.FAILS, None, False, CEILING, "500.*read back, it holds to 5,000"),
        (Break.LOST, Break.FAILS, False, CEILING, "ReadTimeout.*none is recorded"),
        (Break.SWALLOWED, Break.SWALLOWED, False, CEILING, "ReadTimeout.*none is recorded"),
    ],
)
async def test_what_is_not_confirmed_is_read_back(
    child: MlxChild,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    patch: Break,
    get: Break | None,
    applied: bool,
    window: int,
    words: str,
) -> None:
    monkeypatch.setattr(settings, "SETTINGS_SECONDS", 0.4)
    async with behind(child) as proxy:
        proxy.breaks = {PATCH: patch, **({} if get is None else {GET: get})}
        assert await child.set_window(4096) is applied
    assert proxy.seen == [PATCH, GET]
    assert child.facts.allocated_window == window
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("engines")]
    assert re.search(words, record.getMessage())
    assert child.key not in record.getMessage()
    assert await child.set_window(None)
    assert child.facts.allocated_window == CEILING


async def test_a_load_whose_bound_is_swallowed_serves_what_the_child_enforces(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SETTINGS_SECONDS", 0.4)
    monkeypatch.setattr(engine_module, "anonymous_bytes", lambda pid: BASE)
    straight = probe.control_client
    async with proxy_to(0) as proxy:
        proxy.breaks = {PATCH: Break.SWALLOWED}

        def through(port: int) -> httpx.AsyncClient:
            proxy.upstream = port
            return straight(proxy.port)

        monkeypatch.setattr(probe, "control_client", through)
        running = await world.child(world.plan(working_set=working_set_for(world, CEILING)))
        try:
            assert running.facts.allocated_window == (await current(running))["max_kv_size"] == TRAINED
            assert (running.plan.window.planned, running.plan.window.bound_by) == (TRAINED, "model")
            (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("engines")]
            assert "it holds to 8,192 tokens" in record.getMessage()
        finally:
            await running.stop()


# --- the prefix cache -------------------------------------------------------------------------------------------------


async def test_a_conversation_goes_on_from_the_cache_and_another_starts_from_nothing(child: MlxChild) -> None:
    async with behind(child) as proxy:
        await child.begin(talk(child, ONE))
        first = await cached(child, ONE)
        child.ended(abandoned=False, tokens=500)
        proxy.seen.clear()
        await child.begin(talk(child, ONE_ON))
        assert proxy.seen == []
        assert await cached(child, ONE_ON) > first == 0
        child.ended(abandoned=False)
        assert child.last_request == 500
        await child.begin(talk(child, TWO))
        assert proxy.seen == [RESET]
        assert await cached(child, TWO) == 0
        await child.begin(talk(child, chat(SYSTEM, "bow?", "front", "stern?")))
        assert proxy.seen == [RESET]
        await child.begin(talk(child, chat(SYSTEM, "bow?", "changed", "stern?")))
        assert proxy.seen == [RESET, RESET], "the history was rewritten"


async def test_after_an_abandoned_stream_a_barrier_goes_first(child: MlxChild) -> None:
    async with behind(child) as proxy:
        await child.begin(talk(child, ONE))
        await begins(child, body(child, ONE, max_tokens=3000, stream=True))
        child.ended(abandoned=True)
        proxy.seen.clear()
        await child.begin(talk(child, TWO))
        assert proxy.seen == [CHAT, RESET]
        assert await cached(child, TWO) == 0


async def test_the_next_turn_waits_for_the_reset_of_a_cancelled_one(child: MlxChild) -> None:
    await child.begin(talk(child, TWO))
    async with behind(child) as proxy:
        proxy.breaks = {RESET: Break.HELD}
        left = asyncio.create_task(child.begin(talk(child, ONE)))
        await until(lambda: proxy.seen == [RESET])
        left.cancel()
        following = asyncio.create_task(child.begin(talk(child, ONE_ON)))
        await asyncio.wait({left})
        assert left.cancelled()
        assert not following.done()
        proxy.go.set()
        await asyncio.wait_for(following, 5)
        assert proxy.seen == [RESET], "what the cancelled turn began is what the next one needs"


async def test_a_reset_that_fails_never_fails_the_turn_and_is_tried_again(
    child: MlxChild, caplog: pytest.LogCaptureFixture
) -> None:
    await child.begin(talk(child, TWO))
    async with behind(child) as proxy:
        proxy.breaks = {RESET: Break.FAILS}
        await child.begin(talk(child, ONE))
        (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("engines")]
        assert "reset of its prefix cache (500)" in record.getMessage()
        proxy.breaks = {}
        await child.begin(talk(child, ONE))
        await child.begin(talk(child, ONE))
        assert proxy.seen == [RESET, RESET]


async def test_nothing_of_a_prompt_reaches_the_disk(child: MlxChild, world: World) -> None:
    said = await current(child)
    assert (said["apc_enabled"], said["apc_disk_enabled"], said["apc_num_blocks"]) == (True, False, TRAINED // 16)
    written = [path for path in world.folder.rglob("*") if path.is_file() and world.model not in path.parents]
    assert not [path for path in written if b"sailor" in path.read_bytes()]
    assert not (world.folder / ".cache" / "mlx-vlm").exists()


async def test_a_release_gives_the_conversation_back(child: MlxChild) -> None:
    await child.begin(talk(child, ONE))
    for letter in "xyz":
        assert (await post(child, body(child, chat(letter * 1200, "a"), max_tokens=1))).status_code == 200
    before = anonymous_bytes(child.pid)
    async with behind(child) as proxy:
        assert await child.release()
        assert proxy.seen == [RESET, CHAT]
    after = anonymous_bytes(child.pid)
    assert before is not None
    assert after is not None
    assert after < before - 4 * MIB
    assert await cached(child, ONE) == 0


async def test_a_release_that_fails_says_so(child: MlxChild, caplog: pytest.LogCaptureFixture) -> None:
    await begins(child, body(child, ONE, max_tokens=3000, stream=True))
    child.ended(abandoned=True)
    async with behind(child) as proxy:
        proxy.breaks = {RESET: Break.FAILS}
        assert not await child.release()
        assert proxy.seen == [CHAT, RESET]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("engines")]) == 1
    assert await child.release()


# --- a process of its own ---------------------------------------------------------------------------------------------


async def test_the_key_is_nowhere_that_others_may_read(child: MlxChild) -> None:
    process = Path(f"/proc/{child.pid}")
    for name in ("cmdline", "environ"):
        assert child.key.encode() not in (process / name).read_bytes()
    assert child.key not in child.tail
    async with httpx.AsyncClient(
        trust_env=False, verify=TRUSTS_NOBODY, base_url=f"http://127.0.0.1:{child.port}"
    ) as client:
        assert (await client.get("/health")).status_code == 401


async def test_the_ledger_knows_it_by_its_program_and_its_age(child: MlxChild, world: World) -> None:
    (entry,) = [e for e in world.ledger._read() if e.pid == child.pid]
    seen = look(child.pid)
    assert is_ours(entry, seen)
    assert seen is not None
    assert not is_ours(entry, replace(seen, executable="/bin/another"))
    assert not is_ours(entry, replace(seen, create_time=seen.create_time + 5))


async def test_ctrl_c_is_the_parents_affair(child: MlxChild) -> None:
    os.kill(child.pid, signal.SIGINT)
    assert await cached(child, chat("", "still there?")) >= 0
    assert os.getsid(child.pid) == child.pid
    assert "Traceback" not in child.tail


async def test_a_stop_with_an_open_stream_is_short_and_leaves_nothing(world: World) -> None:
    told: list[float] = []
    running = await world.child(world.plan(), told.append)
    assert running.facts.allocated_window == TRAINED
    assert running.facts.build is not None
    assert told[-1] == 1.0
    assert told == sorted(told)
    lines: list[str] = []

    async def read() -> None:
        asked = body(running, chat("", "a"), max_tokens=8000, stream=True)
        url, headers = (
            f"http://127.0.0.1:{running.port}/v1/chat/completions",
            {"authorization": f"Bearer {running.key}"},
        )
        async with httpx.AsyncClient(trust_env=False, verify=TRUSTS_NOBODY, timeout=60) as client:
            async with client.stream("POST", url, json=asked, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)

    reading = asyncio.create_task(read())
    await until(lambda: len(lines) > 2)
    began = time.monotonic()
    await running.stop()
    assert time.monotonic() - began < 3
    assert is_gone(running.pid)
    await asyncio.wait({reading})
    assert isinstance(reading.exception(), httpx.TransportError)
    assert not [e for e in world.ledger._read() if e.pid == running.pid]


async def test_a_model_that_sees_says_so(world: World, tmp_path: Path) -> None:
    from tests.fixtures.tiny_mlx import make_tiny_mlx_vision

    running = await world.child(world.plan(model=make_tiny_mlx_vision(tmp_path)))
    try:
        assert running.facts.modalities == {"image"}
    finally:
        await running.stop()


async def test_no_helper_of_multiprocessing_outlives_the_last_child(tmp_path: Path, world: World) -> None:
    program = alone(tmp_path, world, "await child.stop()")
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    try:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).startswith("serves")
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "then"
        await until(lambda: not psutil.Process(process.pid).children(recursive=True), 3)
    finally:
        process.kill()
        process.communicate()


async def test_a_child_is_gone_two_seconds_after_its_parent_was_killed(tmp_path: Path, world: World) -> None:
    program = alone(tmp_path, world, "pass")
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    try:
        assert process.stdout is not None
        pid = int((await asyncio.to_thread(process.stdout.readline)).split()[1])
        helpers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    await until_gone(pid, 2)
    for helper in helpers:
        await until_gone(helper.pid, 2)


def alone(folder: Path, world: World, then: str) -> Path:
    """A program that starts a child, says ``serves PID``, does something, says ``then``, and stays."""
    program = folder / "parent.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import asyncio, sys
            from pathlib import Path
            sys.path.insert(0, {str(REPOSITORY)!r})
            from engines.child.ledger import Ledger
            from tests.fixtures.mlx_world import World

            async def main():
                folder = Path({str(folder)!r})
                world = World(folder, Path({str(world.model)!r}), Ledger(folder / "workers.json"))
                child = await world.child(world.plan())
                print("serves", child.pid, flush=True)
                {then}
                print("then", flush=True)
                await asyncio.sleep(60)

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    return program
