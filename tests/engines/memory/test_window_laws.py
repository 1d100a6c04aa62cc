"""What holds for any model on any machine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.facts import ModelFacts, ModelKind
from engines.memory.bill import RESERVE_BYTES, budget_for
from engines.memory.cost import window_bytes
from engines.memory.free_memory import LEFT_FREE_BYTES, fitted, need_bytes
from engines.memory.grid import FLOOR, GRID, padded
from engines.memory.window import plan_window
from engines.plan import LaunchSettings, Window
from tests.fixtures.facts import facts

GIB = 1 << 30


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    layers = draw(st.integers(1, 40))
    some = st.integers(1, 64)
    pattern = draw(st.none() | st.lists(st.booleans(), min_size=layers, max_size=layers).map(tuple))
    return facts(
        layers=layers,
        kv_heads=tuple(draw(st.lists(st.integers(0, 16), min_size=layers, max_size=layers))),
        key_length=draw(some) * 8,
        value_length=draw(some) * 8,
        trained_window=draw(st.integers(1, 1 << 18) | st.sampled_from([4096, 8192, 131_072])),
        weights_bytes=draw(st.integers(1, 40 * GIB)),
        projector_bytes=draw(st.just(0) | st.integers(0, 2 * GIB)),
        sliding_window=draw(st.none() | st.integers(1, 8192)),
        sliding_pattern=pattern,
        shared_kv_layers=draw(st.none() | st.integers(0, layers)),
        kind=draw(st.sampled_from(ModelKind)),
        architecture=draw(st.sampled_from(["llama", "bert"])),
    )


rams = st.integers(1, 128).map(lambda gib: gib * GIB) | st.integers(GIB, 128 * GIB)


def wanted(model: ModelFacts) -> int:
    assert model.trained_window is not None
    return model.trained_window if model.kind is ModelKind.CHAT else min(model.trained_window, 8192)


def cost(model: ModelFacts, window: int) -> int:
    found = window_bytes(model, window)
    assert found is not None
    return found


def planned(model: ModelFacts, ram: int, settings: LaunchSettings | None = None) -> int:
    settings = settings or LaunchSettings()
    window = plan_window(model, settings, budget_for(model, ram=ram, reserved=settings.reserved_bytes))
    assert window.planned is not None
    assert window.reason
    return window.planned


@given(models(), rams)
def test_never_over_what_it_was_trained_for_never_under_the_floor_and_on_the_grid(model: ModelFacts, ram: int) -> None:
    window = planned(model, ram)
    assert min(FLOOR, wanted(model)) <= window <= wanted(model)
    assert window == wanted(model) or window % GRID == 0


@given(models(), rams, rams)
def test_more_memory_never_makes_it_smaller(model: ModelFacts, one: int, other: int) -> None:
    assert planned(model, min(one, other)) <= planned(model, max(one, other))


@given(models(), rams, st.integers(0, 8 * GIB))
def test_more_beside_it_never_makes_it_larger(model: ModelFacts, ram: int, reserved: int) -> None:
    assert planned(model, ram, LaunchSettings(reserved_bytes=reserved)) <= planned(model, ram)


@given(models(), rams)
def test_the_largest_window_that_fits_is_used(model: ModelFacts, ram: int) -> None:
    """256 tokens more would not fit, and a window over the floor does."""
    window = planned(model, ram)
    left = 0.75 * ram - model.weights_bytes - model.projector_bytes - RESERVE_BYTES
    if window > FLOOR:
        assert cost(model, window) <= left
    if window < wanted(model):
        assert cost(model, window + GRID) > left


@given(models(), st.integers(50, 1000), st.integers(0, 1 << 28))
def test_a_budget_for_over_fifty_steps_is_used_to_98_percent(model: ModelFacts, steps: int, more: int) -> None:
    model = replace(model, kind=ModelKind.CHAT, trained_window=1 << 20)
    taken = model.weights_bytes + model.projector_bytes + RESERVE_BYTES
    left = cost(model, steps * GRID) + more
    window = planned(model, -(-(taken + left) * 4 // 3))
    assert window >= steps * GRID
    if window < 1 << 20:
        assert cost(model, window) >= 0.98 * left


@given(models(), rams)
def test_the_bill_shows_the_sum_that_was_made(model: ModelFacts, ram: int) -> None:
    window = planned(model, ram)
    shown = budget_for(model, ram=ram).spent_on(model, window).to_json()
    assert shown["left"] == int(0.75 * shown["ram"]) - sum(
        shown[term] for term in ("weights", "projector", "reserve", "other_children")
    )
    assert shown["kv"] + shown["compute"] == cost(model, window)


@given(models(), rams, st.integers(0, 128 * GIB), st.integers(0, 40 * GIB))
def test_what_is_free_only_ever_makes_a_window_smaller(
    model: ModelFacts, ram: int, available: int, copied: int
) -> None:
    before = plan_window(model, LaunchSettings(), budget_for(model, ram=ram))
    after = fitted(before, model, available, copied)
    assert before.planned is not None
    assert after.planned is not None
    assert fitted(after, model, available, copied) == after
    if after == before:
        need = need_bytes(model, before.planned, copied)
        assert need is not None
        assert need <= available - LEFT_FREE_BYTES or before.planned <= FLOOR
        return
    assert after.bound_by == "free memory"
    assert FLOOR <= after.planned < before.planned
    assert after.planned % GRID == 0
    need, more = (need_bytes(model, window, copied) for window in (after.planned, after.planned + GRID))
    assert need is not None
    assert more is not None
    assert need <= available - LEFT_FREE_BYTES or after.planned == FLOOR
    assert more > available - LEFT_FREE_BYTES or after.planned + GRID >= padded(before.planned)


@given(models(), rams, st.integers(16, 512).map(lambda steps: steps * GRID))
def test_a_cap_is_never_exceeded_and_a_window_that_was_set_is_kept(model: ModelFacts, ram: int, cap: int) -> None:
    assert planned(model, ram, LaunchSettings(cap=cap)) == min(cap, planned(model, ram))
    assert planned(model, ram, LaunchSettings(window=cap, cap=4096)) == min(cap, model.trained_window or cap)


def test_an_unknown_window_stays_unknown_whatever_is_free() -> None:
    window = Window(None, None, "model", "")
    assert fitted(window, replace(facts(), kv_lora_rank=512), 0, 0) == window
