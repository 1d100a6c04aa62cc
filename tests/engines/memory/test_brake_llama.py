"""The law for llama-server, row by row, told as samples in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.memory.brake import (
    Action,
    BrakeNotice,
    BrakeState,
    Decision,
    Level,
    LlamaSample,
    Point,
    WindowMemory,
    llama_step,
    spill_evidence,
    turn_ended,
)

CALM, WARNING, CRITICAL = Level.CALM, Level.WARNING, Level.CRITICAL
START, END, IDLE = Point.TURN_START, Point.TURN_END, Point.IDLE
KV = 114_688
MIB = 1 << 20
GIB = 1 << 30
RESPAWN, UNLOAD, GROW, NONE = Action.SHRINK_RESPAWN, Action.UNLOAD, Action.GROW, Action.NONE
ACTED, EXTERNAL = BrakeNotice.ACTED, BrakeNotice.EXTERNAL


class Story:
    """One child: every decision is carried out, a respawn allocates the cap, a minute lies between samples."""

    def __init__(
        self, window: int | None = 40960, *, ram: int | None = 16 * GIB, pinned: bool = False, cuda: bool = False
    ) -> None:
        self.window = self.planned = window
        self.ram, self.pinned, self.cuda = ram, pinned, cuda
        self.kv: int | None = KV
        self.state = BrakeState()
        self.now = 1000.0

    def sample(self, point: Point, level: Level, evidence: bool | None = False) -> Decision:
        kv = None if self.window is None or self.kv is None else self.window * self.kv
        sample = LlamaSample(
            now=self.now,
            point=point,
            level=level,
            evidence=evidence,
            allocated=self.window,
            planned=self.planned,
            pinned=self.pinned,
            kv_bytes=kv,
            ram_bytes=self.ram,
        )
        return llama_step(self.state, sample, asks_share=not self.cuda)

    def see(self, point: Point, level: Level, evidence: bool | None = False) -> Decision:
        decision = self.sample(point, level, evidence)
        self.state = decision.state
        if decision.action is RESPAWN:
            self.window = decision.cap
        self.now += 60
        return decision

    def turn(self) -> None:
        self.state = turn_ended(self.state)


def said(decision: Decision) -> tuple[Action, int | None, BrakeNotice | None]:
    return decision.action, decision.cap, decision.notice


# --- the KV cache's share of RAM --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize("level", [WARNING, CRITICAL])
def test_a_small_window_is_not_shrunk_and_the_pressure_is_external(point: Point, level: Level) -> None:
    story = Story(ram=64 * GIB)
    assert said(story.see(point, level, True)) == (NONE, None, EXTERNAL)


def test_external_is_said_once_in_an_episode() -> None:
    story = Story(ram=64 * GIB)
    assert story.see(IDLE, WARNING).notice is EXTERNAL
    assert story.see(IDLE, WARNING).notice is None
    for _ in range(2):
        story.see(IDLE, CALM)
    assert story.see(IDLE, WARNING).notice is EXTERNAL


def test_a_small_window_still_falls_under_the_unload_rules() -> None:
    story = Story(ram=64 * GIB)
    assert said(story.see(IDLE, CRITICAL)) == (NONE, None, EXTERNAL)
    assert said(story.see(IDLE, CRITICAL)) == (UNLOAD, None, None)


def test_a_tenth_of_ram_is_ours() -> None:
    story = Story(ram=40960 * KV * 10)
    assert story.see(END, CRITICAL).action is RESPAWN
    story = Story(ram=40960 * KV * 10 + 10)
    assert story.see(END, CRITICAL).notice is EXTERNAL


@pytest.mark.parametrize("unknown", ["kv", "ram", "window"])
def test_what_cannot_be_read_is_never_guessed_no_shrink_and_no_notice_but_the_unload(unknown: str) -> None:
    story = Story()
    setattr(story, unknown, None)
    assert said(story.see(END, CRITICAL, True)) == (NONE, None, None)
    assert said(story.see(IDLE, CRITICAL)) == (NONE, None, None)
    assert story.see(IDLE, CRITICAL).action is UNLOAD


def test_on_cuda_the_share_is_not_asked() -> None:
    story = Story(ram=None, cuda=True)
    story.kv = None
    assert said(story.see(END, CRITICAL, True)) == (RESPAWN, 20480, ACTED)


@pytest.mark.parametrize(
    ("spill", "proves"), [(0, False), ((256 << 20) - 1, False), (256 << 20, True), (1 << 30, True)]
)
def test_a_spill_under_256_mib_is_never_evidence(spill: int, proves: bool) -> None:
    assert spill_evidence(spill) is proves


# --- warning ----------------------------------------------------------------------------------------------------------


def test_a_warning_with_evidence_at_the_end_of_a_turn_is_pending_and_said_once_applied() -> None:
    story = Story()
    decided = story.see(END, WARNING, True)
    assert said(decided) == (NONE, None, None)
    assert story.state.pending == 30720
    assert story.state.memory.hurt == 40960
    applied = story.see(IDLE, WARNING)
    assert said(applied) == (RESPAWN, 30720, ACTED)
    assert (applied.before, applied.after) == (40960, 30720)
    assert story.state.pending is None
    assert story.state.cap == 30720


def test_without_a_paging_counter_the_level_decides_alone() -> None:
    story = Story()
    story.see(END, WARNING, None)
    assert story.state.pending == 30720


@pytest.mark.parametrize(("point", "evidence"), [(START, True), (IDLE, True), (START, False), (END, False)])
def test_a_warning_without_evidence_or_elsewhere_does_nothing_and_says_nothing(point: Point, evidence: bool) -> None:
    story = Story()
    assert said(story.see(point, WARNING, evidence)) == (NONE, None, None)
    assert story.state.pending is None
    assert story.state.memory == WindowMemory()


def test_a_second_warning_shrinks_on_top_of_the_pending_cap_after_its_turn() -> None:
    story = Story()
    story.see(END, WARNING, True)
    story.see(END, WARNING, True)
    assert story.state.pending == 23040
    story.see(END, WARNING, True)
    assert story.state.pending == 23040


def test_a_pending_cap_dies_with_its_episode_unsaid_and_the_window_that_hurt_stays() -> None:
    story = Story()
    story.see(END, WARNING, True)
    assert said(story.see(IDLE, CALM)) == (NONE, None, None)
    assert story.state.pending == 30720
    assert said(story.see(IDLE, CALM)) == (NONE, None, None)
    assert story.state.pending is None
    assert story.state.memory.hurt == 40960
    assert story.see(IDLE, WARNING).action is NONE


def test_a_calm_sample_alone_does_not_end_the_episode() -> None:
    story = Story()
    story.see(END, WARNING, True)
    story.see(IDLE, CALM)
    assert story.see(IDLE, WARNING).action is RESPAWN


# --- critical at a turn -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [START, END])
@pytest.mark.parametrize("evidence", [True, False, None])
def test_critical_at_a_turn_shrinks_and_respawns_at_once(point: Point, evidence: bool | None) -> None:
    story = Story()
    decision = story.see(point, CRITICAL, evidence)
    assert said(decision) == (RESPAWN, 20480, ACTED)
    assert (decision.before, decision.after) == (40960, 20480)
    assert story.state.memory == WindowMemory(20480, 1000.0, 40960, 1000.0)


def test_critical_shrinks_on_top_of_a_pending_cap() -> None:
    story = Story()
    story.see(END, WARNING, True)
    story.turn()
    assert said(story.see(END, CRITICAL)) == (RESPAWN, 15360, ACTED)
    assert story.state.pending is None


def test_critical_before_another_turn_applies_the_pending_cap_alone() -> None:
    story = Story()
    story.see(END, WARNING, True)
    assert said(story.see(START, CRITICAL)) == (RESPAWN, 30720, ACTED)
    assert story.state.episode is not None
    assert story.state.episode.shrinks == 1


def test_the_second_shrink_needs_a_turn_and_a_third_needs_another_episode() -> None:
    story = Story(ram=8 * GIB)
    assert story.see(END, CRITICAL).cap == 20480
    assert story.see(START, CRITICAL).action is NONE
    assert said(story.see(END, CRITICAL)) == (RESPAWN, 10240, ACTED)
    assert story.state.memory.hurt == 20480
    for point in (START, END, START, END):
        assert said(story.see(point, CRITICAL)) == (NONE, 10240, None)
    story.see(IDLE, CALM)
    story.see(IDLE, CALM)
    assert story.see(START, CRITICAL).cap == 5120


def test_a_shrink_at_the_start_of_a_turn_has_its_turn_when_that_ends() -> None:
    story = Story()
    story.see(START, CRITICAL)
    assert story.see(END, CRITICAL).cap == 10240


def test_both_levels_share_one_counter() -> None:
    story = Story()
    story.see(START, CRITICAL)
    story.see(END, WARNING, True)
    assert story.state.pending == 15360
    story.see(IDLE, WARNING)
    story.turn()
    assert story.see(END, CRITICAL).action is NONE


# --- idle -------------------------------------------------------------------------------------------------------------


def test_an_idle_respawn_with_the_pending_cap_arms_the_unload() -> None:
    story = Story()
    story.see(END, WARNING, True)
    assert said(story.see(IDLE, CRITICAL)) == (RESPAWN, 30720, ACTED)
    decision = story.see(IDLE, CRITICAL)
    assert said(decision) == (UNLOAD, 30720, None)
    assert (decision.before, decision.after) == (30720, 0)


def test_critical_while_idle_with_nothing_pending_shrinks_and_respawns_and_then_unloads() -> None:
    story = Story()
    assert said(story.see(IDLE, CRITICAL)) == (RESPAWN, 20480, ACTED)
    assert story.see(IDLE, CRITICAL).action is UNLOAD


def test_after_a_respawn_at_a_turn_the_first_idle_critical_arms_and_the_second_unloads() -> None:
    story = Story()
    story.see(END, CRITICAL)
    assert story.see(IDLE, CRITICAL).action is NONE
    assert story.see(IDLE, CRITICAL).action is UNLOAD


def test_a_turn_disarms_the_unload() -> None:
    story = Story()
    story.see(END, CRITICAL)
    story.see(IDLE, CRITICAL)
    story.turn()
    assert story.see(IDLE, CRITICAL).action is NONE
    assert story.see(IDLE, CRITICAL).action is UNLOAD


def test_a_turn_whose_sample_was_taken_disarms_as_well() -> None:
    story = Story()
    story.see(END, CRITICAL)
    story.see(IDLE, CRITICAL)
    story.see(END, WARNING)
    assert story.see(IDLE, CRITICAL).action is NONE


@pytest.mark.parametrize("between", [CALM, WARNING])
def test_idle_criticals_that_are_not_in_a_row_do_not_unload(between: Level) -> None:
    story = Story()
    story.see(END, CRITICAL)
    story.see(IDLE, CRITICAL)
    story.see(IDLE, between)
    assert story.see(IDLE, CRITICAL).action is NONE
    assert story.see(IDLE, CRITICAL).action is UNLOAD


def test_an_idle_warning_with_nothing_pending_does_nothing() -> None:
    story = Story()
    for _ in range(5):
        assert said(story.see(IDLE, WARNING, True)) == (NONE, None, None)


# --- the floor and pins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "pinned"),
    [(4096, False), (2048, False), (8000, True), (40960, True)],
    ids=["floor", "trained under the floor", "pinned", "pinned large"],
)
def test_at_the_floor_or_pinned_nothing_is_resized_or_said_and_two_idle_criticals_unload(
    window: int, pinned: bool
) -> None:
    story = Story(window, ram=GIB, pinned=pinned)
    for point, level in [(START, CRITICAL), (END, WARNING), (END, CRITICAL), (IDLE, WARNING)]:
        assert said(story.see(point, level, True)) == (NONE, None, None)
    assert story.state.memory.empty
    assert said(story.see(IDLE, CRITICAL)) == (NONE, None, None)
    assert said(story.see(IDLE, CRITICAL)) == (UNLOAD, None, None)


def test_a_shrink_stops_at_the_floor() -> None:
    story = Story(4352, ram=2 * GIB)
    assert story.see(END, CRITICAL).cap == 4096


def test_windows_are_compared_padded() -> None:
    story = Story(32100)
    assert story.see(END, CRITICAL).cap == 16128
    assert story.state.memory.hurt == 32256


# --- calm and growth --------------------------------------------------------------------------------------------------


def calm(story: Story, samples: int) -> list[Decision]:
    return [story.see(IDLE, CALM) for _ in range(samples)]


def test_a_cap_grows_by_a_quarter_after_five_calm_samples_up_to_nine_tenths_of_what_hurt() -> None:
    story = Story()
    story.see(END, CRITICAL)
    for cap in (25600, 32000, 36864):
        assert [d.action for d in calm(story, 4)] == [NONE] * 4
        (grown,) = calm(story, 1)
        assert said(grown) == (GROW, cap, None)
        assert grown.after == cap
    assert {d.action for d in calm(story, 10)} == {NONE}
    assert story.window == 20480, "a grown cap waits for the next load"


def test_the_cap_is_dropped_at_the_planned_window_once_what_hurt_is_forgotten() -> None:
    story = Story()
    story.see(END, CRITICAL)
    calm(story, 20)
    assert story.state.cap == 36864
    story.now = 1000 + 29.9 * 60
    assert story.see(IDLE, CALM).action is NONE
    story.now = 1000 + 30 * 60
    dropped = story.see(IDLE, CALM)
    assert said(dropped) == (GROW, None, None)
    assert (dropped.before, dropped.after) == (36864, 40960)
    assert story.state.memory.empty


def test_a_cap_that_reaches_the_planned_window_under_the_bound_is_dropped_at_once() -> None:
    story = Story()
    story.planned = 24576
    story.see(END, CRITICAL)
    assert said(calm(story, 5)[-1]) == (GROW, None, None)
    assert story.state.memory.hurt == 40960


def test_pressure_starts_the_calm_row_anew() -> None:
    story = Story()
    story.see(END, CRITICAL)
    calm(story, 4)
    story.see(START, WARNING)
    assert [d.action for d in calm(story, 5)] == [NONE] * 4 + [GROW]


def test_growth_is_no_reason_to_shrink_the_child_from_more_than_it_has() -> None:
    story = Story()
    story.see(END, CRITICAL)
    calm(story, 10)
    assert story.state.cap == 32000
    assert story.see(END, CRITICAL).cap == 10240


def test_a_pinned_child_leaves_the_remembered_cap_alone() -> None:
    story = Story(8192, ram=GIB, pinned=True)
    story.state = BrakeState(WindowMemory(4096, 900.0, 40960, 900.0))
    assert {d.action for d in calm(story, 10)} == {NONE}
    assert story.state.cap == 4096


def test_cap_and_window_that_hurt_are_forgotten_after_thirty_minutes_each() -> None:
    story = Story()
    story.state = BrakeState(WindowMemory(8192, 1000.0, 16384, 1100.0))
    story.now = 1000 + 1800.0
    story.see(IDLE, WARNING)
    assert story.state.memory == WindowMemory(None, None, 16384, 1100.0)
    story.now = 1100 + 1800.0
    story.see(IDLE, WARNING)
    assert story.state.memory == WindowMemory()


# --- steps that were not applied, and respawns ------------------------------------------------------------------------


def test_a_step_that_was_not_applied_is_forgotten() -> None:
    story = Story()
    story.see(START, WARNING)
    decision = story.sample(END, CRITICAL)
    assert decision.action is RESPAWN
    kept = decision.otherwise
    assert kept.memory == WindowMemory()
    assert kept.episode is not None
    assert (kept.episode.shrinks, kept.episode.acted) == (0, False)
    story.state = kept
    assert story.see(END, CRITICAL).cap == 20480


def test_a_respawn_that_was_not_carried_out_keeps_its_pending_cap() -> None:
    story = Story()
    story.see(END, WARNING, True)
    decision = story.sample(IDLE, WARNING)
    assert decision.otherwise.pending == 30720
    assert decision.otherwise.cap is None


def test_nothing_acts_on_a_seeded_child_and_nothing_is_said_until_two_calm_samples() -> None:
    story = Story()
    story.see(IDLE, CRITICAL)
    assert story.state.episode is not None
    story.state = replace(story.state, episode=replace(story.state.episode, seeded=True, acted=False))
    for point in (START, END, IDLE, IDLE, IDLE):
        assert said(story.see(point, CRITICAL, True)) == (NONE, 20480, None)
    story.see(IDLE, CALM)
    assert story.see(END, CRITICAL).action is NONE
    calm(story, 2)
    assert story.see(END, CRITICAL).cap == 10240


def test_external_is_never_said_after_acted_in_the_same_episode() -> None:
    story = Story()
    assert story.see(END, CRITICAL).notice is ACTED
    story.ram = 1024 * GIB
    assert story.see(END, CRITICAL).notice is None


def test_the_episode_knows_its_worst_level() -> None:
    story = Story()
    for level, worst in [(WARNING, WARNING), (CRITICAL, CRITICAL), (WARNING, CRITICAL)]:
        story.see(START, level)
        assert story.state.episode is not None
        assert story.state.episode.level is worst
