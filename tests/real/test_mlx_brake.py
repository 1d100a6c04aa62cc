"""The brake on an MLX child: the running child is held to less, and says so to the next request that is too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.natures import NO_MLX
from tests.fixtures.running import Running, chat
from tests.fixtures.tiny_mlx import make_tiny_mlx_text
from tests.fixtures.waiting import until

pytestmark = [pytest.mark.real, NO_MLX]

TRAINED = 16384
LONG = "x" * 9000
"""One character is one token of the tiny model: more than half of its window."""


def kinds(app: Running) -> list[str]:
    return [notice["kind"] for notice in app.status()["notices"]]


def window(app: Running) -> dict[str, Any]:
    (child,) = app.status()["children"]
    found: dict[str, Any] = child["window"]
    return found


def under_critical_pressure(start: Any, models: Path) -> Running:
    make_tiny_mlx_text(models / "tiny", trained_window=TRAINED)
    app: Running = start(
        models=(models,),
        module="tests.real.quick_brake",
        settings='engine = "mlx"\n',
        environ={"PLIMSOLL_FORCE_MEMORY_PRESSURE": "critical"},
    )
    return app


async def ask(app: Running, text: str) -> httpx.Response:
    async with app.client() as client:
        return await client.post("/v1/chat/completions", json=chat("tiny", text, max_tokens=4))


async def test_a_window_that_the_last_request_outgrew_is_shrunk_in_the_running_child(
    start: Any, tmp_path: Path
) -> None:
    app = under_critical_pressure(start, tmp_path / "models")
    answer = await ask(app, LONG)
    assert answer.status_code == 200, answer.text
    (child,) = app.children()
    await until(lambda: window(app)["allocated"] == TRAINED // 2, 20)
    shown = window(app)
    assert (shown["planned"], shown["bound_by"]) == (TRAINED // 2, "brake")
    assert [process.pid for process in app.children()] == [child.pid]  # no restart
    assert "action=shrink window=16384->8192" in app.log()
    refused = await ask(app, LONG)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["context_window"] == TRAINED // 2
    assert "lowered from 16,384 because memory ran short" in error["message"]
    short = await ask(app, "Hi")
    assert short.headers["x-plimsoll-window"] == str(TRAINED // 4)  # the refused request was larger than that too
    assert "acted" in kinds(app)
    assert "worker_crashed" not in kinds(app)


async def test_an_idle_child_is_unloaded_under_critical_pressure_and_loads_again(start: Any, tmp_path: Path) -> None:
    app = under_critical_pressure(start, tmp_path / "models")
    assert (await ask(app, "Hi")).status_code == 200
    await until(lambda: app.status()["children"] == [], 20)
    assert "action=unload" in app.log()
    again = await ask(app, "Hi")
    assert "reload" in again.headers["x-plimsoll-notice"]
