"""Real loads on a card, held against the numbers and the table that the CUDA engine plans with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import psutil
from gpu_laboratory import FAILING_SERVER, Laboratory

from engines.artifact.facts import ModelFacts
from engines.child.probe import control_client, trust
from engines.engine import Child
from engines.errors import EngineError, GpuOutOfMemory
from engines.llama_cpp.output import ServerOutput, read_output
from engines.machine import Machine
from engines.memory.check import FACTOR, SLACK_BYTES
from engines.memory.grid import padded
from engines.memory.mlx_budget import MlxBudget
from engines.nvidia.devices import VARIABLE
from engines.nvidia.placement import Placement, by_nvml, placed
from engines.nvidia.window import CONTEXT_BYTES, MARGIN_BYTES, RESERVE_BYTES, compute_slope
from engines.plan import LaunchPlan, LaunchSettings

MIB = 1024**2
PRINTED = MIB * 0.005
"""The server prints hundredths of a MiB."""
WINDOWS = (4096, 16_384, 65_536, 262_144)
"""Tokens; those that the card holds."""
DRY_WINDOWS = WINDOWS[:3]
"""A dry run keeps them in RAM."""
RESPAWN_SECONDS = 30.0
"""A brake's respawn must be over by then."""
PROMPT_TOKENS = 3000
PROMPT_SECONDS = 120.0


@dataclass(frozen=True)
class Row:
    """One thing that was checked. ``ok`` is None where a dry run cannot tell."""

    part: str
    what: str
    ours: float | str | None
    found: float | str | None
    unit: str
    ok: bool | None


@dataclass(frozen=True)
class Loaded:
    """One child, right after its load. Bytes."""

    plan: LaunchPlan
    output: ServerOutput
    held: int | None
    """On the card."""
    free: int | None
    """On the card, while it is loaded."""
    allocated: int | None
    """Tokens."""
    seconds: float
    grown: int | None = None
    """What it holds more after a prompt."""

    def on_card(self, kind: str, *, dry: bool) -> int | None:
        """Bytes of its buffers of one kind that lie on the card; a dry run has them all in RAM."""
        sizes = [b.size for b in self.output.buffers if b.kind == kind and (dry or b.device.startswith("CUDA"))]
        return sum(sizes) if sizes else None


async def check(lab: Laboratory) -> list[Row]:
    """All of it. Raises ``EngineError`` where a load fails that must not."""
    rows = before(lab.machine, lab)
    for name, model in (("main", lab.main), ("plain", lab.plain)):
        windows = windows_for(lab, name, model)
        found = [await load(lab, name, model, LaunchSettings(window=w), prompt=w == WINDOWS[0]) for w in windows]
        rows += [row for each in found for row in load_rows(name, each, dry=lab.dry)]
        if len(found) > 1:
            rows.append(slope_row(name, model, found, dry=lab.dry))
    rows += await sized(lab)
    rows += await respawned(lab)
    rows += await partly(lab)
    rows += await out_of_memory(lab)
    return rows


def windows_for(lab: Laboratory, name: str, model: ModelFacts) -> list[int]:
    """The windows that the card holds by our own sum, at least the smallest."""
    budget = lab.engine.plan(name, model, lab.machine, LaunchSettings(free_vram_bytes=lab.free())).memory.budget
    assert not isinstance(budget, MlxBudget)
    holds = (budget.holds if budget is not None else None) or 0
    held = [window for window in (DRY_WINDOWS if lab.dry else WINDOWS) if window <= holds]
    return held or [WINDOWS[0]]


def before(machine: Machine, lab: Laboratory) -> list[Row]:
    """What is known before any load."""
    verdict = lab.engine.preflight(machine)
    driver = ".".join(map(str, machine.driver_cuda)) if machine.driver_cuda else None
    capability = ".".join(map(str, lab.gpu.compute_capability)) if lab.gpu.compute_capability else None
    return [
        Row("card", "memory", None, lab.gpu.total_bytes, "B", lab.gpu.total_bytes is not None),
        Row("card", "free", None, lab.free(), "B", lab.free() is not None),
        Row("card", "compute capability", None, capability, "", capability is not None),
        Row("card", "the driver's CUDA", None, driver, "", driver is not None),
        Row("card", "pre-flight", "no verdict", verdict.code if verdict else "no verdict", "", verdict is None),
    ]


@asynccontextmanager
async def running(lab: Laboratory, plan: LaunchPlan) -> AsyncIterator[Child]:
    """A child, stopped in the end. Raises ``EngineError``."""
    child = await lab.engine.start(plan, lambda _: None)
    try:
        yield child
    finally:
        await child.stop()


async def load(
    lab: Laboratory, name: str, model: ModelFacts, settings: LaunchSettings, *, prompt: bool = False
) -> Loaded:
    """Load once and look. Raises ``EngineError``."""
    plan = lab.engine.plan(name, model, lab.machine, settings)
    free_before = lab.free()
    async with running(lab, plan) as child:
        held = lab.held(child.pid, free_before)
        grown = None
        if prompt and held is not None:
            await ask(child)
            later = lab.held(child.pid, free_before)
            grown = later - held if later is not None else None
        return Loaded(
            child.plan,
            read_output(child.tail),
            held,
            lab.free(),
            child.facts.allocated_window,
            child.load_seconds,
            grown,
        )


async def ask(child: Child) -> None:
    """A prompt over half of the smallest window."""
    async with control_client(child.port) as client:
        trust(client, child.key)
        body = {"prompt": "a " * (PROMPT_TOKENS // 2), "n_predict": 16}
        answer = await client.post("/completion", json=body, timeout=PROMPT_SECONDS)
        answer.raise_for_status()


def load_rows(name: str, found: Loaded, *, dry: bool) -> list[Row]:
    """One load at one window: what lies on the card, beside what was predicted. Pure."""
    plan, output = found.plan, found.output
    planned, bill, predicted = plan.window.planned or 0, plan.memory.bill, plan.memory.predicted or 0
    part = f"{name} {planned:,}"
    budget = plan.memory.budget
    kv, compute = found.on_card("KV", dry=dry), found.on_card("compute", dry=dry)
    weights = found.on_card("model", dry=dry)
    flash = bool(getattr(budget, "flash", False))
    known = kv is not None and compute is not None and weights is not None and found.held is not None
    context = (found.held or 0) - (kv or 0) - (compute or 0) - (weights or 0) if known else None
    constant = compute - bill.get("compute", 0) if compute is not None else None
    rows = [
        Row(part, "window", padded(planned), found.allocated, "tokens", found.allocated == padded(planned)),
        Row(part, "KV cache", bill.get("kv"), kv, "B", kv is not None and abs(kv - bill.get("kv", 0)) <= PRINTED * 2),
        Row(part, "on the card", predicted, found.held, "B", None if dry else _within(found.held, predicted, plan)),
        Row(
            part, "CUDA context, at most", CONTEXT_BYTES, context, "B",
            None if dry else context is not None and context <= CONTEXT_BYTES,
        ),
        Row(
            part, "constant part of the compute buffer, at most", RESERVE_BYTES, constant, "B",
            None if dry else constant is not None and constant <= RESERVE_BYTES,
        ),
        Row(
            part, "Flash Attention", _yes(flash), _yes(output.flash_attention), "",
            None if dry else output.flash_attention is not None and (output.flash_attention or not flash),
        ),
        Row(
            part, "all layers on the card", "all", _layers(output), "",
            None if dry else output.offloaded is not None and output.offloaded[0] == output.offloaded[1],
        ),
    ]  # fmt: skip
    if found.grown is not None:
        ok = None if dry else found.grown <= MARGIN_BYTES
        rows.append(Row(part, "growth during a prompt, at most", MARGIN_BYTES, found.grown, "B", ok))
    return rows


def slope_row(name: str, model: ModelFacts, found: Sequence[Loaded], *, dry: bool) -> Row:
    """What one further token adds to the compute buffer. Pure."""
    least, most = found[0], found[-1]
    more = (most.plan.window.planned or 0) - (least.plan.window.planned or 0)
    before, after = least.on_card("compute", dry=dry), most.on_card("compute", dry=dry)
    slope = None if before is None or after is None else (after - before) / more
    ours = compute_slope(model)
    ok = slope is not None and ours is not None and slope <= ours + 2 * PRINTED / more
    return Row(name, "compute, at most", ours, slope, "B a token", None if dry else ok)


async def sized(lab: Laboratory) -> list[Row]:
    """The window that we would give the model now."""
    settings = lab.engine.at_load(lab.machine, LaunchSettings())
    if lab.dry:  # a dry run keeps its window in RAM
        settings = replace(settings, cap=WINDOWS[1])
    plan = lab.engine.plan("main", lab.main, lab.machine, settings)
    before_load = lab.free()
    async with running(lab, plan) as child:
        seen = psutil.Process(child.pid).environ().get(VARIABLE)
        own = lab.nvml.process_bytes(lab.gpu.uuid, child.pid)
        held, left = lab.held(child.pid, before_load), lab.free()
        output, tried = read_output(child.tail), child.plan
        place = placed(output, lab.main, child.facts.allocated_window, by_nvml(held))
    ok = None if lab.dry else left is not None and left >= MARGIN_BYTES - SLACK_BYTES
    return [
        Row("sized", "window", plan.window.planned, tried.window.planned, "tokens", tried == plan),
        Row("sized", "bound by", "memory or model", plan.window.bound_by, "", plan.brake),
        Row("sized", "on the card", plan.memory.predicted, held, "B", None if lab.dry else held is not None),
        Row("sized", "left free on the card, at least", MARGIN_BYTES - SLACK_BYTES, left, "B", ok),
        Row("sized", "all layers on the card", "all", _layers(output), "", None if lab.dry else _all(output)),
        Row("sized", "placement", "full", _placement(place), "", place.full),
        Row("sized", VARIABLE, lab.gpu.uuid, seen, "", seen == lab.gpu.uuid),
        Row("sized", "NVML lists it on its card", "yes", _yes(own.value is not None) + _why(own.reason), "", None),
    ]


async def partly(lab: Laboratory) -> list[Row]:
    """A child with one layer on the card is told from a full one, by its output and by the card's bytes alone."""
    plan = lab.engine.plan("main", lab.main, lab.machine, LaunchSettings(window=WINDOWS[1]))
    argv = list(plan.argv)
    argv[argv.index("-ngl") + 1] = "1"
    free_before = lab.free()
    async with running(lab, replace(plan, argv=tuple(argv))) as child:
        output, held = read_output(child.tail), lab.held(child.pid, free_before)
        window = child.facts.allocated_window
    said = placed(output, lab.main, window, by_nvml(held))
    seen = placed(replace(output, offloaded=None), lab.main, window, by_nvml(held))
    return [
        Row("partial", "placement by the output", "partial", _placement(said), "", not said.full),
        Row("partial", "placement by NVML", "partial", _placement(seen), "", None if lab.dry else not seen.full),
    ]


async def respawned(lab: Laboratory) -> list[Row]:
    """As the brake starts it again: a smaller window, all layers."""
    settings = LaunchSettings(respawn=True, live_window=WINDOWS[1], cap=WINDOWS[0] * 2)
    found = await load(lab, "main", lab.main, settings)
    return [
        Row("respawn", "window", WINDOWS[0] * 2, found.allocated, "tokens", found.allocated == WINDOWS[0] * 2),
        Row("respawn", "seconds, at most", RESPAWN_SECONDS, found.seconds, "s", found.seconds <= RESPAWN_SECONDS),
        Row("respawn", "-ngl", "-2", found.plan.argv[found.plan.argv.index("-ngl") + 1], "", True),
    ]


async def out_of_memory(lab: Laboratory) -> list[Row]:
    """A window that no card holds: the error's class, and the one further try of a sized load."""
    settings = LaunchSettings(respawn=True, live_window=lab.greedy.trained_window)
    plan = lab.engine.plan("greedy", lab.greedy, lab.machine, settings)
    if lab.dry:
        plan = replace(plan, argv=FAILING_SERVER)
    try:
        async with running(lab, plan):
            said = "it was loaded"
    except EngineError as error:
        said = error.code
    good = lab.engine.plan("greedy", lab.greedy, lab.machine, LaunchSettings(window=WINDOWS[0]))
    rows = [Row("out of memory", "class", GpuOutOfMemory.code, said, "", said == GpuOutOfMemory.code)]
    try:
        async with running(lab, replace(plan, retry=good)) as child:
            window = child.facts.allocated_window
    except EngineError as error:
        return [*rows, Row("out of memory", "one more try", WINDOWS[0], error.code, "tokens", False)]
    return [*rows, Row("out of memory", "one more try", WINDOWS[0], window, "tokens", window == WINDOWS[0])]


def _within(held: int | None, predicted: int, plan: LaunchPlan) -> bool:
    """Between what a full offload certainly holds and what the check after a load allows."""
    least = plan.memory.bill.get("kv", 0)
    return held is not None and least <= held <= FACTOR * predicted + SLACK_BYTES


def _all(output: ServerOutput) -> bool:
    return output.offloaded is not None and output.offloaded[0] == output.offloaded[1]


def _placement(place: Placement) -> str:
    return "full" if place.full else f"partial: {place.signal}"


def _layers(output: ServerOutput) -> str | None:
    return f"{output.offloaded[0]} of {output.offloaded[1]}" if output.offloaded is not None else None


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""
