"""The memory brake: pure functions from a sample and a state to a decision. It reads nothing and does nothing.

``llama_step`` and ``mlx_step`` are the two laws, ``turn_ended`` counts turns and ``log_line`` has the words. Levels
and the evidence of paging come from ``engines.memory.pressure``; what outlives a child is in
``engines.memory.remembered``.
"""

from __future__ import annotations

from engines.memory.brake.lines import log_line, respawn_failed_line
from engines.memory.brake.llama_law import llama_step, spill_evidence
from engines.memory.brake.mlx_law import mlx_released, mlx_step
from engines.memory.brake.terms import IDLE_SECONDS, QUIET_SECONDS, idle_due, turn_ended
from engines.memory.brake.values import (
    REMEMBERED_SECONDS,
    Action,
    BrakeNotice,
    BrakeState,
    Decision,
    Episode,
    LlamaSample,
    MlxSample,
    Point,
    Sample,
    WindowMemory,
)
from engines.memory.pressure.levels import Level

__all__ = [
    "IDLE_SECONDS",
    "QUIET_SECONDS",
    "REMEMBERED_SECONDS",
    "Action",
    "BrakeNotice",
    "BrakeState",
    "Decision",
    "Episode",
    "Level",
    "LlamaSample",
    "MlxSample",
    "Point",
    "Sample",
    "WindowMemory",
    "idle_due",
    "llama_step",
    "log_line",
    "mlx_released",
    "mlx_step",
    "respawn_failed_line",
    "spill_evidence",
    "turn_ended",
]
