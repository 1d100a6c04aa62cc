"""Terms that both laws share, and the words of the log."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from engines.memory.brake import (
    Action,
    BrakeState,
    Decision,
    Level,
    LlamaSample,
    MlxSample,
    Point,
    idle_due,
    llama_step,
    log_line,
    mlx_released,
    mlx_step,
    respawn_failed_line,
    turn_ended,
)
from engines.memory.brake.terms import shrunk

MIB = 1 << 20
GIB = 1 << 30
LLAMA = LlamaSample(
    now=0.0,
    point=Point.TURN_END,
    level=Level.CRITICAL,
    allocated=40960,
    planned=40960,
    footprint=5123 * MIB,
    kv_bytes=4 * GIB,
    ram_bytes=16 * GIB,
)
MLX = MlxSample(
    now=0.0,
    point=Point.IDLE,
    level=Level.WARNING,
    allocated=32768,
    planned=32768,
    footprint=4000 * MIB,
    base=3000 * MIB,
)


@pytest.mark.parametrize(
    ("base", "level", "cap"),
    [
        (40960, Level.WARNING, 30720),
        (40960, Level.CRITICAL, 20480),
        (10000, Level.WARNING, 7424),
        (5376, Level.WARNING, 4096),
        (8192, Level.CRITICAL, 4096),
        (5120, Level.CRITICAL, 4096),
        (4097, Level.WARNING, 4096),
        (4096, Level.CRITICAL, None),
        (2048, Level.CRITICAL, None),
    ],
)
def test_a_shrink_keeps_three_quarters_or_a_half_on_the_grid_and_above_the_floor(
    base: int, level: Level, cap: int | None
) -> None:
    assert shrunk(base, level) == cap


@pytest.mark.parametrize(
    ("last_sample", "last_turn_end", "due"),
    [(None, None, True), (945.0, None, True), (945.1, None, False), (900.0, 950.0, False), (940.0, 940.0, True)],
)
def test_an_idle_sample_keeps_55_seconds_from_samples_and_turn_ends(
    last_sample: float | None, last_turn_end: float | None, due: bool
) -> None:
    assert idle_due(1000.0, last_sample, last_turn_end) is due


def test_periods_are_values_so_that_a_test_runs_in_seconds() -> None:
    assert idle_due(1.0, 0.5, None, quiet=0.5)


def test_a_turn_end_without_a_sample_counts_like_one_with_a_sample() -> None:
    pressed = llama_step(BrakeState(), LLAMA).state
    assert pressed.episode is not None
    assert not pressed.episode.turn_since_shrink
    again = turn_ended(pressed).episode
    assert again is not None
    assert again.turn_since_shrink
    assert turn_ended(BrakeState()) == BrakeState()


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        BrakeState().calm = 1  # type: ignore[misc]


# --- the log ----------------------------------------------------------------------------------------------------------


def test_the_line_of_a_respawn() -> None:
    assert log_line(llama_step(BrakeState(), LLAMA), LLAMA) == (
        "Memory brake: point=turn_end level=critical action=shrink+respawn window=40960->20480 footprint_mib=5123"
    )


def test_the_line_of_a_respawn_that_failed_names_the_error_and_nothing_of_its_text() -> None:
    assert respawn_failed_line(llama_step(BrakeState(), LLAMA), LLAMA, TimeoutError("secret")) == (
        "Memory brake: point=turn_end level=critical action=respawn-failed window=40960->20480 footprint_mib=5123 "
        "error=TimeoutError"
    )


def test_the_line_of_a_release_has_the_excess_before_and_after() -> None:
    decision = mlx_step(BrakeState(), MLX)
    assert decision.action is Action.RELEASE
    assert log_line(decision, MLX, released=3330 * MIB) == (
        "Memory brake: point=idle level=warning action=release window=32768->32768 excess_mib=1000->330"
    )
    assert mlx_released(decision, MLX, 3330 * MIB).action is Action.NONE


def test_the_line_of_a_shrink_lifted_by_evidence_has_the_lifted_level() -> None:
    sample = replace(MLX, point=Point.TURN_END, level=Level.CALM, evidence=True, footprint=3010 * MIB)
    decision = mlx_step(turn_ended(BrakeState(), 30000), sample)
    assert log_line(decision, sample) == (
        "Memory brake: point=turn_end level=warning action=shrink window=32768->24576 excess_mib=10"
    )


def test_the_line_of_an_unload_ends_with_no_window() -> None:
    sample = replace(LLAMA, point=Point.IDLE, allocated=4096, footprint=None)
    armed = llama_step(BrakeState(), sample).state
    assert log_line(llama_step(armed, sample), sample) == (
        "Memory brake: point=idle level=critical action=unload window=4096->0 footprint_mib=unknown"
    )


def test_the_line_of_a_growth_without_a_planned_window() -> None:
    decision = Decision(BrakeState(), BrakeState(), Level.CALM, Action.GROW, None, 8192, None)
    assert "action=grow window=8192->unknown excess_mib=unknown" in log_line(decision, replace(MLX, base=None))
