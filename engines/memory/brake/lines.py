"""The brake's log lines. Their words are reserved: tests, support and ``grep`` read them."""

from __future__ import annotations

from engines.memory.brake.mlx_law import excess
from engines.memory.brake.values import Decision, MlxSample, Sample

MIB = 1024 * 1024


def log_line(decision: Decision, sample: Sample, *, released: int | None = None) -> str:
    """The one line of a step that was applied: INFO, an unload WARNING.

    ``released``: the footprint in bytes that a release left. ``window=A->B`` are tokens; an unload's B is 0.
    """
    return f"{_head(decision, sample, decision.action.value)} {_memory(sample, released)}"


def respawn_failed_line(decision: Decision, sample: Sample, error: BaseException) -> str:
    """The WARNING of a respawn that failed; the model loads again at the next request."""
    head = _head(decision, sample, "respawn-failed")
    return f"{head} {_memory(sample, None)} error={type(error).__name__}"


def _head(decision: Decision, sample: Sample, action: str) -> str:
    window = f"{_tokens(decision.before)}->{_tokens(decision.after)}"
    return f"Memory brake: point={sample.point.value} level={decision.level.value} action={action} window={window}"


def _memory(sample: Sample, released: int | None) -> str:
    if not isinstance(sample, MlxSample):
        return f"footprint_mib={_mib(sample.footprint)}"
    after = "" if released is None else f"->{_mib(excess(sample, released))}"
    return f"excess_mib={_mib(excess(sample, sample.footprint))}{after}"


def _tokens(window: int | None) -> str:
    return "unknown" if window is None else str(window)


def _mib(size: int | None) -> str:
    return "unknown" if size is None else str(round(size / MIB))
