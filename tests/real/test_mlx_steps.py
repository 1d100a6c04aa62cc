"""Steps in a real MLX child: cancelled, cut short by its stop, and in a child that has no conversation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from engines.artifact.facts import ModelKind
from engines.artifact.mlx import read_mlx
from engines.plan import LaunchSettings
from tests.fixtures.mlx_proxy import Break
from tests.fixtures.mlx_world import CHAT, PATCH, RESET, TRAINED, World, behind, chat, current, make_world, talk
from tests.fixtures.natures import NO_MLX
from tests.fixtures.waiting import is_gone, until

pytestmark = [pytest.mark.real, NO_MLX, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("mlx"))


async def test_a_bound_is_known_though_who_sent_it_is_gone(world: World) -> None:
    child = await world.child(world.plan())
    try:
        async with behind(child) as proxy:
            proxy.breaks = {PATCH: Break.HELD}
            sending = asyncio.create_task(child.set_window(4096))
            await until(lambda: proxy.seen == [PATCH])
            sending.cancel()
            following = asyncio.create_task(child.begin(talk(child, chat("", "a"))))
            await asyncio.wait({sending})
            assert sending.cancelled()
            assert not following.done()
            proxy.go.set()
            await asyncio.wait_for(following, 5)
        assert child.facts.allocated_window == (await current(child))["max_kv_size"] == 4096
    finally:
        await child.stop()


async def test_a_stop_goes_on_when_cancelled_and_fails_no_turn_that_waits_for_a_step(world: World) -> None:
    child = await world.child(world.plan())
    await child.begin(talk(child, chat("", "a")))
    async with behind(child) as proxy:
        proxy.breaks = {RESET: Break.HELD}
        turn = asyncio.create_task(child.begin(talk(child, chat("", "b"))))
        await until(lambda: proxy.seen == [RESET])
        stopping = asyncio.create_task(child.stop())
        await asyncio.wait({turn})
        stopping.cancel()
        await asyncio.wait({stopping})
        assert stopping.cancelled()
        assert not turn.cancelled()
        assert turn.exception() is None
        proxy.go.set()
        await child.stop()
        assert is_gone(child.pid)
        await child.begin(talk(child, chat("", "c")))
        assert not await child.set_window(4096)
        assert not await child.release()
        assert proxy.seen == [RESET], "nothing is asked of a child that is being stopped"


async def test_a_stop_that_is_cancelled_at_once_still_stops(world: World) -> None:
    child = await world.child(world.plan())
    stopping = asyncio.create_task(child.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    await until(lambda: is_gone(child.pid), 5)
    await child.stop(hurry=True)


async def test_a_release_does_not_load_an_embedding_model_a_second_time(world: World, tmp_path: Path) -> None:
    model = make_tiny_embedder(tmp_path / "tiny-qwen3-embed")
    facts = read_mlx(model)
    assert facts.kind is ModelKind.EMBEDDING
    child = await world.child(world.engine().plan("embedder", facts, world.machine(), LaunchSettings()))
    try:
        async with behind(child) as proxy:
            assert await child.release()
            assert CHAT not in proxy.seen
        health = (await child.client.get("/health")).json()
        assert list(health["loaded_models"]) == ["embedding"]
        answer = await child.client.post("/v1/embeddings", json={"model": child.model_path, "input": "a"}, timeout=30)
        assert answer.status_code == 200
    finally:
        await child.stop()


def make_tiny_embedder(folder: Path) -> Path:
    """A tiny Qwen3, which mlx_vlm takes for an embedding model."""
    import numpy as np  # with what follows part of an extra that not every system has
    from safetensors.numpy import load_file, save_file

    from tests.fixtures.tiny_mlx import make_tiny_mlx_text

    make_tiny_mlx_text(folder, arch="qwen2", trained_window=TRAINED)
    config = json.loads((folder / "config.json").read_text())
    width = config["hidden_size"] // config["num_attention_heads"]
    changed = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": width}
    (folder / "config.json").write_text(json.dumps(config | changed))
    weights = {name: array for name, array in load_file(folder / "model.safetensors").items() if "bias" not in name}
    for layer in range(config["num_hidden_layers"]):
        for norm in ("q_norm", "k_norm"):
            weights[f"model.layers.{layer}.self_attn.{norm}.weight"] = np.ones(width, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder
