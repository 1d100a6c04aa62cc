"""An MLX launch as a value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.artifact.facts import ModelKind
from engines.child.ledger import Ledger
from engines.engine import ChildFacts, Landed, Law
from engines.errors import EngineUnavailable
from engines.machine import Machine
from engines.memory.bill import GIB
from engines.mlx.engine import MlxEngine, first_request, model_path
from engines.mlx.progress import share
from engines.plan import PER_SPAWN, LaunchPlan, LaunchSettings
from tests.fixtures.facts import facts

MODEL = facts(files=(Path("/models/tiny/model.safetensors"),), format="mlx")
MAC = Machine(
    "Darwin", "arm64", 16 * GIB, 8, mlx=True, environment={"PATH": "/bin", "HOME": "/h"}, gpu_working_set_bytes=11 * GIB
)


@pytest.fixture
def engine(tmp_path: Path) -> MlxEngine:
    return MlxEngine(Ledger(tmp_path / "workers.json"), Path("/config"), installed=True)


def planned(engine: MlxEngine, settings: LaunchSettings | None = None, **changes: object) -> LaunchPlan:
    return engine.plan("tiny", replace(MODEL, **changes), MAC, settings or LaunchSettings())  # type: ignore[arg-type]


def test_the_command_line_is_what_a_reader_could_type(engine: MlxEngine) -> None:
    plan = planned(engine)
    assert plan.argv == ("mlx_vlm.server", "--model", "/models/tiny", "--max-kv-size", "40960")
    assert (plan.engine, plan.slots, plan.embedding, model_path(plan)) == ("mlx", 1, False, "/models/tiny")


def test_the_environment_is_complete_and_holds_no_secret(engine: MlxEngine) -> None:
    assert planned(engine).env == {
        "PATH": "/bin",
        "HOME": "/h",
        "XDG_CONFIG_HOME": "/config",
        "HF_HUB_OFFLINE": "1",
        "MLX_TRUST_REMOTE_CODE": "false",
        "MLX_VLM_PRELOAD_MODEL": "/models/tiny",
        "MLX_VLM_MAX_NUM_SEQS": "1",
        "MLX_VLM_LOG_PROGRESS_INTERVAL": "0",
        "MLX_VLM_TOKEN_QUEUE_TIMEOUT": "3660",
        "MLX_VLM_SERVER_API_KEY": PER_SPAWN,
        "MAX_KV_SIZE": "40960",
        "APC_ENABLED": "1",
        "APC_DISK_ENABLED": "0",
        "APC_NUM_BLOCKS": "2560",
    }


def test_without_a_trained_window_nothing_is_limited_at_the_start(engine: MlxEngine) -> None:
    plan = planned(engine, trained_window=None)
    assert "--max-kv-size" not in plan.argv
    assert not {"MAX_KV_SIZE", "APC_NUM_BLOCKS"} & set(plan.env)


def test_the_same_inputs_give_the_same_plan(engine: MlxEngine) -> None:
    assert planned(engine).to_json() == planned(engine).to_json()


def test_the_window_is_what_memory_holds_before_anything_is_measured(engine: MlxEngine) -> None:
    plan = planned(engine, vocabulary=151_936)
    budget = plan.memory.budget
    assert budget is not None
    assert plan.window.bound_by == "memory"
    assert plan.window.planned is not None
    assert 4096 < plan.window.planned < 40_960


@pytest.mark.parametrize(
    ("settings", "bound_by", "window"),
    [
        (LaunchSettings(cap=8192), "brake", 8192),
        (LaunchSettings(window=20_000, cap=8192), "user", 20_000),
        (LaunchSettings(window=50_000), "model", 40_960),
    ],
)
def test_a_cap_and_a_set_window(engine: MlxEngine, settings: LaunchSettings, bound_by: str, window: int) -> None:
    plan = planned(engine, settings)
    assert (plan.window.bound_by, plan.window.planned) == (bound_by, window)


def test_other_children_leave_less(engine: MlxEngine) -> None:
    alone, beside = planned(engine).window.planned, planned(engine, LaunchSettings(reserved_bytes=GIB)).window.planned
    assert alone is not None
    assert beside is not None
    assert beside < alone


@pytest.mark.parametrize(
    ("kind", "flag", "path"),
    [
        (ModelKind.CHAT, "--model", "/v1/chat/completions"),
        (ModelKind.EMBEDDING, "--embedding-model", "/v1/embeddings"),
        (ModelKind.RERANK, "--reranker-model", "/v1/rerank"),
    ],
)
def test_each_kind_of_model_is_proven_on_its_route(engine: MlxEngine, kind: ModelKind, flag: str, path: str) -> None:
    plan = planned(engine, kind=kind)
    route, body = first_request(plan)
    assert (plan.argv[1], route, body["model"]) == (flag, path, "/models/tiny")
    assert plan.embedding is (kind is not ModelKind.CHAT)
    assert ("MLX_VLM_PRELOAD_MODEL" in plan.env) is (kind is ModelKind.CHAT)


def test_without_mlx_vlm_there_is_no_plan(tmp_path: Path) -> None:
    engine = MlxEngine(Ledger(tmp_path / "workers.json"), tmp_path, installed=False)
    with pytest.raises(EngineUnavailable, match="needs mlx-vlm, which is not installed"):
        planned(engine)


def test_its_law_is_the_one_of_a_child_that_gives_memory_back(engine: MlxEngine) -> None:
    assert engine.landed(None, MODEL, respawned=False) == Landed(Law.MLX)  # type: ignore[arg-type]
    assert ChildFacts(None, 1).modalities == frozenset()


@pytest.mark.parametrize(
    ("held", "expected", "part"), [(None, 100, 0.0), (0, 100, 0.0), (50, 100, 0.5), (200, 100, 0.99), (5, 0, 0.0)]
)
def test_progress_is_what_lies_in_memory(held: int | None, expected: int, part: float) -> None:
    assert share(held, expected) == part
