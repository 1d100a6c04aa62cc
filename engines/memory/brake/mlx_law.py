"""The law for an MLX child: its memory grows with the conversation, and it can give some back while it runs."""

from __future__ import annotations

from dataclasses import replace

from engines.memory.brake import terms
from engines.memory.brake.values import Action, BrakeNotice, BrakeState, Decision, MlxSample, Point
from engines.memory.pressure.levels import Level

RELEASE_BYTES = 256 * 1024 * 1024
"""A release has to give back at least this much."""


def mlx_step(state: BrakeState, sample: MlxSample) -> Decision:
    """What one sample of an MLX child comes to.

    After ``Action.RELEASE``: when the release succeeded ask ``mlx_released`` for the rest of this sample; when it did
    not, keep ``otherwise`` and leave it at that, the next sample tries again.
    """
    state = terms.observed(state, sample)
    level = sample.level
    if level is Level.CALM and sample.point is Point.TURN_END and sample.evidence:
        level = Level.WARNING
    if level is Level.CALM:
        return terms.calm(state, sample, lifts=True)
    state = terms.pressed(state, level)
    if state.pressure.seeded:
        return terms.nothing(state, level)
    if sample.point is Point.IDLE and level is Level.CRITICAL:
        if state.pressure.armed:
            return terms.unload(state, level, sample.allocated)
        state = terms.armed(state)
    spare = _spare(state, sample)
    if spare is not None and spare >= RELEASE_BYTES:
        return Decision(state, state, level, Action.RELEASE, state.cap, sample.allocated, sample.allocated)
    return _shrink(state, sample, level, nothing_to_release=spare is not None)


def mlx_released(decision: Decision, sample: MlxSample, footprint: int | None) -> Decision:
    """The rest of a sample whose release succeeded and left ``footprint`` bytes.

    A release alone says nothing, so there is no notice unless the window shrinks as well.
    """
    state, level = decision.state, decision.level
    if footprint is not None and sample.base is not None:
        state = replace(state, left=max(0, footprint - sample.base))
    return _shrink(state, sample, level, nothing_to_release=False)


def excess(sample: MlxSample, footprint: int | None) -> int | None:
    """Bytes of ``footprint`` above the child's base."""
    return None if footprint is None or sample.base is None else footprint - sample.base


def _spare(state: BrakeState, sample: MlxSample) -> int | None:
    """Bytes that a release would give back, as far as the last one tells."""
    above = excess(sample, sample.footprint)
    return None if above is None else above - state.left


def _shrink(state: BrakeState, sample: MlxSample, level: Level, *, nothing_to_release: bool) -> Decision:
    """One useful shrink at a turn point, or nothing; with nothing to release and none left the pressure is not ours."""
    cap = _useful(state, sample, level)
    if cap is None or sample.point is Point.IDLE or not terms.may_shrink(state):
        return terms.nothing(state, level, external=cap is None and nothing_to_release)
    assert sample.allocated is not None, "a useful shrink is of a known window"
    decided = terms.shrink_decided(state, sample.allocated, sample.now)
    applied = terms.cap_applied(decided, cap, sample.now)
    return Decision(applied, state, level, Action.SHRINK, cap, sample.allocated, cap, BrakeNotice.ACTED)


def _useful(state: BrakeState, sample: MlxSample, level: Level) -> int | None:
    """The cap that would be too small for the last turn's largest request, while the episode has a shrink left."""
    spent = state.pressure.shrinks >= terms.SHRINKS
    if spent or sample.pinned or sample.allocated is None or state.request is None:
        return None
    base = sample.allocated if state.cap is None else min(sample.allocated, state.cap)
    cap = terms.shrunk(base, level)
    return cap if cap is not None and cap < state.request else None
