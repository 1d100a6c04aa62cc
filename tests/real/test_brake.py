"""The memory brake with real children in a limited group: the whole story by the seams, in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures import tiny_gguf
from tests.fixtures.cgroup import memory_group
from tests.fixtures.running import Running, chat
from tests.fixtures.waiting import is_gone, until

pytestmark = pytest.mark.real

GROUP_BYTES = 2 << 30
TRAINED = 131072


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose KV cache at its trained window (768 MiB) is over a third of the group's memory."""
    folder = tmp_path_factory.mktemp("braked")
    tiny_gguf.make(
        folder / "big.gguf",
        arch="qwen3",
        say="lorem ipsum dolor",
        loop=True,
        ctx=TRAINED,
        layers=6,
        head_dim=64,
        kv_heads=4,
    )
    return folder


@pytest.fixture
def group() -> Iterator[Any]:
    with memory_group(GROUP_BYTES) as made:
        yield made


def begin(start: Any, group: Any, models: Path, pressure: str = "") -> Running:
    environ = {"PLIMSOLL_FORCE_MEMORY_PRESSURE": pressure} if pressure else {}
    app: Running = start(models=(models,), wrap=tuple(group.wrap()), module="tests.real.quick_brake", environ=environ)
    return app


def window_of(child: psutil.Process) -> int:
    argv = child.cmdline()
    return int(argv[argv.index("-c") + 1])


def served(app: Running) -> dict[str, Any] | None:
    """The one child when it is ready and idle."""
    children = [c for c in app.status()["children"] if c["state"] == "ready" and not c["busy"]]
    return children[0] if len(children) == 1 else None


async def ask(app: Running) -> dict[str, str]:
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("big", max_tokens=4))
    assert answer.status_code == 200, answer.text
    return dict(answer.headers)


def kinds(app: Running) -> list[str]:
    return [notice["kind"] for notice in app.status()["notices"]]


async def until_window(app: Running, window: int) -> psutil.Process:
    def reached() -> bool:
        child = served(app)
        return child is not None and child["window"]["allocated"] == window

    await until(reached, 30)
    (child,) = app.children()
    assert window_of(child) == window
    return child


async def test_critical_pressure_halves_twice_then_unloads_and_the_reload_starts_reduced(
    start: Any, group: Any, models: Path
) -> None:
    app = begin(start, group, models, "critical")
    headers = await ask(app)
    assert headers["x-plimsoll-window"] == str(TRAINED)
    first = await until_window(app, TRAINED // 2)
    assert kinds(app) == ["acted", "reload"]
    acted = app.status()["notices"][0]["numbers"]
    assert acted == {"before": TRAINED, "after": TRAINED // 2, "trained": TRAINED}
    headers = await ask(app)
    assert headers["x-plimsoll-window"] == str(TRAINED // 2)
    assert headers["x-plimsoll-notice"] == "acted, reload"
    second = await until_window(app, TRAINED // 4)
    assert is_gone(first.pid)
    await until(lambda: is_gone(second.pid), 20)  # nobody asks: two critical idle samples unload it
    await until(lambda: app.status()["children"] == [])
    assert "action=unload" in app.log()
    headers = await ask(app)
    assert headers["x-plimsoll-window"] == str(TRAINED // 4)
    assert "reload" in headers["x-plimsoll-notice"]
    (child,) = app.children()
    assert window_of(child) == TRAINED // 4
    assert "worker_crashed" not in kinds(app)
    assert app.log().count("action=shrink+respawn") == 2
    brake = app.status()["children"][0]["brake"]
    assert brake["cap"] == TRAINED // 4


async def test_a_warning_with_paging_is_decided_at_the_end_of_a_turn_and_applied_when_idle(
    start: Any, group: Any, models: Path
) -> None:
    app = begin(start, group, models, "warning")
    await ask(app)
    await until_window(app, TRAINED * 3 // 4)
    assert kinds(app) == ["acted", "reload"]
    assert "point=idle level=warning action=shrink+respawn window=131072->98304" in app.log()


async def test_a_turn_that_runs_while_memory_is_critical_is_never_cut(start: Any, group: Any, models: Path) -> None:
    app = begin(start, group, models, "critical")
    async with app.client() as client:
        body = chat("big", max_tokens=1500, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line.startswith(("data:", "event:"))]
    assert lines[-1] == "data: [DONE]"
    assert not [line for line in lines if line.startswith("event: error")]
    await until_window(app, TRAINED // 2)


async def test_a_child_that_crashes_starts_again_with_its_cap(start: Any, group: Any, models: Path) -> None:
    app = begin(start, group, models, "critical")
    await ask(app)
    child = await until_window(app, TRAINED // 2)
    child.kill()
    await until(lambda: "worker_crashed" in kinds(app))
    headers = await ask(app)
    assert headers["x-plimsoll-window"] == str(TRAINED // 2)


async def test_a_pinned_window_is_never_resized(start: Any, group: Any, models: Path) -> None:
    app: Running = start(
        models=(models,),
        wrap=tuple(group.wrap()),
        module="tests.real.quick_brake",
        environ={"PLIMSOLL_FORCE_MEMORY_PRESSURE": "critical"},
        settings="window = 65536\n",
    )
    await ask(app)
    (child,) = app.children()
    await until(lambda: is_gone(child.pid), 20)
    assert "shrink" not in app.log()
    assert "acted" not in kinds(app)


async def test_a_small_cache_is_not_what_makes_memory_short(start: Any, models: Path, tiny_models: Path) -> None:
    app: Running = start(
        models=(tiny_models,),
        module="tests.real.quick_brake",
        environ={"PLIMSOLL_FORCE_MEMORY_PRESSURE": "critical"},
    )
    async with app.client() as client:
        await client.post("/v1/chat/completions", json=chat("hello"))
    await until(lambda: "external" in kinds(app))
    await asyncio.sleep(0)
    assert kinds(app).count("external") == 1
    assert "shrink" not in app.log()


async def test_without_pressure_nothing_happens(start: Any, group: Any, models: Path) -> None:
    app = begin(start, group, models)
    await ask(app)
    (child,) = app.children()
    before = app.log().count("\n")
    await until(lambda: app.status()["children"][0]["brake"]["level"] == "calm")
    await ask(app)
    assert app.children()[0].pid == child.pid
    assert "Memory brake" not in app.log()
    assert app.log().count("\n") == before
