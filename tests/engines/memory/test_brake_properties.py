"""Random pressure on random children: what no sequence of samples may do. The bounds are kept here a second time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.memory.brake import (
    Action,
    BrakeNotice,
    BrakeState,
    Decision,
    Level,
    LlamaSample,
    MlxSample,
    Point,
    Sample,
    WindowMemory,
    llama_step,
    mlx_released,
    mlx_step,
    turn_ended,
)
from engines.memory.grid import FLOOR, GRID
from engines.memory.remembered import BrakeMemory

GIB = 1 << 30
MIB = 1 << 20
BASE = 3 * GIB
HALF_HOUR = 1800.0
WINDOWS = st.sampled_from([2048, 4096, 4352, 8000, 23417, 32768, 40960, 131072])


@dataclass(frozen=True)
class Look:
    """One random sample; ``turn``: tokens of a turn before it that had none; ``applied``: what was decided works."""

    point: Point
    level: Level
    evidence: bool | None
    seconds: float
    turn: int | None
    held: int | None
    applied: bool
    dies: bool


LOOKS = st.builds(
    Look,
    st.sampled_from(Point),
    st.sampled_from([Level.CALM, Level.CALM, Level.WARNING, Level.CRITICAL]),
    st.sampled_from([True, False, None]),
    st.sampled_from([60.0, 60.0, 60.0, 300.0, 1800.0]),
    st.none() | st.integers(0, 140_000),
    st.none() | st.integers(0, 4000).map(lambda mib: mib * MIB),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False] * 9 + [True]),
)
# Pressure that lasts is what the brake is for: mostly runs of one level.
RUNS = st.lists(
    st.builds(lambda look, times: [look] * times, LOOKS, st.integers(1, 7)),
    max_size=12,
).map(lambda runs: [look for run in runs for look in run])


@dataclass
class Watch:
    """What was seen so far, counted without the brake's own counters."""

    calm_row: int = 0
    shrinks: int = 0
    turns: int = 0
    turn_of_shrink: int = -1
    notices: list[BrakeNotice] = field(default_factory=list)
    idle_row: int = 0
    """Idle samples in a row that armed the unload."""
    hurt: tuple[int, float] | None = None
    seeded: bool = False

    def turn(self) -> None:
        self.turns += 1
        self.idle_row = 0

    def check(self, before: BrakeState, sample: Sample, decision: Decision, *, applied: bool) -> None:
        """Judge one decision."""
        kept = decision.state if applied else decision.otherwise
        level, point, action = decision.level, sample.point, decision.action
        if point is Point.TURN_END:
            self.turn()
        if level is Level.CALM:
            assert action in (Action.NONE, Action.GROW)
            assert decision.notice is None
            self._calm()
        else:
            self.calm_row = 0
            assert action is not Action.GROW
        for window in (kept.cap, kept.pending):
            assert window is None or (window >= FLOOR and window % GRID == 0)
        assert kept.pending is None or kept.episode is not None
        json.dumps(asdict(kept))
        if self.seeded:
            assert (action, decision.notice) == (Action.NONE, None) or level is Level.CALM
        if sample.pinned:
            assert action in (Action.NONE, Action.UNLOAD, Action.RELEASE)
            assert decision.notice is not BrakeNotice.ACTED
        self._unload(sample, decision, applied=applied)
        self._shrink(before, sample, kept)
        if applied or action is Action.NONE:
            self._notice(decision)
        if action is Action.GROW and applied:
            self._growth(sample, decision)

    def _calm(self) -> None:
        self.calm_row += 1
        if self.calm_row == 2:
            self.shrinks, self.notices, self.seeded = 0, [], False

    def _unload(self, sample: Sample, decision: Decision, *, applied: bool) -> None:
        if decision.action is Action.UNLOAD:
            assert sample.point is Point.IDLE
            assert decision.level is Level.CRITICAL
            assert self.idle_row >= 1
            self.idle_row = 0 if applied else self.idle_row
        elif sample.point is Point.IDLE and (
            decision.level is Level.CRITICAL or (applied and decision.action is Action.SHRINK_RESPAWN)
        ):
            self.idle_row += 1
        elif decision.level is not Level.CRITICAL:
            self.idle_row = 0

    def _shrink(self, before: BrakeState, sample: Sample, kept: BrakeState) -> None:
        counted = kept.pressure.shrinks > before.pressure.shrinks
        if counted:
            assert sample.allocated is not None
            assert sample.allocated > FLOOR
            assert self.turn_of_shrink < self.turns or self.shrinks == 0
            self.shrinks += 1
            self.turn_of_shrink = self.turns
            self.hurt = (-(-sample.allocated // GRID) * GRID, sample.now)
            smaller = kept.pending if kept.pending is not None else kept.cap
            assert smaller is not None
            assert smaller < self.hurt[0]
        assert self.shrinks <= 2

    def _notice(self, decision: Decision) -> None:
        if decision.notice is BrakeNotice.EXTERNAL:
            assert not self.notices
        if decision.notice is BrakeNotice.ACTED:
            assert decision.action in (Action.SHRINK, Action.SHRINK_RESPAWN)
        if decision.notice is not None:
            self.notices.append(decision.notice)

    def _growth(self, sample: Sample, decision: Decision) -> None:
        assert self.calm_row >= 5
        grown = decision.after
        if self.hurt is not None and sample.now - self.hurt[1] < HALF_HOUR:
            assert grown is not None
            assert grown <= self.hurt[0] * 0.9
        if sample.planned is not None:
            assert grown is not None
            assert grown <= sample.planned


@settings(max_examples=150, deadline=None)
@given(window=WINDOWS, ram=st.sampled_from([2, 8, 16, 256]), pinned=st.booleans(), cuda=st.booleans(), looks=RUNS)
def test_no_pressure_makes_llama_break_its_bounds(
    window: int, ram: int, pinned: bool, cuda: bool, looks: list[Look]
) -> None:
    now, watch, memory, state = 0.0, Watch(), BrakeMemory(), BrakeState()
    allocated = window

    def load() -> tuple[BrakeState, Watch, int]:
        started = memory.start("m", now)
        fresh = Watch(hurt=watch.hurt, seeded=started.pressure.seeded, shrinks=started.pressure.shrinks)
        cap = window if started.cap is None or pinned else started.cap
        return started, fresh, min(window, cap)

    for look in looks:
        now += look.seconds
        if look.dies:
            state, watch, allocated = load()
            memory = memory.spawned("m", large=True)
        if look.turn is not None:
            state = turn_ended(state)
            watch.turn()
        sample = LlamaSample(
            now=now,
            point=look.point,
            level=look.level,
            evidence=look.evidence,
            allocated=allocated,
            planned=window,
            pinned=pinned,
            kv_bytes=allocated * 114_688,
            ram_bytes=ram * GIB,
        )
        decision = llama_step(state, sample, asks_share=not cuda)
        assert decision.action in (Action.NONE, Action.SHRINK_RESPAWN, Action.UNLOAD, Action.GROW)
        watch.check(state, sample, decision, applied=look.applied)
        state = decision.state if look.applied else decision.otherwise
        memory = memory.wrote("m", state)
        if look.applied and decision.action is Action.SHRINK_RESPAWN:
            assert decision.cap is not None
            assert decision.cap < allocated
            allocated = decision.cap
        if look.applied and decision.action is Action.UNLOAD:
            memory = memory.unloaded("m", state, now)
            assert memory.reloads("m", now)
            state, watch, allocated = load()
            memory = memory.spawned("m", large=True)
            assert state.cap == decision.cap


@settings(max_examples=150, deadline=None)
@given(window=st.none() | WINDOWS, pinned=st.booleans(), looks=RUNS)
def test_no_pressure_makes_mlx_break_its_bounds(window: int | None, pinned: bool, looks: list[Look]) -> None:
    now, watch, state, allocated = 0.0, Watch(), BrakeState(), window
    for look in looks:
        now += look.seconds
        if look.turn is not None:
            state = turn_ended(state, look.turn)
            watch.turn()
        sample = MlxSample(
            now=now,
            point=look.point,
            level=look.level,
            evidence=look.evidence,
            allocated=allocated,
            planned=window,
            pinned=pinned,
            footprint=None if look.held is None else BASE + look.held,
            base=BASE,
        )
        decision = mlx_step(state, sample)
        if decision.action is Action.RELEASE:
            assert look.held is not None
            assert decision.notice is None
            assert look.held - state.left >= 256 * MIB
            if look.applied:
                decision = mlx_released(decision, sample, BASE + look.held // 3)
                assert decision.action in (Action.NONE, Action.SHRINK)
                assert decision.notice is not BrakeNotice.EXTERNAL
                assert decision.state.left == look.held // 3
        assert decision.action is not Action.SHRINK_RESPAWN
        watch.check(state, sample, decision, applied=look.applied)
        if decision.action is Action.SHRINK:
            assert look.point is not Point.IDLE
            assert state.request is not None
            assert decision.cap is not None
            assert decision.cap < state.request
        state = decision.state if look.applied else decision.otherwise
        if look.applied and decision.action in (Action.SHRINK, Action.GROW):
            allocated = decision.after
        if look.applied and decision.action is Action.UNLOAD:
            state, watch, allocated = BrakeState(), Watch(), window


@settings(max_examples=80, deadline=None)
@given(
    cap=st.integers(16, 400).map(lambda cells: cells * GRID),
    hurt=st.none() | st.integers(4096, 131072),
    planned=WINDOWS,
    age=st.floats(0, HALF_HOUR - 1),
    mlx=st.booleans(),
)
def test_calm_alone_grows_step_by_step_and_never_beyond_what_hurt_nor_the_plan(
    cap: int, hurt: int | None, planned: int, age: float, mlx: bool
) -> None:
    now = HALF_HOUR
    state = BrakeState(WindowMemory(cap, now, hurt, None if hurt is None else now - age))
    grew_at = -5
    for look in range(120):
        sample = {"now": now, "point": Point.IDLE, "level": Level.CALM, "allocated": cap, "planned": planned}
        decision = mlx_step(state, MlxSample(**sample)) if mlx else llama_step(state, LlamaSample(**sample))  # type: ignore[arg-type]
        hurts, state = decision.otherwise.memory.hurt, decision.state
        if decision.action is Action.GROW:
            assert look - grew_at >= 5
            grew_at = look
            assert decision.after is not None
            assert decision.after <= planned
            assert hurts is None or decision.after <= hurts * 0.9
            if decision.cap is not None:
                assert decision.before is not None
                assert decision.before < decision.cap <= decision.before * 1.25
        now += 60
    assert state.memory.empty, "two hours of calm and everything is forgotten"


@settings(max_examples=30, deadline=None)
@given(looks=RUNS)
def test_the_laws_are_functions_the_same_state_and_sample_decide_the_same(looks: list[Look]) -> None:
    laws: list[Callable[[BrakeState, Look, float], Decision]] = [
        lambda state, look, now: llama_step(
            state, LlamaSample(now=now, point=look.point, level=look.level, allocated=40960, planned=40960)
        ),
        lambda state, look, now: mlx_step(
            state, MlxSample(now=now, point=look.point, level=look.level, allocated=40960, planned=40960)
        ),
    ]
    for law in laws:
        state = BrakeState()
        for step, look in enumerate(looks):
            decision = law(state, look, step * 60.0)
            assert decision == law(state, look, step * 60.0)
            state = decision.state
