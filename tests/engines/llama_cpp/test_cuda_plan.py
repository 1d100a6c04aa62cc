"""The CUDA engine's spawn table, row by row: argv and environment exact, and each row started for real."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.gguf import read_facts
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.child.parent_death.posix import LifelineOnly
from engines.errors import EngineUnavailable, GpuOutOfMemory, ServerMissing
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.cuda import CudaEngine, flash_lost
from engines.llama_cpp.server import Launcher
from engines.machine import Machine, ServerProgram
from engines.nvidia.gpu import Gpu
from engines.nvidia.nvml import Nvml
from engines.plan import LaunchPlan, LaunchSettings
from tests.fixtures import tiny_gguf
from tests.fixtures.facts import facts
from tests.fixtures.fake_nvml import Card, FakeNvml

GIB = 1 << 30
CARD = Gpu(0, "GPU-aaaa1111", "NVIDIA GeForce RTX 4060", 8 * GIB, (8, 9))
BIG = Gpu(1, "GPU-bbbb2222", "NVIDIA GeForce RTX 3090", 24 * GIB, (8, 6))
MACHINE = Machine(
    "Linux",
    "x86_64",
    16 * GIB,
    8,
    nvidia_gpus=1,
    llama_server=ServerProgram("/opt/llama-server", "1", "cuda", "bundled"),
    environment={"PATH": "/bin"},
    gpus=(CARD,),
    driver_cuda=(12, 8),
)


def seeing(value: str, *gpus: Gpu) -> Machine:
    """The machine under a user's ``CUDA_VISIBLE_DEVICES``."""
    return replace(MACHINE, gpus=gpus, environment={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": value})


@dataclass(frozen=True)
class Row:
    """One row of the spawn table. ``arguments``: what is passed between the model and the threads."""

    machine: Machine
    facts: ModelFacts
    settings: LaunchSettings
    arguments: str
    brake: bool
    seen: str | None
    """``CUDA_VISIBLE_DEVICES`` of the child."""
    bound_by: str
    retry: str | None = None
    """Arguments of the one further try."""


WIDE = facts(weights_bytes=1 << 20)
HUGE = facts(weights_bytes=20 * GIB)
PIN, AGAIN = LaunchSettings(window=8000), LaunchSettings(respawn=True, live_window=20_224, cap=15_104)
FREE = LaunchSettings(free_vram_bytes=4 * GIB)
AUTO, ALL = "-ngl -1 -fitt 1024", "-ngl -2 -fitt 1024"
ROWS = {
    "sized for the model": Row(
        MACHINE, WIDE, LaunchSettings(), f"-c 40960 {AUTO}", True, CARD.uuid, "model", f"-c 4096 {AUTO}"
    ),
    "sized for what is free": Row(
        MACHINE, WIDE, FREE, f"-c 20736 {AUTO}", True, CARD.uuid, "memory", f"-c 4096 {AUTO}"
    ),
    "sized, with a cap": Row(
        MACHINE, WIDE, replace(FREE, cap=8192), f"-c 8192 {AUTO}", True, CARD.uuid, "brake", f"-c 4096 {AUTO}"
    ),
    "sized for the largest card": Row(
        replace(MACHINE, gpus=(CARD, BIG)), WIDE, FREE, f"-c 20736 {AUTO}", True, BIG.uuid, "memory", f"-c 4096 {AUTO}"
    ),
    "sized for the card that the user names": Row(
        seeing("0", CARD, BIG), WIDE, FREE, f"-c 20736 {AUTO}", True, CARD.uuid, "memory", f"-c 4096 {AUTO}"
    ),
    "sized by the override": Row(
        MACHINE,
        WIDE,
        replace(FREE, vram_override_bytes=3 * GIB),
        f"-c 11520 {AUTO}",
        True,
        CARD.uuid,
        "memory",
        f"-c 4096 {AUTO}",
    ),
    "the floor does not fit": Row(MACHINE, HUGE, LaunchSettings(), f"-c 4096 {AUTO}", False, CARD.uuid, "memory"),
    "refused shape (MLA)": Row(MACHINE, facts(kv_lora_rank=512), LaunchSettings(), AUTO, False, CARD.uuid, "model"),
    "unreadable header": Row(MACHINE, facts(trained_window=None), FREE, AUTO, False, CARD.uuid, "model"),
    "several GPUs by the user's list": Row(seeing("1,0", CARD, BIG), WIDE, FREE, AUTO, False, "1,0", "model"),
    "no GPU by the user's list": Row(seeing("-1", CARD), WIDE, FREE, AUTO, False, "-1", "model"),
    "a part of a card": Row(seeing("MIG-1", CARD), WIDE, FREE, AUTO, False, "MIG-1", "model"),
    "NVML gone at the start": Row(replace(MACHINE, gpus=()), WIDE, FREE, AUTO, False, None, "model"),
    "NVML gone, and the variable empty": Row(seeing(""), WIDE, FREE, AUTO, False, None, "model"),
    "NVML gone at the load": Row(MACHINE, WIDE, LaunchSettings(vram_unreadable=True), AUTO, False, CARD.uuid, "model"),
    "NVML gone, and the override": Row(
        MACHINE,
        WIDE,
        LaunchSettings(vram_unreadable=True, vram_override_bytes=24 * GIB),
        AUTO,
        False,
        CARD.uuid,
        "model",
    ),
    "no GPU, and the override": Row(
        replace(MACHINE, gpus=()), WIDE, LaunchSettings(vram_override_bytes=24 * GIB), AUTO, False, None, "model"
    ),
    "a server without CUDA code": Row(
        MACHINE.with_server(ServerProgram("/opt/llama-server", "1", "cpu", "bundled")),
        WIDE,
        FREE,
        AUTO,
        False,
        CARD.uuid,
        "model",
    ),
    "the card does not tell its memory": Row(
        replace(MACHINE, gpus=(replace(CARD, total_bytes=None),)), WIDE, FREE, AUTO, False, CARD.uuid, "model"
    ),
    "pinned window": Row(MACHINE, WIDE, PIN, f"-c 8000 {AUTO}", True, CARD.uuid, "user"),
    "pinned window over what the card holds": Row(
        MACHINE, HUGE, replace(PIN, cap=4096), f"-c 8000 {AUTO}", True, CARD.uuid, "user"
    ),
    "pinned window over the trained one": Row(
        MACHINE, WIDE, LaunchSettings(window=100_000), f"-c 40960 {AUTO}", True, CARD.uuid, "model"
    ),
    "pinned window, NVML gone at the load": Row(
        MACHINE, WIDE, replace(PIN, vram_unreadable=True), f"-c 8000 {AUTO}", True, CARD.uuid, "user"
    ),
    "pinned window, several GPUs": Row(seeing("0,1", CARD, BIG), WIDE, PIN, f"-c 8000 {AUTO}", False, "0,1", "user"),
    "brake respawn": Row(MACHINE, WIDE, AGAIN, f"-c 15104 {ALL}", True, CARD.uuid, "brake"),
    "brake respawn, what is free does not count": Row(
        MACHINE, WIDE, replace(AGAIN, free_vram_bytes=0), f"-c 15104 {ALL}", True, CARD.uuid, "brake"
    ),
    "brake respawn, NVML gone": Row(
        MACHINE, WIDE, replace(AGAIN, vram_unreadable=True), f"-c 15104 {ALL}", True, CARD.uuid, "brake"
    ),
    "brake respawn, never the fallback": Row(MACHINE, HUGE, AGAIN, f"-c 15104 {ALL}", True, CARD.uuid, "brake"),
    "brake respawn without a cap": Row(
        MACHINE, WIDE, replace(AGAIN, cap=None), f"-c 20224 {ALL}", True, CARD.uuid, "model"
    ),
    "brake respawn of a pinned window": Row(
        MACHINE, WIDE, replace(AGAIN, window=8000), f"-c 8000 {ALL}", True, CARD.uuid, "user"
    ),
}


def command(arguments: str) -> str:
    return (
        f"/opt/llama-server --sleep-idle-seconds -1 -m /models/tiny.gguf {arguments} -t 7 -b 512 -np 1 --cache-ram 0 "
        "--no-cache-idle-slots --no-slots --no-webui --cache-reuse 256 --host 127.0.0.1 --alias tiny --jinja -lv 4"
    )


@pytest.fixture
def engine(tmp_path: Path) -> CudaEngine:
    launcher = Launcher(Ledger(tmp_path / "w.json"), LifelineOnly())
    return CudaEngine(launcher, Path("/empty"), nvml=Nvml(FakeNvml([Card(uuid=CARD.uuid, total=8 * GIB)])))


@pytest.mark.parametrize("name", ROWS)
def test_the_spawn_table(engine: CudaEngine, name: str) -> None:
    row = ROWS[name]
    plan = engine.plan("tiny", row.facts, row.machine, row.settings)
    assert " ".join(plan.argv) == command(row.arguments)
    several = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if row.seen and "," in row.seen else {}
    seen = {"CUDA_VISIBLE_DEVICES": row.seen} if row.seen is not None else {}
    per_spawn = ("LLAMA_API_KEY", "LLAMA_ARG_PORT", "LLAMA_SERVER_ROUTER_PORT", "PLIMSOLL_CHILD")
    own = {"PATH": "/bin", "XDG_CONFIG_HOME": "/empty", "APPDATA": "/empty"}
    assert plan.env == {**own, **seen, **several, **dict.fromkeys(per_spawn, "<per spawn>")}
    assert (plan.brake, plan.window.bound_by) == (row.brake, row.bound_by)
    assert plan.window.reason
    pinned = row.seen in {CARD.uuid, BIG.uuid} and name != "a server without CUDA code"
    assert plan.device == (row.seen if pinned else None)
    retry = " ".join(plan.retry.argv) if plan.retry is not None else None
    assert retry == (command(row.retry) if row.retry else None)
    if plan.retry is not None:
        assert (plan.retry.brake, plan.retry.device, plan.retry.retry) == (plan.brake, plan.device, None)
        assert plan.retry.env == plan.env
    assert plan == engine.plan("tiny", row.facts, row.machine, row.settings)
    assert json.dumps(plan.to_json())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("several GPUs by the user's list", "CUDA_VISIBLE_DEVICES names several cards (1,0), so the server sizes"),
        ("no GPU by the user's list", "CUDA_VISIBLE_DEVICES names no card of this machine (-1), so"),
        ("a part of a card", "CUDA_VISIBLE_DEVICES names a part of a card (MIG-1), so"),
        ("NVML gone at the load", "the graphics card does not tell its memory, so the server sizes the window itself"),
        ("the floor does not fit", "4,096 is the least a model is given; part of the model runs on the processor"),
        ("pinned window, several GPUs", "you set it to 8,000 tokens; CUDA_VISIBLE_DEVICES names several cards (0,1)"),
    ],
)
def test_each_row_says_why(engine: CudaEngine, name: str, said: str) -> None:
    row = ROWS[name]
    assert said in engine.plan("tiny", row.facts, row.machine, row.settings).window.reason


def test_windows_finds_the_toolkit_first(engine: CudaEngine) -> None:
    toolkit = r"C:\CUDA\v13.1"
    windows = replace(MACHINE, system="Windows", environment={"PATH": r"C:\Windows", "CUDA_PATH": toolkit})
    plan = engine.plan("tiny", WIDE, windows, LaunchSettings())
    assert plan.env["PATH"] == r"C:\CUDA\v13.1\bin;C:\CUDA\v13.1\bin\x64;C:\Windows"
    elsewhere = engine.plan("tiny", WIDE, replace(windows, system="Linux"), LaunchSettings())
    assert elsewhere.env["PATH"] == r"C:\Windows"
    without = engine.plan("tiny", WIDE, replace(windows, environment={"PATH": "x"}), LaunchSettings())
    assert without.env["PATH"] == "x"


def test_the_bill_is_the_card_s(engine: CudaEngine) -> None:
    plan = engine.plan("tiny", facts(projector_bytes=7), MACHINE, LaunchSettings(window=8192))
    assert plan.memory.bill == {
        "kv": 8192 * 114_688,
        "compute": 8192 * 1024,
        "weights": 600_000_000,
        "projector": 7,
        "cuda_context": 512 << 20,
    }
    assert plan.memory.predicted == sum(plan.memory.bill.values())


def test_an_embedder_s_second_try_has_a_smaller_batch_too(engine: CudaEngine) -> None:
    plan = engine.plan("tiny", facts(kind=ModelKind.EMBEDDING), MACHINE, LaunchSettings())
    assert "--embeddings -b 6400 -ub 6400" in " ".join(plan.argv)
    assert plan.retry is not None
    assert "--embeddings -b 4096 -ub 4096" in " ".join(plan.retry.argv)


def test_a_machine_without_a_server_cannot_be_planned_for(engine: CudaEngine) -> None:
    with pytest.raises(ServerMissing):
        engine.plan("tiny", facts(), MACHINE.with_server(None), LaunchSettings())


def test_what_is_free_is_asked_of_the_card_of_the_plan(engine: CudaEngine) -> None:
    plain = LaunchSettings()
    assert engine.at_load(MACHINE, plain) == LaunchSettings(free_vram_bytes=8 * GIB - (512 << 20))
    assert engine.at_load(seeing("0,1", CARD, BIG), plain) == plain
    assert engine.at_load(replace(MACHINE, gpus=(BIG,)), plain) == LaunchSettings(vram_unreadable=True)
    again = LaunchSettings(respawn=True, live_window=8192)
    assert engine.at_load(MACHINE, again) == again  # what a game left free since does not count


def test_a_machine_without_a_card_is_told_so(engine: CudaEngine) -> None:
    none = replace(MACHINE, nvidia_gpus=0, gpus=(), gpu_problem="NVML: Driver Not Loaded")
    with pytest.raises(EngineUnavailable, match=r"No NVIDIA card was found \(NVML: Driver Not Loaded\)"):
        engine.plan("tiny", facts(), none, LaunchSettings())
    with pytest.raises(EngineUnavailable):  # the QA variable never invents a card
        engine.plan("tiny", facts(), none, LaunchSettings(vram_override_bytes=24 * GIB))
    assert engine.at_load(none, LaunchSettings(vram_override_bytes=GIB)).free_vram_bytes is None


def test_the_preflight_looks_at_what_the_child_would_see(engine: CudaEngine) -> None:
    assert engine.preflight(MACHINE) is None
    old = replace(CARD, compute_capability=(3, 0))
    assert engine.preflight(replace(MACHINE, gpus=(old, BIG))) is None  # ours is the larger one
    verdict = engine.preflight(seeing("0", old, BIG))
    assert verdict is not None
    assert verdict.code == "CUDA_COMPUTE_CAPABILITY_TOO_LOW"


ENABLED = "0.01.2 I resolve_fused_ops: Flash Attention enabled"
LOST = "0.01.2 W resolve_fused_ops: Flash Attention not supported, set to disabled"
CONTEXT = "0.01.1 I llama_context: constructing llama_context"


@pytest.mark.parametrize(
    ("settings", "model", "lines", "said"),
    [
        (LaunchSettings(), WIDE, (CONTEXT, ENABLED), False),
        (LaunchSettings(), WIDE, (CONTEXT, LOST), True),
        (LaunchSettings(), WIDE, (CONTEXT, ENABLED, CONTEXT, LOST), True),
        (LaunchSettings(), WIDE, (CONTEXT, LOST, CONTEXT, ENABLED), False),
        (LaunchSettings(), WIDE, (), False),
        (LaunchSettings(), replace(WIDE, alibi=True), (CONTEXT, LOST), False),
        (LaunchSettings(vram_unreadable=True), WIDE, (CONTEXT, LOST), False),
    ],
)
def test_flash_attention_lost_after_sizing_with_it_is_said(
    engine: CudaEngine, settings: LaunchSettings, model: ModelFacts, lines: tuple[str, ...], said: bool
) -> None:
    plan = engine.plan("tiny", model, MACHINE, settings)
    sentence = flash_lost(plan, "\n".join(lines))
    assert (sentence is not None) is said
    assert sentence is None or "runs without Flash Attention" in sentence


# -- started for real: the llama-server here has no CUDA, and takes every flag ------------------------------------

REAL = {
    "sized": (LaunchSettings(), "-c 8192 -ngl -1 -fitt 1024"),
    "the floor does not fit": (LaunchSettings(free_vram_bytes=0), "-c 4096 -ngl -1 -fitt 1024"),
    "refused": (LaunchSettings(vram_unreadable=True), "-ngl -1 -fitt 1024"),
    "pinned": (LaunchSettings(window=5000), "-c 5000 -ngl -1 -fitt 1024"),
    "brake respawn": (LaunchSettings(respawn=True, live_window=8192, cap=6144), "-c 6144 -ngl -2 -fitt 1024"),
}


@pytest.fixture
def here(tmp_path: Path) -> tuple[CudaEngine, Machine, ModelFacts]:
    """The engine with this machine's server and a tiny model."""
    server = replace(find_server(setting=None, flavour="cpu"), flavour="cuda")
    config = tmp_path / "config"
    config.mkdir()
    model = read_facts(tiny_gguf.make(tmp_path / "tiny.gguf", arch="qwen3", ctx=8192, head_dim=64))
    machine = replace(MACHINE, llama_server=server, physical_cores=1)
    return CudaEngine(Launcher(Ledger(tmp_path / "w.json"), for_this_system()), config), machine, model


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
async def test_each_row_is_started(here: tuple[CudaEngine, Machine, ModelFacts], name: str) -> None:
    engine, machine, model = here
    settings, arguments = REAL[name]
    plan = engine.plan("tiny", model, machine, settings)
    assert f" {arguments} " in " ".join(plan.argv)
    child = await engine.start(plan, lambda _: None)
    try:
        passed = plan.window.planned
        assert child.facts.allocated_window == (-(-passed // 256) * 256 if passed else 8192)
    finally:
        await child.stop()


OUT_OF_MEMORY = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory"
)
CROWDED_CARD = """#!{python}
import os, sys
from pathlib import Path
tries = Path({tries!r})
with tries.open("a") as file:
    print(*sys.argv[1:], file=file)
if len(tries.read_text().splitlines()) <= {fails}:
    print({said!r}, file=sys.stderr, flush=True)
    sys.exit(1)
os.execv({server!r}, [{server!r}, *sys.argv[1:]])
"""


@pytest.fixture
def crowded(here: tuple[CudaEngine, Machine, ModelFacts], tmp_path: Path) -> Callable[[int], tuple[Machine, Path]]:
    """A server that dies of the card's memory ``fails`` times, and then is the real one."""
    _, machine, _ = here
    assert machine.llama_server is not None

    def make(fails: int) -> tuple[Machine, Path]:
        program, tries = tmp_path / "llama-server", tmp_path / "tries"
        assert machine.llama_server is not None
        program.write_text(
            CROWDED_CARD.format(
                python=sys.executable,
                tries=str(tries),
                fails=fails,
                said=OUT_OF_MEMORY,
                server=machine.llama_server.path,
            )
        )
        program.chmod(0o755)
        return machine.with_server(replace(machine.llama_server, path=str(program))), tries

    return make


@pytest.mark.real
async def test_a_sized_load_that_the_card_cannot_hold_is_tried_once_more_at_the_floor(
    here: tuple[CudaEngine, Machine, ModelFacts],
    crowded: Callable[[int], tuple[Machine, Path]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, _, model = here
    machine, tries = crowded(1)
    plan = engine.plan("tiny", model, machine, LaunchSettings())
    with caplog.at_level(logging.WARNING):
        child = await engine.start(plan, lambda _: None)
    try:
        assert (plan.window.planned, child.facts.allocated_window) == (8192, 4096)
        assert child.plan == plan.retry
        assert child.plan.window.reason == "the card ran out of memory at 8,192 tokens: this load gets 4,096"
    finally:
        await child.stop()
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "engines.llama_cpp.cuda"]
    assert "does not fit the card" in warning
    assert "pinned" in warning
    assert [line.split()[4:6] for line in tries.read_text().splitlines()] == [["-c", "8192"], ["-c", "4096"]]


@pytest.mark.real
@pytest.mark.parametrize(
    ("settings", "tried"),
    [
        (LaunchSettings(), 2),
        (LaunchSettings(window=5000), 1),
        (LaunchSettings(vram_unreadable=True), 1),
        (LaunchSettings(free_vram_bytes=0), 1),
        (LaunchSettings(respawn=True, live_window=8192, cap=6144), 1),
    ],
)
async def test_a_second_death_or_one_of_another_load_is_the_error(
    here: tuple[CudaEngine, Machine, ModelFacts],
    crowded: Callable[[int], tuple[Machine, Path]],
    settings: LaunchSettings,
    tried: int,
) -> None:
    engine, _, model = here
    machine, tries = crowded(9)
    plan: LaunchPlan = engine.plan("tiny", model, machine, settings)
    with pytest.raises(GpuOutOfMemory) as error:
        await engine.start(plan, lambda _: None)
    assert "cudaMalloc failed: out of memory" in error.value.tail
    assert len(tries.read_text().splitlines()) == tried
