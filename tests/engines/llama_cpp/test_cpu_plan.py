"""The CPU engine's plan: same inputs, same plan; each argument where it belongs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines.artifact.facts import ModelKind
from engines.child.ledger import Ledger
from engines.child.parent_death.posix import LifelineOnly
from engines.errors import ServerMissing
from engines.llama_cpp.arguments import threads
from engines.llama_cpp.cpu import CpuEngine
from engines.llama_cpp.server import Launcher
from engines.machine import Machine, ServerProgram
from engines.memory.grid import padded
from engines.plan import LaunchSettings
from tests.fixtures.facts import facts

MACHINE = Machine(
    "Linux",
    "x86_64",
    16 << 30,
    8,
    llama_server=ServerProgram("/opt/llama-server", "1", "cpu", "bundled"),
    environment={"PATH": "/bin"},
)


@pytest.fixture
def engine(tmp_path: Path) -> CpuEngine:
    return CpuEngine(Launcher(Ledger(tmp_path / "w.json"), LifelineOnly()), Path("/empty"))


def test_the_whole_command_line_of_a_chat_model(engine: CpuEngine) -> None:
    plan = engine.plan("tiny", facts(), MACHINE, LaunchSettings())
    assert " ".join(plan.argv) == (
        "/opt/llama-server --sleep-idle-seconds -1 -m /models/tiny.gguf -c 40960 -ngl 0 --device none -t 7 -b 512 "
        "-np 1 --cache-ram 0 --no-cache-idle-slots --no-slots --no-webui --cache-reuse 256 "
        "--host 127.0.0.1 --alias tiny --jinja -lv 4"
    )
    assert plan == engine.plan("tiny", facts(), MACHINE, LaunchSettings())


@pytest.mark.parametrize(
    ("settings", "trained", "passed", "bound_by"),
    [
        (LaunchSettings(), 40960, "40960", "model"),
        (LaunchSettings(window=8000), 40960, "8000", "user"),
        (LaunchSettings(window=100_000), 40960, "40960", "model"),
        (LaunchSettings(cap=8192), 40960, "8192", "brake"),
        (LaunchSettings(cap=50_000), 40960, "40960", "model"),
        (LaunchSettings(window=8000, cap=4096), 40960, "8000", "user"),
        (LaunchSettings(), None, None, "model"),
        (LaunchSettings(window=8000), None, "8000", "user"),
    ],
)
def test_the_window(
    engine: CpuEngine, settings: LaunchSettings, trained: int | None, passed: str | None, bound_by: str
) -> None:
    plan = engine.plan("tiny", facts(trained_window=trained), MACHINE, settings)
    given = plan.argv[plan.argv.index("-c") + 1] if "-c" in plan.argv else None
    assert given == passed
    assert plan.window.bound_by == bound_by
    assert plan.window.reason


def test_an_embedder_gets_its_window_as_its_batch_and_at_most_8192(engine: CpuEngine) -> None:
    plan = engine.plan("e", facts(kind=ModelKind.EMBEDDING), MACHINE, LaunchSettings())
    text = " ".join(plan.argv)
    assert "-c 8192" in text
    assert "--embeddings -b 8192 -ub 8192" in text
    assert plan.embedding
    rerank = engine.plan("r", facts(kind=ModelKind.RERANK, trained_window=512), MACHINE, LaunchSettings())
    assert "--reranking -b 512 -ub 512" in " ".join(rerank.argv)


def test_a_projector_is_passed(engine: CpuEngine) -> None:
    plan = engine.plan("v", facts(projector=Path("/models/mmproj.gguf")), MACHINE, LaunchSettings())
    assert "--mmproj /models/mmproj.gguf" in " ".join(plan.argv)


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (4, 4), (5, 4), (8, 7), (64, 63)])
def test_threads_leave_a_core_to_the_desktop_above_four(cores: int, expected: int) -> None:
    assert threads(cores) == expected


def test_a_machine_without_a_server_cannot_be_planned_for(engine: CpuEngine) -> None:
    with pytest.raises(ServerMissing):
        engine.plan("tiny", facts(), MACHINE.with_server(None), LaunchSettings())


SMALL = replace(MACHINE, ram_bytes=4 << 30)
"""0.75 × 4 GiB less 600 MB and 256 MiB: 2,352,790,016 B for 115,712 a token are 20,333 tokens, 20,224 on the grid."""


@pytest.mark.parametrize(
    ("machine", "settings", "window", "bound_by"),
    [
        (SMALL, LaunchSettings(), 20_224, "memory"),
        (replace(MACHINE, memory_limit_bytes=4 << 30), LaunchSettings(), 20_224, "memory"),
        (SMALL, LaunchSettings(reserved_bytes=1 << 30), 11_008, "memory"),
        (SMALL, LaunchSettings(cap=8192), 8192, "brake"),
        (SMALL, LaunchSettings(available_bytes=2 << 30), 7936, "free memory"),
        (SMALL, LaunchSettings(available_bytes=2 << 30, repacked_bytes=0), 13_312, "free memory"),
        (SMALL, LaunchSettings(available_bytes=2 << 30, free_memory_rule=False), 20_224, "memory"),
        (SMALL, LaunchSettings(available_bytes=2 << 30, respawn=True, cap=12_288), 12_288, "brake"),
        (SMALL, LaunchSettings(available_bytes=2 << 30, window=30_000), 30_000, "user"),
        (SMALL, LaunchSettings(available_bytes=0), 4096, "free memory"),
    ],
)
def test_memory_bounds_the_window(
    engine: CpuEngine, machine: Machine, settings: LaunchSettings, window: int, bound_by: str
) -> None:
    plan = engine.plan("tiny", facts(), machine, settings)
    assert (plan.window.planned, plan.window.bound_by) == (window, bound_by)
    assert plan.argv[plan.argv.index("-c") + 1] == str(window)
    assert plan.memory.bill["kv"] == padded(window) * 114_688


def test_the_plan_shows_every_term(engine: CpuEngine) -> None:
    plan = engine.plan("tiny", facts(), SMALL, LaunchSettings(reserved_bytes=1 << 30, repacked_bytes=7)).to_json()
    assert set(plan["window"]) == {"planned", "trained", "bound_by", "reason"}
    assert plan["memory"]["bill"]["repacked"] == 7
    assert plan["memory"]["predicted"] == sum(plan["memory"]["bill"].values())
    assert plan["memory"]["budget"] == {
        "ram": 4 << 30,
        "limited_by_cgroup": False,
        "share": 0.75,
        "weights": 600_000_000,
        "projector": 0,
        "reserve": 256 << 20,
        "other_children": 1 << 30,
        "left": 1_279_048_192,
        "holds": 11_008,
        "exact": True,
        "kv": 11_008 * 114_688,
        "kv_per_token": 114_688,
        "compute": 11_008 * 1024,
        "compute_per_token": 1024,
    }


def test_a_model_that_is_not_modelled_gets_no_window(engine: CpuEngine) -> None:
    plan = engine.plan("mla", facts(kv_lora_rank=512), SMALL, LaunchSettings(available_bytes=0))
    assert "-c" not in plan.argv
    assert plan.memory.predicted is None
    assert json.dumps(plan.to_json())


def test_an_embedder_s_batch_is_the_window_that_memory_holds(engine: CpuEngine) -> None:
    """Each token of its batch costs the logits of the whole vocabulary: 608 KB."""
    plan = engine.plan("e", facts(kind=ModelKind.EMBEDDING), replace(MACHINE, ram_bytes=8 << 30), LaunchSettings())
    window = str(plan.window.planned)
    assert plan.window.bound_by == "memory"
    assert 4096 < int(window) < 8192
    assert f"-b {window} -ub {window}" in " ".join(plan.argv)
