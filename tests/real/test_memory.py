"""What windows and predictions promise, against real children: buffers to the byte, memory to 5 % or 16 MiB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from calibration import (
    NEAR,
    NEAR_BYTES,
    PRINTED,
    Measured,
    Model,
    laboratory,
    measure,
    read_model,
    tiny_models,
)

from engines.artifact.facts import ModelKind
from engines.llama_cpp.cpu import CpuEngine
from engines.machine import Machine
from engines.memory.check import surplus
from engines.memory.cost import compute_bytes
from engines.memory.repack import at_most
from engines.plan import LaunchSettings
from tests.fixtures.running import gemma

pytestmark = pytest.mark.real

MIB = 1 << 20
GIB = 1 << 30
WINDOWS = {
    "tiny-llama": (4096, 8000, 16_384, 65_536, 131_072),
    "tiny-qwen3": (4096, 8192, 16_384, 65_536, 131_072),
    "gemma-3-270m-q4_k_m": (1024, 4096, 8192, 16_384, 32_768),
}


class Bench:
    """The engine, this machine and the models."""

    def __init__(self, engine: CpuEngine, machine: Machine, folder: Path) -> None:
        self.engine, self.machine = engine, machine
        models = (*tiny_models(folder, machine), read_model(gemma(), machine))
        self.models = {model.name: model for model in models}

    async def load(
        self, model: Model, settings: LaunchSettings, *more: str, machine: Machine | None = None
    ) -> Measured:
        return await measure(self.engine, machine or self.machine, model, settings, more)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with laboratory() as (engine, machine, folder):
        yield Bench(engine, machine, folder)


@pytest.mark.parametrize("name", WINDOWS)
async def test_five_windows_cost_what_was_predicted(bench: Bench, name: str) -> None:
    """KV cache and copy of the weights as printed (hundredths of a MiB), compute 1 KiB a token, /props as planned."""
    model, computes = bench.models[name], []
    for window in WINDOWS[name]:
        found = await bench.load(model, LaunchSettings(window=window))
        plan, output, held = found.plan, found.output, found.held
        assert plan.window.planned == window
        assert found.allocated == -(-window // 256) * 256
        assert output.flash_attention is True
        assert output.kv is not None
        caches = sum(buffer.kind == "KV" for buffer in output.buffers)
        assert abs(plan.memory.bill["kv"] - output.kv) <= PRINTED * caches
        assert output.repacked is not None
        assert abs(model.copied - output.repacked) <= PRINTED
        assert at_most(model.facts, bench.machine.cpu_features) >= model.copied
        assert held is not None
        assert plan.memory.predicted is not None
        assert abs(plan.memory.predicted - held) <= max(NEAR_BYTES, NEAR * held)
        assert surplus(model.name, model.facts, found.allocated, held, model.copied) is None
        assert output.compute is not None
        computes.append(output.compute - compute_bytes(model.facts, window))
    assert max(computes) - min(computes) <= 2 * PRINTED
    assert max(computes) <= 256 * MIB


async def test_a_window_bound_by_memory_is_what_the_child_has_and_stays_within_the_budget(bench: Bench) -> None:
    model = bench.models["tiny-qwen3"]
    machine = replace(bench.machine, ram_bytes=GIB, memory_limit_bytes=512 * MIB)
    found = await bench.load(model, LaunchSettings(), machine=machine)
    assert found.plan.window.bound_by == "memory"
    assert found.allocated == found.plan.window.planned == 43_264
    assert found.output.kv is not None
    assert found.output.compute is not None
    assert found.held is not None
    assert found.held + found.output.compute <= 0.75 * 512 * MIB


async def test_a_load_into_little_free_memory_is_smaller_and_the_child_agrees(bench: Bench) -> None:
    found = await bench.load(bench.models["tiny-qwen3"], LaunchSettings(available_bytes=700 * MIB))
    assert found.plan.window.bound_by == "free memory"
    assert found.allocated == found.plan.window.planned
    assert found.held is not None
    assert found.held <= 700 * MIB - 512 * MIB


async def test_an_embedder_s_batch_is_paid_for(bench: Bench) -> None:
    model = bench.models["tiny-llama"]
    model = replace(model, facts=replace(model.facts, kind=ModelKind.EMBEDDING))
    found = await bench.load(model, LaunchSettings(), "--pooling", "mean")
    assert found.allocated == 8192
    assert found.output.compute is not None
    assert 128 * MIB < found.output.compute <= compute_bytes(model.facts, 8192)
