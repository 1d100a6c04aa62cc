"""The law for an MLX child, row by row, told as samples in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.memory.brake import (
    Action,
    BrakeNotice,
    BrakeState,
    Decision,
    Level,
    MlxSample,
    Point,
    WindowMemory,
    mlx_released,
    mlx_step,
    turn_ended,
)

CALM, WARNING, CRITICAL = Level.CALM, Level.WARNING, Level.CRITICAL
START, END, IDLE = Point.TURN_START, Point.TURN_END, Point.IDLE
MIB = 1 << 20
BASE = 3000 * MIB
NONE, RELEASE, SHRINK, GROW, UNLOAD = Action.NONE, Action.RELEASE, Action.SHRINK, Action.GROW, Action.UNLOAD
ACTED, EXTERNAL = BrakeNotice.ACTED, BrakeNotice.EXTERNAL


class Story:
    """One child; ``held`` is what it holds above its base. Every decision is carried out unless ``fails``."""

    def __init__(self, window: int | None = 32768, *, request: int | None = 30000, held: int = 0) -> None:
        self.window = self.planned = window
        self.state = turn_ended(BrakeState(), request)
        self.held = held
        self.base: int | None = BASE
        self.pinned = False
        self.now = 1000.0

    def sample(self, point: Point, level: Level, evidence: bool | None = False) -> MlxSample:
        return MlxSample(
            now=self.now,
            point=point,
            level=level,
            evidence=evidence,
            allocated=self.window,
            planned=self.planned,
            pinned=self.pinned,
            footprint=BASE + self.held,
            base=self.base,
        )

    def see(
        self, point: Point, level: Level, evidence: bool | None = False, *, left: int | None = None, fails: bool = False
    ) -> list[Decision]:
        """The decisions of one sample: a release that leaves ``left`` bytes is followed by a second one."""
        sample = self.sample(point, level, evidence)
        decisions = [mlx_step(self.state, sample)]
        if decisions[0].action is RELEASE and not fails:
            assert left is not None
            self.held = left
            decisions.append(mlx_released(decisions[0], sample, BASE + left))
        last = decisions[-1]
        self.state = last.otherwise if fails else last.state
        if last.action in (SHRINK, GROW) and not fails:
            self.window = last.after
        self.now += 60
        return decisions

    def one(self, point: Point, level: Level, evidence: bool | None = False) -> Decision:
        (decision,) = self.see(point, level, evidence)
        return decision


def said(decision: Decision) -> tuple[Action, int | None, BrakeNotice | None]:
    return decision.action, decision.cap, decision.notice


# --- release ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize("level", [WARNING, CRITICAL])
def test_a_release_at_any_point_from_256_mib_above_the_base(point: Point, level: Level) -> None:
    assert Story(held=256 * MIB).see(point, level, left=0)[0].action is RELEASE
    assert Story(held=256 * MIB - 1).one(point, level).action is not RELEASE


def test_a_release_alone_says_nothing() -> None:
    story = Story(request=100, held=900 * MIB)
    release, rest = story.see(END, WARNING, left=330 * MIB)
    assert said(release) == (RELEASE, None, None)
    assert said(rest) == (NONE, None, None)
    assert story.state.left == 330 * MIB


def test_what_the_last_release_left_triggers_no_other_one() -> None:
    story = Story(request=100, held=900 * MIB)
    story.see(END, WARNING, left=330 * MIB)
    assert story.one(IDLE, WARNING).action is NONE
    story.held = (330 + 256) * MIB
    assert story.see(IDLE, WARNING, left=300 * MIB)[0].action is RELEASE
    assert story.state.left == 300 * MIB


def test_a_failed_release_records_nothing_says_nothing_allows_no_shrink_and_is_tried_again() -> None:
    story = Story(held=900 * MIB)
    (failed,) = story.see(END, CRITICAL, fails=True)
    assert said(failed) == (RELEASE, None, None)
    assert story.state.left == 0
    assert story.state.cap is None
    release, rest = story.see(START, CRITICAL, left=0)
    assert release.action is RELEASE
    assert rest.action is SHRINK


def test_a_release_whose_rest_cannot_be_read_keeps_what_the_one_before_left() -> None:
    story = Story(request=100, held=900 * MIB)
    sample = story.sample(IDLE, WARNING)
    decision = mlx_step(replace(story.state, left=10 * MIB), sample)
    assert mlx_released(decision, sample, None).state.left == 10 * MIB


def test_a_release_below_the_base_leaves_nothing() -> None:
    story = Story(request=100, held=900 * MIB)
    story.see(IDLE, WARNING, left=-50 * MIB)
    assert story.state.left == 0


def test_without_a_base_or_a_footprint_there_is_no_release_and_no_notice() -> None:
    story = Story(request=100, held=900 * MIB)
    story.base = None
    assert said(story.one(END, WARNING)) == (NONE, None, None)


# --- shrink -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [START, END])
@pytest.mark.parametrize(("level", "cap"), [(WARNING, 24576), (CRITICAL, 16384)])
def test_a_useful_shrink_at_a_turn(point: Point, level: Level, cap: int) -> None:
    story = Story()
    decision = story.one(point, level)
    assert said(decision) == (SHRINK, cap, ACTED)
    assert (decision.before, decision.after) == (32768, cap)
    assert story.state.memory == WindowMemory(cap, 1000.0, 32768, 1000.0)


def test_a_release_and_a_shrink_in_one_sample() -> None:
    release, rest = Story(held=900 * MIB).see(END, WARNING, left=0)
    assert release.notice is None
    assert said(rest) == (SHRINK, 24576, ACTED)


@pytest.mark.parametrize(
    ("request_tokens", "useful"), [(None, False), (100, False), (24576, False), (24577, True), (32768, True)]
)
def test_a_shrink_is_useful_when_the_new_cap_is_under_the_last_turns_largest_request(
    request_tokens: int | None, useful: bool
) -> None:
    decision = Story(request=request_tokens).one(END, WARNING)
    assert (decision.action is SHRINK) is useful
    assert decision.notice is (ACTED if useful else EXTERNAL)


def test_the_largest_request_is_measured_else_estimated_else_the_one_before() -> None:
    state = turn_ended(BrakeState(), 100, 200)
    assert state.request == 100
    state = turn_ended(state, None, 200)
    assert state.request == 200
    assert turn_ended(state).request == 200


def test_idle_never_shrinks_and_a_useful_shrink_that_is_left_is_not_external() -> None:
    assert said(Story().one(IDLE, WARNING)) == (NONE, None, None)
    assert said(Story().one(IDLE, CRITICAL)) == (NONE, None, None)


def test_two_shrinks_in_an_episode_with_a_turn_between() -> None:
    story = Story()
    assert story.one(END, CRITICAL).cap == 16384
    assert said(story.one(START, CRITICAL)) == (NONE, 16384, None)
    assert story.one(END, CRITICAL).cap == 8192
    for _ in range(4):
        assert said(story.one(END, CRITICAL)) == (NONE, 8192, None)


def test_at_the_floor_no_shrink_is_left_and_the_pressure_is_external() -> None:
    assert said(Story(4096).one(END, CRITICAL)) == (NONE, None, EXTERNAL)
    assert Story(4608).one(END, CRITICAL).cap == 4096


def test_a_bound_off_the_grid_shrinks_onto_it() -> None:
    assert Story(23417).one(END, WARNING).cap == 17408


@pytest.mark.parametrize("change", [{"pinned": True}, {"window": None}])
def test_a_pinned_or_unknown_window_is_never_shrunk(change: dict[str, object]) -> None:
    story = Story()
    for name, value in change.items():
        setattr(story, name, value)
    assert said(story.one(END, CRITICAL)) == (NONE, None, EXTERNAL)


# --- evidence, external, unload ---------------------------------------------------------------------------------------


def test_evidence_lifts_a_calm_turn_end_to_warning() -> None:
    story = Story()
    decision = story.one(END, CALM, True)
    assert decision.level is WARNING
    assert said(decision) == (SHRINK, 24576, ACTED)


@pytest.mark.parametrize(("point", "evidence"), [(START, True), (IDLE, True), (END, False), (END, None)])
def test_nothing_else_lifts_a_calm_sample(point: Point, evidence: bool | None) -> None:
    decision = Story(held=900 * MIB).one(point, CALM, evidence)
    assert (decision.level, decision.action) == (CALM, NONE)


def test_nothing_to_release_and_no_useful_shrink_is_external_once() -> None:
    story = Story(request=100)
    assert story.one(IDLE, WARNING).notice is EXTERNAL
    assert story.one(END, CRITICAL).notice is None


def test_external_is_never_said_after_acted() -> None:
    story = Story()
    story.one(END, CRITICAL)
    story.state = turn_ended(story.state, 10)
    assert said(story.one(START, CRITICAL)) == (NONE, 16384, None)


def test_two_idle_criticals_in_a_row_unload() -> None:
    story = Story()
    assert story.one(IDLE, CRITICAL).action is NONE
    decision = story.one(IDLE, CRITICAL)
    assert (decision.action, decision.before, decision.after) == (UNLOAD, 32768, 0)


def test_the_first_idle_critical_releases_and_still_counts_also_when_the_release_fails() -> None:
    for fails in (False, True):
        story = Story(held=900 * MIB)
        assert story.see(IDLE, CRITICAL, left=0, fails=fails)[0].action is RELEASE
        assert story.one(IDLE, CRITICAL).action is UNLOAD


def test_a_turn_a_warning_or_a_calm_sample_between_disarms() -> None:
    for between in ("turn", WARNING, CALM):
        story = Story()
        story.one(IDLE, CRITICAL)
        if isinstance(between, Level):
            story.one(IDLE, between)
        else:
            story.state = turn_ended(story.state)
        assert story.one(IDLE, CRITICAL).action is NONE


def test_nothing_acts_on_a_seeded_child_not_even_a_release() -> None:
    story = Story(held=900 * MIB)
    story.one(START, CALM)
    story.state = replace(story.state, episode=replace(story.state.pressure, seeded=True))
    for point in (START, END, IDLE, IDLE, IDLE):
        assert said(story.one(point, CRITICAL, True)) == (NONE, None, None)
    story.one(IDLE, CALM)
    story.one(IDLE, CALM)
    assert story.see(END, CRITICAL, left=0)[0].action is RELEASE


# --- growth -----------------------------------------------------------------------------------------------------------


def calm(story: Story, samples: int) -> list[Decision]:
    return [story.one(IDLE, CALM) for _ in range(samples)]


def test_a_cap_grows_in_the_running_child_and_is_dropped_at_the_planned_window() -> None:
    story = Story()
    story.one(END, CRITICAL)
    assert [d.cap for d in calm(story, 20) if d.action is GROW] == [20480, 25600, 29440]
    assert story.window == 29440
    story.now = 1000 + 1800.0
    (dropped,) = calm(story, 1)
    assert (dropped.action, dropped.cap, dropped.before, dropped.after) == (GROW, None, 29440, 32768)


def test_a_cap_forgotten_by_time_is_lifted_in_the_running_child() -> None:
    story = Story()
    story.window = 8192
    (*_, lifted) = calm(story, 5)
    assert (lifted.action, lifted.cap, lifted.after) == (GROW, None, 32768)


def test_it_is_not_lifted_while_the_window_that_hurt_is_remembered() -> None:
    story = Story()
    story.window = 8192
    story.state = replace(story.state, memory=WindowMemory(None, None, 9000, 1000.0))
    assert {d.action for d in calm(story, 9)} == {NONE}


def test_a_child_without_a_planned_window_is_lifted_to_none() -> None:
    story = Story()
    story.window, story.planned = 8192, None
    (*_, lifted) = calm(story, 5)
    assert (lifted.action, lifted.after) == (GROW, None)


def test_a_growth_that_the_child_did_not_apply_is_forgotten_and_tried_again() -> None:
    story = Story()
    story.one(END, CRITICAL)
    calm(story, 4)
    (grow,) = story.see(IDLE, CALM, fails=True)
    assert grow.action is GROW
    assert story.state.cap == 16384
    assert calm(story, 1)[0].cap == 20480


def test_a_shrink_that_the_child_did_not_apply_is_forgotten_with_its_count_and_its_notice() -> None:
    story = Story()
    (shrink,) = story.see(END, CRITICAL, fails=True)
    assert shrink.action is SHRINK
    assert story.state.memory == WindowMemory()
    assert (story.state.pressure.shrinks, story.state.pressure.acted) == (0, False)
    assert story.one(START, CRITICAL).cap == 16384
