"""The schedule's laws, told as event sequences: what goes in, what must come out."""

from __future__ import annotations

from itertools import pairwise

from app.host import vocabulary as v
from app.host.schedule import Policy, Schedule

LARGE = v.Traits()
SMALL = v.Traits(small=True)
PINNED = v.Traits(pinned=True)
BOOM = RuntimeError("boom")


class Script:
    """A schedule, its clock, and shorthand for events."""

    def __init__(self, **policy: object) -> None:
        self.schedule = Schedule(Policy(**policy))  # type: ignore[arg-type]
        self.now = 0.0
        self._turn = 0

    def ask(self, model: str, traits: v.Traits = LARGE, *, by_user: bool = False) -> int:
        self._turn += 1
        self.effects = self.post(v.TurnAsked(self.now, self._turn, model, traits, by_user))
        return self._turn

    def post(self, event: v.Event) -> list[v.Effect]:
        self.effects = [e for e in self.schedule.handle(event) if not isinstance(e, v.Wait)]
        return self.effects

    def later(self, seconds: float) -> list[v.Effect]:
        self.now += seconds
        return self.post(v.Tick(self.now))

    def ready(self, child: int, slots: int = 1) -> list[v.Effect]:
        return self.post(v.ChildReady(self.now, child, slots))

    def end(self, turn: int) -> list[v.Effect]:
        return self.post(v.TurnEnded(self.now, turn))

    def leave(self, turn: int) -> list[v.Effect]:
        return self.post(v.TurnLeft(self.now, turn))

    def freed(self, child: int) -> list[v.Effect]:
        return self.post(v.MemoryFreed(self.now, child))

    def loaded(self, model: str, traits: v.Traits = LARGE, slots: int = 1) -> int:
        """Have a model resident and idle; returns its child."""
        turn = self.ask(model, traits)
        (spawn,) = self.effects
        assert isinstance(spawn, v.Spawn)
        self.ready(spawn.child, slots)
        self.end(turn)
        return spawn.child


def test_a_cold_turn_loads_and_is_granted_when_the_child_is_ready() -> None:
    s = Script()
    turn = s.ask("a")
    assert s.effects == [v.Spawn(1, "a")]
    assert s.ready(1) == [v.Grant(turn, 1)]


def test_eight_cold_turns_make_one_load_and_are_granted_in_their_order() -> None:
    s = Script()
    turns = [s.ask("a") for _ in range(8)]
    assert s.ready(1) == [v.Grant(turns[0], 1)]
    for before, after in pairwise(turns):
        assert s.end(before) == [v.Grant(after, 1)]
    assert s.end(turns[-1]) == []


def test_a_child_with_slots_serves_that_many_at_once() -> None:
    s = Script()
    turns = [s.ask("a") for _ in range(3)]
    assert s.ready(1, slots=2) == [v.Grant(turns[0], 1), v.Grant(turns[1], 1)]
    assert s.end(turns[1]) == [v.Grant(turns[2], 1)]


def test_leaving_while_waiting_is_forgotten_and_leaving_while_granted_frees_the_slot() -> None:
    s = Script()
    first, second, third = s.ask("a"), s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.leave(second) == []
    assert s.leave(first) == [v.Grant(third, 1)]


def test_leaving_and_ending_are_idempotent() -> None:
    s = Script()
    first, second, third = s.ask("a"), s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.leave(first) == [v.Grant(second, 1)]
    assert s.leave(first) == []
    assert s.end(first) == []
    assert s.end(second) == [v.Grant(third, 1)]


def test_a_load_whose_waiters_have_all_left_finishes_and_stays() -> None:
    s = Script()
    turn = s.ask("a")
    assert s.leave(turn) == []
    assert s.ready(1) == []
    again = s.ask("a")
    assert s.effects == [v.Grant(again, 1)]


def test_a_failed_load_refuses_all_that_wait_for_it_with_the_reason() -> None:
    s = Script()
    first, second = s.ask("a"), s.ask("a")
    assert s.post(v.LoadFailed(0, 1, BOOM)) == [
        v.Refuse(first, v.LoadFailure(BOOM)),
        v.Refuse(second, v.LoadFailure(BOOM)),
    ]


def test_a_dead_child_breaks_its_turn_and_the_next_one_loads_again() -> None:
    s = Script()
    first, second = s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.post(v.ChildDied(0, 1, BOOM)) == [v.Refuse(first, v.Crashed(BOOM)), v.Spawn(2, "a")]
    assert s.ready(2) == [v.Grant(second, 2)]


def test_a_model_that_crashes_three_times_in_ten_minutes_is_not_loaded_by_itself() -> None:
    s = Script()
    for child in (1, 2, 3):
        s.ask("a")
        assert v.Spawn(child, "a") in s.effects
        s.post(v.LoadFailed(s.now, child, BOOM))
    turn = s.ask("a")
    assert s.effects == [v.Refuse(turn, v.KeepsCrashing("a", 3, BOOM))]
    clicked = s.ask("a", by_user=True)
    assert s.effects == [v.Spawn(4, "a")]
    assert s.ready(4) == [v.Grant(clicked, 4)]


def test_crashes_are_forgotten_after_ten_minutes() -> None:
    s = Script()
    for child in (1, 2, 3):
        s.ask("a")
        s.post(v.LoadFailed(s.now, child, BOOM))
    s.later(600)
    s.ask("a")
    assert s.effects == [v.Spawn(4, "a")]


def test_a_load_error_that_is_no_crash_is_tried_each_time() -> None:
    s = Script()
    for child in range(1, 6):
        s.ask("a")
        assert s.effects == [v.Spawn(child, "a")]
        s.post(v.LoadFailed(s.now, child, BOOM, crashed=False))


def test_another_model_evicts_the_idle_one_and_loads_when_its_memory_is_back() -> None:
    s = Script()
    s.loaded("a")
    turn = s.ask("b")
    assert s.effects == [v.Stop(1, v.StopReason.SWITCH)]
    assert s.freed(1) == [v.Spawn(2, "b")]
    assert s.ready(2) == [v.Grant(turn, 2)]


def test_a_busy_child_is_never_a_victim_the_switch_waits() -> None:
    s = Script()
    first = s.ask("a")
    s.ready(1)
    s.ask("b")
    assert s.effects == []
    assert s.end(first) == [v.Stop(1, v.StopReason.SWITCH)]


def test_the_least_recently_used_of_two_goes() -> None:
    s = Script(max_models=2)
    s.loaded("a")
    s.now = 1
    s.loaded("b")
    s.now = 2
    s.end(s.ask("a"))
    s.ask("c")
    assert s.effects == [v.Stop(2, v.StopReason.SWITCH)]


def test_one_switch_at_a_time() -> None:
    s = Script(max_models=3)
    s.ask("a")
    s.ask("b")
    assert s.effects == []
    assert s.ready(1)[-1] == v.Spawn(2, "b")


def test_the_resident_model_is_served_until_the_other_has_waited_its_time() -> None:
    s = Script(group_seconds=30)
    turn = s.ask("a")
    s.ready(1)
    s.ask("b")
    for _ in range(5):
        after = s.ask("a")
        assert s.end(turn) == [v.Grant(after, 1)]
        turn = after
    s.later(30)
    s.ask("a")
    assert s.end(turn) == [v.Stop(1, v.StopReason.SWITCH)]


def test_turns_asked_before_the_other_model_are_served_before_the_switch() -> None:
    s = Script(group_seconds=30)
    turn, before = s.ask("a"), s.ask("a")
    s.ready(1)
    s.ask("b")
    s.later(31)
    assert s.end(turn) == [v.Grant(before, 1)]
    assert s.end(before) == [v.Stop(1, v.StopReason.SWITCH)]


def test_a_pinned_model_is_not_evicted_the_other_is_told_which() -> None:
    s = Script()
    s.loaded("a", PINNED)
    turn = s.ask("b")
    assert s.effects == [v.Refuse(turn, v.PinnedInTheWay("a"))]


def test_with_evict_pinned_pins_are_the_last_victims() -> None:
    s = Script(max_models=2, evict_pinned=True)
    s.loaded("a", PINNED)
    s.now = 1
    s.loaded("b")
    s.ask("c")
    assert s.effects == [v.Stop(2, v.StopReason.SWITCH)]
    only = Script(evict_pinned=True)
    only.loaded("a", PINNED)
    only.ask("b")
    assert only.effects == [v.Stop(1, v.StopReason.SWITCH)]


def test_a_small_worker_stays_beside_a_large_model() -> None:
    s = Script()
    s.loaded("a")
    s.ask("embedder", SMALL)
    assert s.effects == [v.Spawn(2, "embedder")]


def test_one_child_generates_at_a_time_on_the_cpu_and_first_come_is_first_served() -> None:
    s = Script()
    s.loaded("a")
    s.loaded("embedder", SMALL)
    first = s.ask("a")
    small = s.ask("embedder", SMALL)
    behind = s.ask("a")
    assert s.end(first) == [v.Grant(small, 2)]
    assert s.end(small) == [v.Grant(behind, 1)]


def test_without_a_machine_slot_children_work_beside_each_other() -> None:
    s = Script(machine_slot=False)
    s.loaded("a")
    s.loaded("embedder", SMALL)
    s.ask("a")
    small = s.ask("embedder", SMALL)
    assert s.effects == [v.Grant(small, 2)]


def test_an_unused_child_is_stopped_after_its_time_and_a_pinned_or_busy_one_is_not() -> None:
    s = Script(idle_seconds=300)
    s.loaded("a")
    assert s.later(299) == []
    assert s.later(1) == [v.Stop(1, v.StopReason.IDLE)]
    pinned = Script(idle_seconds=300)
    pinned.loaded("a", PINNED)
    assert pinned.later(10_000) == []
    busy = Script(idle_seconds=300)
    turn = busy.ask("a")
    busy.ready(1)
    assert busy.later(10_000) == []
    busy.end(turn)
    assert busy.later(299) == []  # the clock starts at the end of the turn
    assert busy.later(1) == [v.Stop(1, v.StopReason.IDLE)]


def test_every_wait_is_bounded() -> None:
    s = Script(max_wait_seconds=600)
    s.ask("a")
    s.ready(1)
    waits = s.ask("a")
    assert s.later(599) == []
    assert s.later(1) == [v.Refuse(waits, v.WaitedTooLong(600))]


def test_unloading_finishes_the_answer_and_later_turns_load_again() -> None:
    s = Script()
    turn, behind = s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.post(v.UnloadAsked(0, "a")) == []
    assert s.end(turn) == [v.Stop(1, v.StopReason.USER)]
    assert s.freed(1) == [v.Spawn(2, "a")]
    assert s.ready(2) == [v.Grant(behind, 2)]


def test_unloading_cancels_a_load_at_once_and_says_so_to_those_who_wait() -> None:
    s = Script()
    turn = s.ask("a")
    assert s.post(v.UnloadAsked(0, "a")) == [v.Stop(1, v.StopReason.USER), v.Refuse(turn, v.LoadCancelled())]
    assert s.freed(1) == []


def test_unloading_takes_back_a_load_that_the_user_asked_for_and_that_still_waits() -> None:
    s = Script()
    answering = s.ask("a")
    s.ready(1)
    chosen, asked = s.ask("b", by_user=True), s.ask("b")
    assert s.post(v.UnloadAsked(0, "b")) == [v.Refuse(chosen, v.LoadCancelled())]
    s.end(answering)
    assert s.freed(1) == [v.Spawn(2, "b")]
    assert s.ready(2) == [v.Grant(asked, 2)]


def test_pinning_acts_on_the_child_that_runs() -> None:
    s = Script(idle_seconds=300)
    s.loaded("a")
    s.post(v.PinChanged(0, "a", True))
    assert s.later(1000) == []
    other = s.ask("b")
    assert s.effects == [v.Refuse(other, v.PinnedInTheWay("a"))]
    assert s.post(v.PinChanged(s.now, "a", False)) == []
    assert s.later(1000) == [v.Stop(1, v.StopReason.IDLE)]


def test_a_stop_that_was_asked_for_is_never_a_crash() -> None:
    s = Script()
    for child in range(1, 6):
        s.ask("a")
        assert s.effects == [v.Spawn(child, "a")]
        s.post(v.UnloadAsked(s.now, "a"))
        assert s.post(v.ChildDied(s.now, child, BOOM)) == []


def test_a_hold_takes_all_slots_in_its_turn() -> None:
    s = Script()
    s.loaded("a", slots=2)
    turn = s.ask("a")
    assert s.post(v.HoldAsked(0, 99, "a")) == []
    behind = s.ask("a")
    assert s.effects == []  # nobody overtakes the hold
    assert s.end(turn) == [v.Grant(99, 1)]
    assert s.post(v.HoldEnded(0, 99)) == [v.Grant(behind, 1)]
    assert s.post(v.HoldEnded(0, 99)) == []


def test_a_hold_ahead_comes_between_a_turn_and_those_that_wait() -> None:
    s = Script()
    turn, behind = s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.post(v.HoldAsked(0, 99, "a", ahead=True)) == []
    assert s.end(turn) == [v.Grant(99, 1)]
    assert s.post(v.HoldEnded(0, 99)) == [v.Grant(behind, 1)]


def test_a_hold_of_a_model_that_is_not_loaded_is_refused() -> None:
    s = Script()
    assert s.post(v.HoldAsked(0, 99, "a")) == [v.Refuse(99, v.NoChild())]


def test_a_held_child_is_neither_evicted_nor_reaped() -> None:
    s = Script()
    s.loaded("a")
    s.post(v.HoldAsked(0, 99, "a"))
    s.ask("b")
    assert s.effects == []
    assert s.later(500) == []
    assert s.post(v.HoldEnded(s.now, 99)) == [v.Stop(1, v.StopReason.SWITCH)]


def test_the_brake_respawns_in_place_with_its_cap() -> None:
    s = Script()
    s.loaded("a")
    assert s.post(v.BrakeDecided(0, "a", v.BrakeAction.RESPAWN, 8192)) == [v.Stop(1, v.StopReason.BRAKE)]
    waiting = s.ask("a")
    assert s.freed(1) == [v.Spawn(2, "a", v.SpawnReason.BRAKE, 8192)]
    assert s.ready(2) == [v.Grant(waiting, 2)]


def test_the_brake_waits_for_what_is_in_flight_and_lets_nothing_new_in() -> None:
    s = Script()
    turn = s.ask("a")
    s.ready(1)
    assert s.post(v.BrakeDecided(0, "a", v.BrakeAction.UNLOAD)) == []
    s.ask("a")
    assert s.effects == []
    assert s.end(turn) == [v.Stop(1, v.StopReason.BRAKE)]


def test_a_failed_brake_respawn_is_no_crash() -> None:
    s = Script(crash_limit=1)
    s.loaded("a")
    s.post(v.BrakeDecided(0, "a", v.BrakeAction.RESPAWN, 8192))
    s.freed(1)
    s.post(v.LoadFailed(0, 2, BOOM))
    s.ask("a")
    assert s.effects == [v.Spawn(3, "a")]


def test_closing_refuses_everybody_and_stops_every_child() -> None:
    s = Script()
    granted, waiting = s.ask("a"), s.ask("a")
    s.ready(1)
    assert s.post(v.Closing(0)) == [
        v.Refuse(waiting, v.ShuttingDown()),
        v.Refuse(granted, v.ShuttingDown()),
        v.Stop(1, v.StopReason.CLOSING),
    ]
    late = s.ask("a")
    assert s.effects == [v.Refuse(late, v.ShuttingDown())]
    assert s.freed(1) == []


def test_a_waiting_turn_is_told_what_it_waits_for_whenever_that_changes() -> None:
    schedule = Schedule(Policy())
    said = [e for e in schedule.handle(v.TurnAsked(0, 1, "a")) if isinstance(e, v.Wait)]
    assert said == [v.Wait(1, v.WaitReason.LOADING, 0)]
    said = [e for e in schedule.handle(v.TurnAsked(0, 2, "a")) if isinstance(e, v.Wait)]
    assert said == [v.Wait(2, v.WaitReason.LOADING, 1)]
    said = [e for e in schedule.handle(v.ChildReady(0, 1)) if isinstance(e, v.Wait)]
    assert said == [v.Wait(2, v.WaitReason.QUEUED, 1)]
    schedule.handle(v.TurnAsked(0, 3, "b"))
    schedule.handle(v.TurnLeft(0, 2))
    said = [e for e in schedule.handle(v.TurnEnded(0, 1)) if isinstance(e, v.Wait)]
    assert said == [v.Wait(3, v.WaitReason.SWITCHING, 0)]
