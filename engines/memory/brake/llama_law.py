"""The law for a llama-server: nothing frees without a restart, and a smaller window always frees."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from engines.memory.brake import terms
from engines.memory.brake.values import Action, BrakeNotice, BrakeState, Decision, LlamaSample, Point
from engines.memory.grid import padded
from engines.memory.pressure.levels import Level

OUR_SHARE = Fraction(1, 10)
"""A window whose KV cache is a smaller part of RAM than this is not what makes memory short."""
SPILL_BYTES = 256 * 1024 * 1024
"""VRAM that Windows serves from RAM, above the child's baseline: less is never evidence (start value)."""


def spill_evidence(spill: int) -> bool:
    """CUDA on Windows: whether a spill, in bytes above the child's baseline, is evidence by itself."""
    return spill >= SPILL_BYTES


def llama_step(state: BrakeState, sample: LlamaSample, *, asks_share: bool = True) -> Decision:
    """What one sample of a llama-server comes to.

    ``asks_share`` is False on CUDA, where the level is the spill of VRAM and RAM drives nothing.
    """
    state = terms.observed(state, sample)
    level = sample.level
    if level is Level.CALM:
        return terms.calm(state, sample, lifts=False)
    state = terms.pressed(state, level)
    if state.pressure.seeded:
        return terms.nothing(state, level)
    share = _share(sample) if asks_share else OUR_SHARE
    external = share is not None and share < OUR_SHARE
    resizable = not sample.pinned and share is not None and not external
    smaller = _smaller(state, sample) if resizable else None
    if sample.point is Point.IDLE:
        return _idle(state, sample, smaller, external=external)
    may = terms.may_shrink(state)
    if level is Level.CRITICAL:
        if smaller is not None and may:
            return _shrink(state, state, sample, smaller)
        if state.pending is not None:
            return _respawn(state, state, sample, state.pending)
    elif sample.point is Point.TURN_END and sample.evidence is not False and smaller is not None and may:
        return terms.nothing(replace(_decided(state, sample), pending=smaller), level)
    return terms.nothing(state, level, external=external)


def _idle(state: BrakeState, sample: LlamaSample, smaller: int | None, *, external: bool) -> Decision:
    armed = terms.armed(state)
    if state.pending is not None:
        return _respawn(armed, state, sample, state.pending)
    if sample.level is not Level.CRITICAL:
        return terms.nothing(state, sample.level, external=external)
    if smaller is not None and state.pressure.shrinks == 0:
        return _shrink(armed, state, sample, smaller)
    if state.pressure.armed:
        return terms.unload(state, sample.level, sample.allocated)
    return terms.nothing(armed, sample.level, external=external)


def _share(sample: LlamaSample) -> Fraction | None:
    """The part of RAM that the window's KV cache is; None where it cannot be known."""
    if sample.kv_bytes is None or not sample.ram_bytes:
        return None
    return Fraction(sample.kv_bytes, sample.ram_bytes)


def _smaller(state: BrakeState, sample: LlamaSample) -> int | None:
    """The cap of another shrink, on top of a pending one; None where there is none."""
    if sample.allocated is None:
        return None
    known = (padded(sample.allocated), state.cap, state.pending)
    return terms.shrunk(min(window for window in known if window is not None), sample.level)


def _decided(state: BrakeState, sample: LlamaSample) -> BrakeState:
    assert sample.allocated is not None, "a shrink is of a known window"
    return terms.shrink_decided(state, padded(sample.allocated), sample.now)


def _shrink(state: BrakeState, otherwise: BrakeState, sample: LlamaSample, cap: int) -> Decision:
    return _respawn(_decided(state, sample), otherwise, sample, cap)


def _respawn(state: BrakeState, otherwise: BrakeState, sample: LlamaSample, cap: int) -> Decision:
    """The window in force gives way to ``cap``; a shrink that waited for this is said now."""
    applied = terms.cap_applied(state, cap, sample.now)
    before = sample.allocated
    return Decision(applied, otherwise, sample.level, Action.SHRINK_RESPAWN, cap, before, cap, BrakeNotice.ACTED)
