"""A turn that is not served, as the one error that leaves the host."""

from __future__ import annotations

from app.host import vocabulary as v
from engines import EngineError


class Unserved(Exception):
    """``code`` for programs, ``status`` for HTTP, ``sentence`` for a person; ``tail`` is what the server printed."""

    def __init__(self, code: str, status: int, sentence: str, tail: str = "") -> None:
        super().__init__(sentence)
        self.code, self.status, self.sentence, self.tail = code, status, sentence, tail


def unserved(refusal: v.Refusal, model: str) -> Unserved:
    """The error for a refusal of the schedule: each maps to exactly one."""
    match refusal:
        case v.LoadFailure(error) | v.Crashed(error):
            return _from_engine(error, model)
        case v.KeepsCrashing(_, crashes, error):
            last = _from_engine(error, model)
            return Unserved(
                "model_keeps_crashing",
                503,
                f"{model} crashed {crashes} times within 10 minutes and is not loaded again by itself. "
                f"To try again choose it in the tray, or POST /api/models/ID/load. Last time: {last.sentence}",
                last.tail,
            )
        case v.PinnedInTheWay(pinned):
            return Unserved(
                "model_pinned",
                409,
                f"{model} cannot be loaded: {pinned} is pinned and there is no room beside it. "
                f"Unpin {pinned}, or set evict_pinned = true.",
            )
        case v.WaitedTooLong(seconds):
            return Unserved(
                "waited_too_long",
                503,
                f"{model} was not free within {seconds:.0f} s. Ask again later, or raise max_wait_seconds.",
            )
        case v.LoadCancelled():
            return Unserved("load_cancelled", 503, f"The load of {model} was cancelled. Ask again to load it.")
        case v.ShuttingDown():
            return Unserved("shutting_down", 503, "Plimsoll is closing. Start it again and repeat the request.")
        case v.NoChild():
            return Unserved("not_loaded", 409, f"{model} is not loaded.")


def _from_engine(error: Exception, model: str) -> Unserved:
    if isinstance(error, EngineError):
        return Unserved(error.code, error.status, error.sentence, error.tail)
    return Unserved(
        "internal_error",
        500,
        f"{model} could not be served because of a fault in Plimsoll ({type(error).__name__}). The log says more.",
    )
