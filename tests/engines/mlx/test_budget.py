"""What a conversation costs an MLX child, and the bound that follows: §5's sums as tables and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.facts import ModelFacts, ModelKind
from engines.memory.bill import GIB
from engines.memory.mlx_budget import BASE_BYTES, MlxBudget, mlx_budget
from engines.mlx.bound import window_of
from tests.fixtures.facts import facts

KV = 2 * 36 * 8 * 128 * 2
"""Bytes a token: Qwen3-4B's 36 layers of 8 KV heads of 128."""
QWEN3_4B = MlxBudget(
    working_set=12 * GIB, weights=int(2.1 * GIB), kv_per_token=KV, vocabulary=151_936, trained=40_960, exact=True
)
BASE = QWEN3_4B.weights + BASE_BYTES


def by_hand(total: float, base: int, vocabulary: int = 151_936) -> int:
    """The specified sum, written out."""
    return int(((total - base) / 1.10 - 2**30 - 2048 * vocabulary * 2) / (3.5 * KV)) - 512


@pytest.mark.parametrize(
    ("working_set", "base"), [(12 * GIB, BASE), (16 * GIB, BASE), (11 * GIB, 3 * GIB), (48 * GIB, 20 * GIB)]
)
def test_the_ceiling_is_the_specified_sum(working_set: int, base: int) -> None:
    budget = replace(QWEN3_4B, working_set=working_set)
    assert budget.ceiling(base) == by_hand(int(0.9 * working_set), base)


def test_a_prediction_is_the_specified_sum() -> None:
    assert QWEN3_4B.predict(10_000) == int(1.10 * (2**30 + 2048 * 151_936 * 2 + 3.5 * KV * 10_000))


@pytest.mark.parametrize(
    "changes",
    [{"working_set": None}, {"kv_per_token": None}, {"vocabulary": None}, {"kv_per_token": 0}],
    ids=["no GPU told", "shape unknown (MLA)", "vocabulary unknown", "nothing grows"],
)
def test_what_cannot_be_read_switches_the_ceiling_off(changes: dict[str, int | None]) -> None:
    budget = replace(QWEN3_4B, **changes)
    assert budget.ceiling(BASE) is None
    assert budget.bound(BASE, None) == 40_960
    assert budget.bound(BASE, 8192) == 8192


def test_an_unreadable_base_applies_no_bound_but_the_brakes() -> None:
    assert QWEN3_4B.ceiling(None) is None
    assert QWEN3_4B.bound(None, None) == 40_960
    assert QWEN3_4B.bound(None, 8192) == 8192


@pytest.mark.parametrize(
    ("trained", "ceiling", "cap", "bound"),
    [
        (40_960, 10_000, None, 10_000),
        (40_960, 10_000, 8192, 8192),
        (40_960, 10_000, 20_480, 10_000),
        (40_960, 100_000, None, 40_960),
        (40_960, 100_000, 8192, 8192),
        (40_960, 1_000, None, 4096),
        (40_960, -5_000, None, 4096),
        (2048, 1_000, None, 2048),
        (None, 10_000, None, 10_000),
        (None, 1_000, None, 4096),
        (None, None, None, None),
        (None, None, 8192, 8192),
        (8192, None, None, 8192),
    ],
)
def test_the_bound(trained: int | None, ceiling: int | None, cap: int | None, bound: int | None) -> None:
    budget = with_ceiling(ceiling, trained)
    assert budget.ceiling(0) == ceiling
    assert budget.bound(0, cap) == bound


@pytest.mark.parametrize(
    ("trained", "ceiling", "cap", "user", "bound", "why"),
    [
        (32_768, None, None, None, 8192, "at most 8,192 tokens at once"),
        (None, None, None, None, 8192, "at most 8,192 tokens at once"),
        (32_768, 100_000, None, 16_384, 8192, "at most 8,192 tokens at once"),
        (32_768, 100_000, None, 8192, 8192, "you set it to 8,192"),
        (32_768, 100_000, None, 2048, 2048, "you set it to 2,048"),
        (8192, None, None, None, 8192, "the model was trained for 8,192"),
        (512, None, None, None, 512, "the model was trained for 512"),
        (32_768, 5_000, None, None, 5_000, "memory holds 5,000 of 32,768 tokens"),
        (32_768, 100_000, 4096, None, 4096, "lowered to 4,096 tokens because memory ran short"),
    ],
)
def test_a_worker_has_no_more_than_its_server_takes(
    trained: int | None, ceiling: int | None, cap: int | None, user: int | None, bound: int, why: str
) -> None:
    window = window_of(replace(with_ceiling(ceiling, trained), limit=8192, user=user), 0, cap)
    assert (window.planned, window.trained) == (bound, trained)
    assert why in window.reason


@pytest.mark.parametrize(
    ("kind", "limit"), [(ModelKind.CHAT, None), (ModelKind.EMBEDDING, 8192), (ModelKind.RERANK, 8192)]
)
def test_only_workers_have_a_limit_of_their_server(kind: ModelKind, limit: int | None) -> None:
    assert mlx_budget(facts(kind=kind), 12 * GIB).limit == limit


def with_ceiling(ceiling: int | None, trained: int | None) -> MlxBudget:
    """A budget whose ceiling is exactly this at a base of 0."""
    if ceiling is None:
        return replace(QWEN3_4B, working_set=None, trained=trained)
    prefill = QWEN3_4B.prefill
    assert prefill is not None
    total = 1.10 * (prefill + 3.5 * KV * (ceiling + 512 + (0.5 if ceiling > -512 else -0.5)))
    return replace(QWEN3_4B, working_set=round(total / 0.9), trained=trained)


def test_a_window_that_the_user_set_is_neither_bounded_nor_capped() -> None:
    budget = replace(with_ceiling(1_000, 40_960), user=30_000)
    assert budget.bound(0, 4096) == 30_000
    assert replace(budget, user=100_000).bound(0, None) == 40_960


def test_what_other_models_hold_is_not_there_to_be_had() -> None:
    alone, beside = QWEN3_4B.ceiling(BASE), replace(QWEN3_4B, other_children=GIB).ceiling(BASE)
    assert alone is not None
    assert beside is not None
    assert alone - beside == pytest.approx(GIB / 1.10 / (3.5 * KV), abs=1)
    assert "1.0 GiB of other models" in replace(QWEN3_4B, other_children=GIB).sentence(BASE)


sizes = st.integers(0, 512 * GIB)
windows = st.integers(1, 10**7)
budgets = st.builds(
    MlxBudget,
    working_set=st.none() | sizes,
    weights=sizes,
    kv_per_token=st.none() | st.integers(0, 10**7),
    vocabulary=st.none() | st.integers(1, 10**6),
    trained=st.none() | windows,
    exact=st.booleans(),
    user=st.none(),
)


@given(budgets, sizes)
def test_a_conversation_up_to_the_ceiling_stays_within_the_budget(budget: MlxBudget, base: int) -> None:
    ceiling = budget.ceiling(base)
    if ceiling is not None and ceiling > 0:
        grown = budget.predict(ceiling + 512)
        assert grown is not None
        assert budget.total is not None
        assert base + grown <= budget.total * (1 + 1e-9) + 1


@given(budgets, st.none() | sizes, st.none() | windows)
def test_a_bound_is_never_above_the_trained_window_nor_below_the_floor(
    budget: MlxBudget, base: int | None, cap: int | None
) -> None:
    bound = budget.bound(base, cap)
    if budget.trained is not None:
        assert bound is not None
        assert min(4096, budget.trained) <= bound <= budget.trained
    elif bound is not None:
        assert bound >= 4096


@given(budgets, sizes, sizes, st.none() | windows)
def test_more_memory_taken_never_widens_the_bound(budget: MlxBudget, one: int, other: int, cap: int | None) -> None:
    less, more = sorted((one, other))
    free, crowded = budget.bound(less, cap), budget.bound(more, cap)
    assert (free is None) == (crowded is None)
    if free is not None and crowded is not None:
        assert crowded <= free


@given(budgets, sizes, st.integers(16, 10**5).map(lambda n: n * 256))
def test_a_cap_never_widens_the_bound(budget: MlxBudget, base: int, cap: int) -> None:
    free, capped = budget.bound(base, None), budget.bound(base, cap)
    assert capped is not None
    assert free is None or capped <= free


@pytest.mark.parametrize(
    ("budget", "cap", "bound_by", "planned"),
    [
        (with_ceiling(100_000, 40_960), None, "model", 40_960),
        (with_ceiling(10_000, 40_960), None, "memory", 10_000),
        (with_ceiling(10_000, 40_960), 8192, "brake", 8192),
        (with_ceiling(10_000, 40_960), 20_480, "memory", 10_000),
        (replace(with_ceiling(10_000, 40_960), exact=False), None, "model", 10_000),
        (replace(with_ceiling(10_000, 40_960), user=30_000), 8192, "user", 30_000),
        (replace(with_ceiling(10_000, 40_960), user=50_000), None, "model", 40_960),
        (with_ceiling(None, None), None, "model", None),
    ],
)
def test_what_bounds_a_window_is_named(budget: MlxBudget, cap: int | None, bound_by: str, planned: int | None) -> None:
    window = window_of(budget, 0, cap)
    assert (window.bound_by, window.planned) == (bound_by, planned)
    assert window.reason


def test_the_reason_of_memory_has_the_numbers() -> None:
    budget = with_ceiling(10_000, 40_960)
    assert "memory holds 10,000 of 40,960 tokens: 0.9 ×" in window_of(budget, 0, None).reason


@pytest.mark.parametrize(
    ("model", "kv", "exact"),
    [
        (facts(), 28 * 8 * 256 * 2, True),
        (facts(kv_lora_rank=512), None, True),
        (facts(sliding_window=1024), 28 * 8 * 256 * 2, False),
        (facts(sliding_window=1024, sliding_pattern=(True, False) * 14), 28 * 8 * 256 * 2, False),
        (facts(sliding_window=40_960), 28 * 8 * 256 * 2, True),
    ],
    ids=["dense", "MLA", "sliding", "sliding with its pattern", "sliding as wide as the window"],
)
def test_what_is_read_of_a_model(model: ModelFacts, kv: int | None, exact: bool) -> None:
    budget = mlx_budget(model, 12 * GIB)
    assert (budget.kv_per_token, budget.exact) == (kv, exact)
    assert budget.to_json()["kv_per_token"] == kv
