"""Real llama-servers at several windows, held against the constants that windows and predictions are made of."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.gguf import read_facts
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.cpu import CpuEngine
from engines.llama_cpp.output import ServerOutput, read_output
from engines.llama_cpp.server import Launcher
from engines.machine import Machine, read_machine
from engines.memory.cost import UBATCH, compute_bytes, scores_bytes_per_token
from engines.memory.grid import padded
from engines.memory.repack import expected
from engines.plan import LaunchPlan, LaunchSettings
from tests.fixtures import tiny_gguf

MIB = 1024**2
PRINTED = MIB * 0.005
"""The server prints hundredths of a MiB."""
NEAR = 0.05
NEAR_BYTES = 16 * MIB
"""A prediction may be off by this share, or by these bytes, whichever is more."""
EMBEDDER_SHARE = 0.75
"""Of the compute predicted for an embedder the server uses at least this: the activations are an upper bound."""
WINDOWS = (4096, 8192, 16_384, 32_768, 65_536)
EMBEDDER_WINDOWS = (2048, 8192)
TINY = {"tiny-llama": ("llama", 16), "tiny-qwen3": ("qwen3", 128)}
"""By name: architecture and size of a head."""


@dataclass(frozen=True)
class Model:
    """A model to measure with, and the exact size of the server's copy of its weights as we count it."""

    name: str
    facts: ModelFacts
    copied: int


@dataclass(frozen=True)
class Measured:
    """One child, right after its load."""

    model: str
    plan: LaunchPlan
    output: ServerOutput
    held: int | None
    """Anonymous memory, bytes."""
    allocated: int | None
    """Tokens that it says it has."""


@dataclass(frozen=True)
class Row:
    """One number of ours beside the server's."""

    model: str
    window: int
    what: str
    ours: float | None
    server: float | None
    unit: str
    ok: bool


@asynccontextmanager
async def laboratory() -> AsyncIterator[tuple[CpuEngine, Machine, Path]]:
    """An engine, this machine, and a folder for models, which goes away. Raises ``ServerMissing``."""
    with tempfile.TemporaryDirectory(prefix="calibrate-") as name:
        folder = Path(name)
        config = folder / "config"
        config.mkdir()
        machine = read_machine(look_for_gpus=False).with_server(find_server(setting=None, flavour="cpu"))
        yield CpuEngine(Launcher(Ledger(folder / "workers.json"), for_this_system()), config), machine, folder


def read_model(path: Path, machine: Machine) -> Model:
    """Read a model with the tensors that it multiplies."""
    facts = read_facts(path)
    return Model(path.stem, facts, expected(facts, machine.cpu_features))


def tiny_models(folder: Path, machine: Machine) -> list[Model]:
    """Write and read the tiny ones; Qwen3's heads are as large as the real one's."""
    return [
        read_model(tiny_gguf.make(folder / f"{name}.gguf", arch=arch, head_dim=head), machine)
        for name, (arch, head) in TINY.items()
    ]


async def measure(
    engine: CpuEngine,
    machine: Machine,
    model: Model,
    settings: LaunchSettings,
    more: Sequence[str] = (),
) -> Measured:
    """Start one child, read it back and stop it. ``more`` is put behind its command line. Raises ``EngineError``."""
    plan = engine.plan(model.name, model.facts, machine, replace(settings, repacked_bytes=model.copied))
    plan = replace(plan, argv=(*plan.argv, *more))
    child = await engine.start(plan, lambda _: None)
    try:
        return Measured(model.name, plan, read_output(child.tail), child.measured_bytes, child.facts.allocated_window)
    finally:
        await child.stop()


def child_rows(found: Measured) -> list[Row]:
    """What one child shows: window, KV cache, copy of the weights, anonymous memory, Flash Attention. Pure."""
    planned, bill, output = found.plan.window.planned, found.plan.memory.bill, found.output
    assert planned is not None

    def row(what: str, ours: float | None, server: float | None, unit: str, allowed: float) -> Row:
        ok = ours is not None and server is not None and abs(ours - server) <= allowed
        return Row(found.model, planned, what, ours, server, unit, ok)

    caches = sum(buffer.kind == "KV" for buffer in output.buffers)
    predicted = found.plan.memory.predicted
    return [
        row("window", padded(planned), found.allocated, "tokens", 0),
        row("KV cache", bill.get("kv"), output.kv, "B", PRINTED * caches),
        row("copy of the weights", bill.get("repacked"), output.repacked, "B", PRINTED),
        row("anonymous at load", predicted, found.held, "B", max(NEAR_BYTES, NEAR * (found.held or 0))),
        row("Flash Attention", 1, output.flash_attention, "", 0),
    ]


def slope_row(found: Sequence[Measured], what: str, ours: int) -> Row:
    """What a further token adds to the compute buffer, from the smallest window to the largest. Pure."""
    smallest, largest = _ends(found)
    more = _window(largest) - _window(smallest)
    before, after = smallest.output.compute, largest.output.compute
    slope = None if before is None or after is None else (after - before) / more
    allowed = 2 * PRINTED / more
    ok = slope is not None and abs(slope - ours) <= allowed
    return Row(largest.model, _window(largest), what, ours, slope, "B a token", ok)


def embedder_row(found: Sequence[Measured], facts: ModelFacts) -> Row:
    """What the compute buffer of an embedder grows by from the smallest window to the largest. Pure."""
    smallest, largest = _ends(found)
    before, after = smallest.output.compute, largest.output.compute
    server = None if before is None or after is None else after - before
    ours = compute_bytes(facts, _window(largest)) - compute_bytes(facts, _window(smallest))
    ok = server is not None and EMBEDDER_SHARE * ours <= server <= ours
    return Row(largest.model, _window(largest), "compute of an embedder, at most", ours, server, "B", ok)


async def calibrate(models: Iterable[Path]) -> tuple[list[Row], Machine]:
    """Measure the tiny models and these. Raises ``EngineError`` and ``ArtifactError``."""
    rows: list[Row] = []
    async with laboratory() as (engine, machine, folder):
        tiny = tiny_models(folder, machine)
        for model in (*tiny, *(read_model(path, machine) for path in models)):
            trained = model.facts.trained_window or max(WINDOWS)
            found = [
                await measure(engine, machine, model, LaunchSettings(window=window))
                for window in WINDOWS
                if window <= trained
            ]
            rows += [row for each in found for row in child_rows(each)]
            rows.append(slope_row(found, "compute", UBATCH * 2))
        small = tiny[0]
        heads = max(small.facts.heads or (0,))
        found = [
            await measure(engine, machine, small, LaunchSettings(window=window), ("-fa", "off"))
            for window in (WINDOWS[0], WINDOWS[1])
        ]
        rows.append(slope_row(found, "compute without Flash Attention", scores_bytes_per_token(heads)))
        embedder = replace(small, name="tiny-embedder", facts=replace(small.facts, kind=ModelKind.EMBEDDING))
        found = [
            await measure(engine, machine, embedder, LaunchSettings(window=window), ("--pooling", "mean"))
            for window in EMBEDDER_WINDOWS
        ]
        rows.append(embedder_row(found, embedder.facts))
    return rows, machine


def _ends(found: Sequence[Measured]) -> tuple[Measured, Measured]:
    return min(found, key=_window), max(found, key=_window)


def _window(found: Measured) -> int:
    assert found.plan.window.planned is not None
    return found.plan.window.planned
