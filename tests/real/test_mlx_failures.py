"""Real MLX servers that do not load: each way is one error, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines import errors
from engines.mlx import engine as engine_module
from engines.plan import LaunchPlan
from tests.fixtures.mlx_world import World, make_world
from tests.fixtures.natures import NO_MLX
from tests.fixtures.waiting import is_gone, until

pytestmark = [pytest.mark.real, NO_MLX, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("mlx"))


async def fails(world: World, plan: LaunchPlan, kind: type[errors.LoadError], **options: Any) -> errors.LoadError:
    """A load that fails with an error of exactly this type, and leaves nothing."""
    with pytest.raises(errors.LoadError) as caught:
        await world.child(plan, **options)
    assert type(caught.value) is kind, (caught.value.sentence, caught.value.tail[-2000:])
    return caught.value


async def test_a_folder_without_a_model(world: World, tmp_path: Path) -> None:
    error = await fails(world, world.plan(model=tmp_path), errors.ModelFileMissing)
    assert "Application startup failed" in error.tail


async def test_a_model_of_an_unknown_kind(world: World, tmp_path: Path) -> None:
    copy(world.model, tmp_path)
    known = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(known | {"model_type": "frobnicate"}))
    error = await fails(world, world.plan(model=tmp_path), errors.ArchitectureUnknown)
    assert "frobnicate" in error.sentence


async def test_a_model_that_was_cut_short(world: World, tmp_path: Path) -> None:
    copy(world.model, tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    await fails(world, world.plan(model=tmp_path), errors.ModelFileTruncated)


async def test_a_port_that_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(engine_module, "free_port", lambda ports, start: taken.getsockname()[1])
        began = time.monotonic()
        await fails(world, world.plan(), errors.PortTaken)
        assert time.monotonic() - began < 6, "three tries, none of which loads a model"


async def test_a_child_that_is_killed_while_it_loads(world: World) -> None:
    before = world.pids()
    loading = asyncio.create_task(world.child(world.plan()))
    await until(lambda: world.pids() - before)
    (pid,) = world.pids() - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.KilledWhileLoading):
        await loading


async def test_a_load_that_takes_too_long(world: World) -> None:
    before = world.pids()
    await fails(world, world.plan(), errors.LoadTimedOut, load_seconds=0.5)
    assert world.pids() == before


async def test_a_cancelled_load_leaves_nothing(world: World) -> None:
    before = world.pids()
    loading = asyncio.create_task(world.child(world.plan()))
    await until(lambda: world.pids() - before)
    (pid,) = world.pids() - before
    loading.cancel()
    await asyncio.wait({loading})
    assert loading.cancelled()
    assert is_gone(pid)


async def test_an_embedding_model_that_cannot_be_loaded_is_a_failed_load(world: World) -> None:
    plan = world.plan()
    env = {name: value for name, value in plan.env.items() if name != "MLX_VLM_PRELOAD_MODEL"}
    argv = (plan.argv[0], "--embedding-model", str(world.folder / "absent"))
    await fails(world, replace(plan, argv=argv, env=env, embedding=True), errors.LoadError)


def copy(model: Path, folder: Path) -> None:
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
