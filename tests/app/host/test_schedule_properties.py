"""Whatever happens, in whatever order: what must always hold of the schedule.

Twice: hypothesis searches for a short counterexample, and 10,000 random sequences go for volume.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.host import vocabulary as v
from app.host.schedule import Policy
from tests.fixtures.schedule_world import MODELS, World

MODEL = st.sampled_from(MODELS)
PAUSES = (0.1, 5.0, 31.0, 60.0, 700.0)
SEQUENCES = 10_000
STEPS = 40


def policy(max_models: int, *, evict: bool, machine_slot: bool) -> Policy:
    return Policy(
        max_models=max_models, evict_pinned=evict, machine_slot=machine_slot, max_wait_seconds=100, idle_seconds=50
    )


class AnySequence(RuleBasedStateMachine):
    """hypothesis drives the world."""

    @initialize(max_models=st.integers(1, 2), evict=st.booleans(), machine_slot=st.booleans(), slots=st.integers(1, 3))
    def begin(self, max_models: int, evict: bool, machine_slot: bool, slots: int) -> None:
        self.world = World(policy(max_models, evict=evict, machine_slot=machine_slot), slots)

    @rule(model=MODEL, by_user=st.booleans())
    def ask(self, model: str, by_user: bool) -> None:
        self.world.ask(model, by_user=by_user)

    @rule(model=MODEL, ahead=st.booleans())
    def ask_hold(self, model: str, ahead: bool) -> None:
        self.world.ask_hold(model, ahead=ahead)

    @precondition(lambda self: self.world.open or self.world.granted or self.world.finished)
    @rule(data=st.data(), left=st.booleans())
    def end(self, data: st.DataObject, left: bool) -> None:
        turns = sorted({*self.world.open, *self.world.granted, *self.world.finished})
        self.world.end(data.draw(st.sampled_from(turns)), left=left)

    @precondition(lambda self: self.world.loading)
    @rule(data=st.data(), works=st.booleans())
    def load_ends(self, data: st.DataObject, works: bool) -> None:
        self.world.load_ends(data.draw(st.sampled_from(sorted(self.world.loading))), works=works)

    @precondition(lambda self: self.world.serving)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        self.world.dies(data.draw(st.sampled_from(sorted(self.world.serving))))

    @precondition(lambda self: self.world.stopping)
    @rule(data=st.data())
    def is_gone(self, data: st.DataObject) -> None:
        self.world.is_gone(data.draw(st.sampled_from(sorted(self.world.stopping))))

    @rule(model=MODEL, pinned=st.booleans())
    def pin(self, model: str, pinned: bool) -> None:
        self.world.pin(model, pinned=pinned)

    @rule(model=MODEL)
    def unload(self, model: str) -> None:
        self.world.unload(model)

    @rule(model=MODEL, action=st.sampled_from(v.BrakeAction))
    def brake(self, model: str, action: v.BrakeAction) -> None:
        self.world.brake(model, action)

    @rule(seconds=st.sampled_from(PAUSES))
    def passes(self, seconds: float) -> None:
        self.world.passes(seconds)

    @precondition(lambda self: len(self.world.finished) > 3)
    @rule()
    def close(self) -> None:
        self.world.close()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


AnySequence.TestCase.settings = settings(
    max_examples=200, stateful_step_count=STEPS, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnySequence = AnySequence.TestCase


def step(world: World, dice: random.Random) -> None:
    """One random thing happens; asking and answering are more frequent than the rest."""
    model = dice.choice(MODELS)

    def one_of(children: set[int], act: Callable[[int], None]) -> None:
        if children:
            act(dice.choice(sorted(children)))

    happening = dice.choices(range(11), weights=(8, 1, 6, 5, 4, 1, 1, 1, 1, 3, 0.05))[0]
    turns = {*world.open, *world.granted} or world.finished
    match happening:
        case 0:
            world.ask(model, by_user=dice.random() < 0.1)
        case 1:
            world.ask_hold(model, ahead=dice.random() < 0.5)
        case 2:
            one_of(turns, lambda turn: world.end(turn, left=dice.random() < 0.3))
        case 3:
            one_of(world.loading, lambda child: world.load_ends(child, works=dice.random() < 0.8))
        case 4:
            one_of(world.stopping, world.is_gone)
        case 5:
            one_of(world.serving, world.dies)
        case 6:
            world.unload(model)
        case 7:
            world.pin(model, pinned=dice.random() < 0.5)
        case 8:
            world.brake(model, dice.choice(list(v.BrakeAction)))
        case 9:
            world.passes(dice.choice(PAUSES[:4]))
        case 10:
            world.close()


def test_ten_thousand_random_sequences() -> None:
    for seed in range(SEQUENCES):
        dice = random.Random(seed)
        chosen = policy(dice.randint(1, 2), evict=dice.random() < 0.5, machine_slot=dice.random() < 0.7)
        world = World(chosen, dice.randint(1, 3))
        try:
            for _ in range(STEPS):
                step(world, dice)
                world.check()
            world.settle()
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}: {error}") from error
