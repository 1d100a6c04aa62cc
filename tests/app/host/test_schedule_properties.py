"""Whatever happens, in whatever order: what must always hold of the schedule."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.host import vocabulary as v
from app.host.schedule import Policy, Schedule

MODELS = st.sampled_from(["a", "b", "c", "small"])
TRAITS = {
    "a": v.Traits(),
    "b": v.Traits(pinned=True),
    "c": v.Traits(),
    "small": v.Traits(small=True),
}


class AnySequence(RuleBasedStateMachine):
    """Plays host: carries effects out at whatever time hypothesis likes."""

    @initialize(max_models=st.integers(1, 2), evict=st.booleans(), machine_slot=st.booleans(), slots=st.integers(1, 3))
    def begin(self, max_models: int, evict: bool, machine_slot: bool, slots: int) -> None:
        self.slots = slots
        self.policy = Policy(
            max_models=max_models, evict_pinned=evict, machine_slot=machine_slot, max_wait_seconds=100, idle_seconds=50
        )
        self.schedule = Schedule(self.policy)
        self.now = 0.0
        self.next = 0
        self.open: dict[int, float] = {}
        self.granted: dict[int, int] = {}
        self.finished: set[int] = set()
        self.holds: set[int] = set()
        self.loading: set[int] = set()
        self.serving: set[int] = set()
        self.stopping: set[int] = set()
        self.closed = False

    def post(self, event: v.Event) -> None:
        for effect in self.schedule.handle(event):
            match effect:
                case v.Spawn(child):
                    assert child not in self.loading | self.serving | self.stopping
                    assert not self.closed
                    self.loading.add(child)
                case v.Stop(child):
                    assert child in self.loading | self.serving, "stopped twice, or never started"
                    assert child not in self.granted.values(), "a busy child was stopped"
                    self.loading.discard(child)
                    self.serving.discard(child)
                    self.stopping.add(child)
                case v.Grant(turn, child):
                    assert turn in self.open, "granted twice, or after its end"
                    assert child in self.serving
                    del self.open[turn]
                    self.granted[turn] = child
                case v.Refuse(turn):
                    assert turn in self.open or turn in self.granted, "refused twice, or after its end"
                    self.open.pop(turn, None)
                    self.granted.pop(turn, None)
                    self.finished.add(turn)

    @rule(model=MODELS, by_user=st.booleans())
    def ask(self, model: str, by_user: bool) -> None:
        self.next += 1
        self.open[self.next] = self.now
        self.post(v.TurnAsked(self.now, self.next, model, TRAITS[model], by_user))

    @rule(model=MODELS)
    def ask_hold(self, model: str) -> None:
        self.next += 1
        self.open[self.next] = self.now
        self.holds.add(self.next)
        self.post(v.HoldAsked(self.now, self.next, model))

    @precondition(lambda self: self.open or self.granted)
    @rule(data=st.data(), left=st.booleans())
    def end(self, data: st.DataObject, left: bool) -> None:
        turn = data.draw(st.sampled_from(sorted([*self.open, *self.granted])))
        waiting = turn in self.open
        self.open.pop(turn, None)
        self.granted.pop(turn, None)
        self.finished.add(turn)
        if turn in self.holds:
            self.post(v.HoldEnded(self.now, turn))
        else:
            self.post(v.TurnLeft(self.now, turn) if left or waiting else v.TurnEnded(self.now, turn))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(sorted(self.finished)))
        self.post(v.HoldEnded(self.now, turn) if turn in self.holds else v.TurnLeft(self.now, turn))

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), works=st.booleans())
    def load_ends(self, data: st.DataObject, works: bool) -> None:
        child = data.draw(st.sampled_from(sorted(self.loading)))
        self.loading.discard(child)
        if works:
            self.serving.add(child)
            self.post(v.ChildReady(self.now, child, self.slots))
        else:
            self.post(v.LoadFailed(self.now, child, RuntimeError()))

    @precondition(lambda self: self.serving)
    @rule(data=st.data())
    def child_dies(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(sorted(self.serving)))
        self.serving.discard(child)
        self.post(v.ChildDied(self.now, child, RuntimeError()))
        assert child not in self.granted.values(), "a turn of a dead child was not broken off"

    @precondition(lambda self: self.stopping)
    @rule(data=st.data())
    def child_is_gone(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(sorted(self.stopping)))
        self.stopping.discard(child)
        self.post(v.MemoryFreed(self.now, child))

    @rule(model=MODELS, pinned=st.booleans())
    def pin(self, model: str, pinned: bool) -> None:
        self.post(v.PinChanged(self.now, model, pinned))

    @rule(model=MODELS)
    def unload(self, model: str) -> None:
        self.post(v.UnloadAsked(self.now, model))

    @rule(model=MODELS, action=st.sampled_from(v.BrakeAction))
    def brake(self, model: str, action: v.BrakeAction) -> None:
        self.post(v.BrakeDecided(self.now, model, action, 4096))

    @rule(seconds=st.sampled_from([0.1, 5, 31, 60, 700]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.post(v.Tick(self.now))

    @precondition(lambda self: self.next > 3)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.granted = {t: c for t, c in self.granted.items() if t not in self.holds}
        self.post(v.Closing(self.now))
        assert not self.open
        assert not self.granted

    @invariant()
    def never_more_in_flight_than_slots(self) -> None:
        for child in self.schedule.children.values():
            turns = [t for t, c in self.granted.items() if c == child.id and t not in self.holds]
            holds = [t for t, c in self.granted.items() if c == child.id and t in self.holds]
            assert len(turns) <= child.slots
            assert len(holds) <= 1
            assert not (turns and holds)

    @invariant()
    def one_child_generates_at_a_time(self) -> None:
        if self.policy.machine_slot:
            busy = {c for t, c in self.granted.items() if t not in self.holds}
            assert len(busy) <= 1

    @invariant()
    def no_more_large_models_than_allowed(self) -> None:
        large = [c for c in self.schedule.children.values() if not c.traits.small]
        assert len(large) <= self.policy.max_models

    @invariant()
    def the_schedule_knows_exactly_the_children_there_are(self) -> None:
        assert set(self.schedule.children) == self.loading | self.serving | self.stopping

    @invariant()
    def nobody_waits_longer_than_the_bound(self) -> None:
        turns = [asked for turn, asked in self.open.items() if turn not in self.holds]
        assert all(self.now - asked < self.policy.max_wait_seconds or self.now == asked for asked in turns)

    def teardown(self) -> None:
        """Everything answered in time from now on: every waiter must end."""
        for _ in range(200):
            if not (self.open or self.granted or self.loading or self.stopping):
                break
            for child in sorted(self.loading):
                self.loading.discard(child)
                self.serving.add(child)
                self.post(v.ChildReady(self.now, child, self.slots))
            for child in sorted(self.stopping):
                self.stopping.discard(child)
                self.post(v.MemoryFreed(self.now, child))
            for turn in sorted(self.granted):
                self.granted.pop(turn, None)
                self.post(v.HoldEnded(self.now, turn) if turn in self.holds else v.TurnEnded(self.now, turn))
            self.now += 10
            self.post(v.Tick(self.now))
        assert not self.open, "a turn was lost"


AnySequence.TestCase.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnySequence = AnySequence.TestCase
