"""What outlives a child: window memories, the record of an unload, and what a spawn starts with."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from engines.memory.brake import Action, BrakeState, Level, LlamaSample, Point, WindowMemory, llama_step
from engines.memory.remembered import BrakeMemory

GIB = 1 << 30
MINUTE = 60.0
CRITICAL = LlamaSample(
    now=0.0,
    point=Point.IDLE,
    level=Level.CRITICAL,
    allocated=40960,
    planned=40960,
    kv_bytes=4 * GIB,
    ram_bytes=16 * GIB,
)


def shrunk(now: float = 0.0) -> BrakeState:
    """A child that was shrunk to 20,480 tokens while idle; its unload is armed."""
    return llama_step(BrakeState(), replace(CRITICAL, now=now)).state


def unloaded(now: float = MINUTE) -> tuple[BrakeState, BrakeMemory]:
    decision = llama_step(shrunk(), replace(CRITICAL, now=now, allocated=20480))
    assert decision.action is Action.UNLOAD
    return decision.state, BrakeMemory().wrote("a", decision.state).unloaded("a", decision.state, now)


def test_a_model_that_nothing_happened_to_starts_fresh() -> None:
    assert BrakeMemory().start("a", 5.0) == BrakeState()


# --- the window memory ------------------------------------------------------------------------------------------------


def test_every_spawn_of_a_model_reads_its_window_memory_and_only_its_own() -> None:
    memory = BrakeMemory().wrote("a", shrunk())
    started = memory.start("a", MINUTE)
    assert started == BrakeState(WindowMemory(20480, 0.0, 40960, 0.0))
    assert started.cap == 20480
    assert memory.start("b", MINUTE) == BrakeState()
    assert not memory.reloads("a", MINUTE)


def test_a_child_that_its_window_memory_seeded_is_acted_on() -> None:
    started = BrakeMemory().wrote("a", shrunk()).start("a", MINUTE)
    assert llama_step(started, replace(CRITICAL, now=MINUTE, allocated=20480)).cap == 10240


def test_cap_and_window_that_hurt_are_forgotten_each_thirty_minutes_after_its_own_last_write() -> None:
    state = BrakeState(WindowMemory(8192, 10 * MINUTE, 16384, 0.0))
    memory = BrakeMemory().wrote("a", state)
    assert memory.start("a", 29.9 * MINUTE).memory == state.memory
    assert memory.start("a", 30 * MINUTE).memory == WindowMemory(8192, 10 * MINUTE)
    assert memory.start("a", 40 * MINUTE).memory == WindowMemory()


def test_an_entry_with_neither_is_deleted() -> None:
    memory = BrakeMemory().wrote("a", shrunk()).wrote("b", shrunk())
    assert set(memory.wrote("a", BrakeState()).windows) == {"b"}


def test_a_pending_cap_is_not_remembered_but_the_window_that_hurt_is() -> None:
    warning = replace(CRITICAL, level=Level.WARNING, point=Point.TURN_END, evidence=True)
    state = llama_step(BrakeState(), warning).state
    assert state.pending == 30720
    assert BrakeMemory().wrote("a", state).start("a", MINUTE) == BrakeState(WindowMemory(None, None, 40960, 0.0))


def test_a_reap_and_a_spawn_never_forget_a_window() -> None:
    memory = BrakeMemory().wrote("a", shrunk())
    assert memory.unloads_forgotten().windows == memory.windows
    assert memory.spawned("a", large=True).windows == memory.windows


# --- the record of an unload ------------------------------------------------------------------------------------------


def test_a_reload_starts_reduced_in_the_same_episode_and_nothing_acts_on_it() -> None:
    _, memory = unloaded()
    started = memory.start("a", 2 * MINUTE)
    assert started.cap == 20480
    assert started.pressure.shrinks == 1
    assert started.pressure.seeded
    for point in Point:
        sample = replace(CRITICAL, now=3 * MINUTE, allocated=20480, point=point)
        decision = llama_step(started, sample)
        assert (decision.action, decision.notice) == (Action.NONE, None)
        started = decision.state


def test_the_unloads_record_seeds_before_the_window_memory() -> None:
    _, memory = unloaded()
    memory = memory.wrote("a", BrakeState(WindowMemory(4096, MINUTE, None, None)))
    assert memory.start("a", 2 * MINUTE).cap == 20480


def test_the_record_counts_for_thirty_minutes_and_its_times_are_the_records() -> None:
    _, memory = unloaded(MINUTE)
    assert memory.reloads("a", 30.9 * MINUTE)
    assert memory.start("a", 30.9 * MINUTE).memory == WindowMemory(20480, MINUTE, 40960, MINUTE)
    assert not memory.reloads("a", 31 * MINUTE)
    assert memory.start("a", 31 * MINUTE) == BrakeState()


def test_an_unload_without_a_cap_seeds_an_episode_without_a_cap() -> None:
    small = replace(CRITICAL, ram_bytes=1024 * GIB)
    armed = llama_step(BrakeState(), small).state
    decision = llama_step(armed, small)
    assert decision.action is Action.UNLOAD
    started = BrakeMemory().unloaded("a", decision.state, 0.0).start("a", 1.0)
    assert started.memory == WindowMemory()
    assert started.pressure.seeded


def test_a_respawn_that_failed_leaves_the_same_record() -> None:
    memory = BrakeMemory().unloaded("a", shrunk(), 0.0)
    started = memory.start("a", 10.0)
    assert started.cap == 20480
    assert started.pressure.seeded
    assert not started.pressure.armed


def test_what_was_forgotten_at_the_unload_is_not_recorded() -> None:
    old = BrakeState(WindowMemory(8192, 0.0, 16384, 20 * MINUTE))
    memory = BrakeMemory().unloaded("a", old, 30 * MINUTE)
    assert memory.start("a", 31 * MINUTE).memory == WindowMemory(None, None, 16384, 30 * MINUTE)


@pytest.mark.parametrize(
    ("alias", "large", "forgets"), [("a", True, True), ("a", False, True), ("b", True, True), ("b", False, False)]
)
def test_a_successful_spawn_of_the_model_or_of_another_large_one_forgets_the_record(
    alias: str, large: bool, forgets: bool
) -> None:
    _, memory = unloaded()
    assert memory.spawned(alias, large=large).reloads("a", 2 * MINUTE) is not forgets


def test_an_idle_reap_and_shutdown_forget_the_record() -> None:
    _, memory = unloaded()
    memory = memory.unloads_forgotten()
    assert not memory.reloads("a", 2 * MINUTE)
    assert memory.start("a", 2 * MINUTE).episode is None
    assert memory.start("a", 2 * MINUTE).cap == 20480


def test_a_memory_is_never_changed_in_place() -> None:
    memory = BrakeMemory()
    memory.wrote("a", shrunk())
    memory.unloaded("a", shrunk(), 0.0)
    assert memory == BrakeMemory()


def test_state_and_memory_are_plain_values() -> None:
    state, memory = unloaded()
    assert json.loads(json.dumps(asdict(state)))["memory"]["cap"] == 20480
    assert json.loads(json.dumps(asdict(memory)))["unloads"]["a"]["episode"]["level"] == "critical"
