"""The terms that both laws share: how far a window shrinks and grows, and how an episode opens, goes on and ends."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from engines.memory.brake.values import Action, BrakeNotice, BrakeState, Decision, Point, Sample
from engines.memory.grid import FLOOR, GRID
from engines.memory.pressure.levels import Level

SHRINK = {Level.WARNING: Fraction(3, 4), Level.CRITICAL: Fraction(1, 2)}
"""The part of the window that a shrink keeps (start values)."""
SHRINKS = 2
"""Shrinks in one episode, both levels together; the second only after a turn since the first (start value)."""
EPISODE_CALM = 2
"""This many calm samples in a row end an episode."""
GROWTH_CALM = 5
"""After this many calm samples in a row since the last step a cap grows (start value)."""
GROWTH = Fraction(5, 4)
"""How much a cap grows at a time (start value)."""
GROWTH_BOUND = Fraction(9, 10)
"""A cap never grows beyond this part of the window that hurt while that is remembered (start value)."""
IDLE_SECONDS = 60.0
"""How often an idle child is looked at."""
QUIET_SECONDS = 55.0
"""An idle sample is left out when the last sample or turn end is not this long ago: a monitor's tick may be early."""


def on_grid(tokens: Fraction | int) -> int:
    """The largest multiple of 256 that is not above ``tokens``."""
    return int(tokens) // GRID * GRID


def shrunk(base: int, level: Level) -> int | None:
    """The cap that a shrink of ``base`` tokens gives; None at or below the floor."""
    if base <= FLOOR:
        return None
    return max(FLOOR, on_grid(base * SHRINK[level]))


def idle_due(now: float, last_sample: float | None, last_turn_end: float | None, quiet: float = QUIET_SECONDS) -> bool:
    """Whether an idle sample is to be taken at ``now``."""
    return all(then is None or now - then >= quiet for then in (last_sample, last_turn_end))


def turn_ended(state: BrakeState, measured: int | None = None, estimated: int | None = None) -> BrakeState:
    """A turn is over, however it ended: it disarms the unload and lets a second shrink through.

    ``measured`` tokens of its largest request (MLX), else ``estimated`` for a call that was abandoned or failed; with
    neither the last known size stays. A ``turn_end`` sample implies it; call it before one, or where none is taken.
    """
    request = measured if measured is not None else estimated if estimated is not None else state.request
    episode = state.episode and replace(state.episode, turn_since_shrink=True, armed=False)
    return replace(state, request=request, episode=episode)


def observed(state: BrakeState, sample: Sample) -> BrakeState:
    """The state as a sample finds it: what is too old is forgotten, a turn that ends here is counted."""
    state = replace(state, memory=state.memory.at(sample.now))
    return turn_ended(state) if sample.point is Point.TURN_END else state


def pressed(state: BrakeState, level: Level) -> BrakeState:
    """The state after a sample that is not calm: the first one opens the episode."""
    critical = level is Level.CRITICAL
    worst = level if critical else state.pressure.level
    episode = replace(state.pressure, level=worst, armed=state.pressure.armed and critical)
    return replace(state, calm=0, episode=episode)


def armed(state: BrakeState, *, armed: bool = True) -> BrakeState:
    """The state whose next critical idle sample unloads, or does not."""
    return replace(state, episode=replace(state.pressure, armed=armed))


def may_shrink(state: BrakeState) -> bool:
    """Whether the episode has a shrink left now."""
    shrinks = state.pressure.shrinks
    return shrinks == 0 or (shrinks < SHRINKS and state.pressure.turn_since_shrink)


def shrink_decided(state: BrakeState, hurt: int, now: float) -> BrakeState:
    """Count a shrink that was decided under a window of ``hurt`` tokens."""
    episode = replace(state.pressure, shrinks=state.pressure.shrinks + 1, turn_since_shrink=False)
    return replace(state, memory=state.memory.with_hurt(hurt, now), episode=episode)


def cap_applied(state: BrakeState, cap: int, now: float) -> BrakeState:
    """The state once the child has ``cap``; this is what ``acted`` tells."""
    memory = state.memory.with_cap(cap, now)
    return replace(state, memory=memory, pending=None, episode=replace(state.pressure, acted=True))


def nothing(state: BrakeState, level: Level, *, external: bool = False) -> Decision:
    """No step. ``external``: the pressure is not ours, said once in an episode and never after ``acted``."""
    episode = state.pressure
    if not external or episode.acted or episode.external or episode.seeded:
        return Decision(state, state, level, cap=state.cap)
    told = replace(state, episode=replace(episode, external=True))
    return Decision(told, told, level, cap=state.cap, notice=BrakeNotice.EXTERNAL)


def unload(state: BrakeState, level: Level, before: int | None) -> Decision:
    """The child is to go."""
    return Decision(armed(state, armed=False), state, level, Action.UNLOAD, state.cap, before, 0)


def calm(state: BrakeState, sample: Sample, *, lifts: bool) -> Decision:
    """What a calm sample does: end the episode, and with time let the cap grow.

    ``lifts``: the running child is held to the cap by a setting (MLX), so one that was forgotten has to be lifted.
    """
    state = replace(state, calm=state.calm + 1, episode=state.episode and replace(state.episode, armed=False))
    if state.calm >= EPISODE_CALM:
        state = replace(state, episode=None, pending=None)
    if state.calm < GROWTH_CALM or sample.pinned:
        return nothing(state, Level.CALM)
    cap, hurt = state.cap, state.memory.hurt
    if cap is None:
        held = sample.allocated is not None and (sample.planned is None or sample.allocated < sample.planned)
        if not (lifts and held and hurt is None):
            return nothing(state, Level.CALM)
        return _grow(state, None, sample.allocated, sample)
    larger = on_grid(cap * GROWTH)
    if hurt is not None:
        larger = min(larger, on_grid(hurt * GROWTH_BOUND))
    if sample.planned is not None and larger >= sample.planned:
        return _grow(state, None, cap, sample)
    return _grow(state, larger, cap, sample) if larger > cap else nothing(state, Level.CALM)


def _grow(state: BrakeState, cap: int | None, before: int | None, sample: Sample) -> Decision:
    grown = replace(state, memory=state.memory.with_cap(cap, sample.now), calm=0)
    after = sample.planned if cap is None else cap
    return Decision(grown, state, Level.CALM, Action.GROW, cap, before, after)
