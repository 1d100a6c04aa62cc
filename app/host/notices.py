"""Every sentence that a user is told unasked, as values that own their words and numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.host.status import NoticeStatus

KEPT = 50
"""Recent notices kept for the tray and the API."""
TAIL_LINES = 10
"""Of what a dead server printed: the error and what led to it."""


class Notice(Protocol):
    """One thing a user should know: what happened, the numbers, what to do."""

    @property
    def kind(self) -> str:
        """Stable word for programs."""

    @property
    def model(self) -> str | None:
        """The model's id, where it is about one."""

    @property
    def sentence(self) -> str:
        """For a person."""

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The same as values."""


@dataclass(frozen=True, slots=True)
class EngineNotice:
    """Another engine than the machine deserves is running."""

    engine: str
    reason: str
    kind = "engine"
    model = None

    @property
    def sentence(self) -> str:
        """Says which and why."""
        return f"Models run on the {self.engine.upper()} engine: {self.reason}."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The engine's name."""
        return {"engine": self.engine}


@dataclass(frozen=True, slots=True)
class EngineDoubted:
    """The graphics card will likely not run a model; the pre-flight owns the sentence."""

    verdict: str
    code: str
    proposed: str
    kind = "engine"
    model = None

    @property
    def sentence(self) -> str:
        """The verdict, and where to choose the other engine."""
        return f'{self.verdict} Choose it in the tray, or set engine = "{self.proposed}".'

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The code of the error that a load would likely end with, and the engine proposed."""
        return {"code": self.code, "proposed": self.proposed}


@dataclass(frozen=True, slots=True)
class WorkerCrashed:
    """A server ended unasked."""

    model: str
    name: str
    exit_code: int | None
    cause: str | None = None
    """Code of the class that its last words are of."""
    tail: str = ""
    """The last lines that it printed."""
    kind = "worker_crashed"

    @property
    def sentence(self) -> str:
        """Says how it ended and that the next request loads it again."""
        known = (self.cause, None if self.exit_code is None else _exit(self.exit_code))
        how = ", ".join(text for text in known if text is not None)
        ended = f"The server of {self.name} ended unexpectedly"
        return f"{ended}{f' ({how})' if how else ''}. The next request loads it again."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The exit code as the system gave it, the cause, and the server's last words."""
        known = {"exit_code": self.exit_code, "cause": self.cause, "tail": _last(self.tail)}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class LoadFailedNotice:
    """A model did not load."""

    model: str
    reason: str
    code: str
    tail: str = ""
    """The last lines that the server printed."""
    kind = "load_failed"

    @property
    def sentence(self) -> str:
        """The engine's own sentence, which says what to do."""
        return self.reason

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The error's code, and the server's last words."""
        tail = _last(self.tail)
        return {"code": self.code, **({} if tail is None else {"tail": tail})}


@dataclass(frozen=True, slots=True)
class KeepsCrashingNotice:
    """A model is not loaded by itself any more; the reason is that of its last crash."""

    model: str
    name: str
    crashes: int
    reason: str
    kind = "model_keeps_crashing"

    @property
    def sentence(self) -> str:
        """Says how often, why the last time, and how to try again."""
        return (
            f"{self.name} crashed {self.crashes} times within 10 minutes and is not loaded by itself any more. "
            f"To try again choose it in the tray, or POST /api/models/{self.model}/load. Last time: {self.reason}"
        )

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """How often."""
        return {"crashes": self.crashes}


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A model had to be loaded again; ``reason`` is ``idle`` or ``memory``."""

    model: str
    name: str
    reason: str
    seconds: float
    window: int | None
    kind = "reload"

    @property
    def sentence(self) -> str:
        """Says why it was gone and how long the load took."""
        why = "was unloaded because nobody used it" if self.reason == "idle" else "was unloaded to free memory"
        window = f" Its window is {self.window:,} tokens." if self.window is not None else ""
        return f"{self.name} {why} and was loaded again in {self.seconds:.1f} s.{window}"

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """Reason, seconds and tokens."""
        window = {} if self.window is None else {"window": self.window}
        return {"reason": self.reason, "load_seconds": round(self.seconds, 3), **window}


@dataclass(frozen=True, slots=True)
class WindowReduced:
    """The brake made a window smaller; windows in tokens."""

    model: str
    name: str
    before: int | None
    after: int | None
    trained: int | None
    kind = "acted"

    @property
    def sentence(self) -> str:
        """Says from what to what and why, and when it grows again."""
        before = f" from {self.before:,}" if self.before is not None else ""
        trained = f" of {self.trained:,} that it was trained for" if self.trained is not None else ""
        return (
            f"The system is short of memory: the window of {self.name} was reduced{before} to "
            f"{self.after or 0:,} tokens{trained}. It grows again when memory has been calm for a while; closing "
            "other programs helps."
        )

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """Windows in tokens."""
        known = {"before": self.before, "after": self.after, "trained": self.trained}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PressureElsewhere:
    """Memory is short, but not because of this child."""

    model: str
    footprint: int | None
    kind = "external"

    @property
    def sentence(self) -> str:
        """Says that it is not us, and what to do."""
        held = f" The model holds {self.footprint / 2**20:,.0f} MiB of it." if self.footprint is not None else ""
        return f"The system is short of memory because of other programs.{held} Close what you do not need."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """Bytes that the model's server holds."""
        return {} if self.footprint is None else {"footprint": self.footprint}


@dataclass(frozen=True, slots=True)
class WindowBound:
    """Memory holds less than the model was trained for; windows in tokens, the rest in bytes."""

    model: str
    name: str
    window: int
    trained: int
    reason: str
    predicted: int | None
    kind = "bound"

    @property
    def sentence(self) -> str:
        """Says both windows and the sum behind them."""
        return f"Memory holds a window of {self.window:,} of the {self.trained:,} tokens of {self.name}: {self.reason}."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """Windows in tokens, memory in bytes."""
        predicted = {} if self.predicted is None else {"predicted": self.predicted}
        return {"window": self.window, "trained": self.trained, **predicted}


@dataclass(frozen=True, slots=True)
class SettingsRefused:
    """The settings were changed and have a mistake; what held before still holds."""

    mistake: str
    kind = "settings_refused"
    model = None

    @property
    def sentence(self) -> str:
        """The mistake with its place, and what holds meanwhile."""
        return f"{self.mistake} Until that is put right the former settings hold."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class OrphansReaped:
    """Servers that a former run left behind were stopped."""

    count: int
    kind = "orphans_reaped"
    model = None

    @property
    def sentence(self) -> str:
        """Says how many."""
        servers = "1 server" if self.count == 1 else f"{self.count} servers"
        return f"{servers} of a former run were still there and have been stopped."

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """How many."""
        return {"count": self.count}


class Notices:
    """The recent ones, newest last."""

    def __init__(self) -> None:
        self._kept: deque[NoticeStatus] = deque(maxlen=KEPT)

    def add(self, notice: Notice, at: float) -> NoticeStatus:
        """Keep a notice; ``at`` is Unix time."""
        status = NoticeStatus(notice.kind, at, notice.sentence, dict(notice.numbers), notice.model)
        self._kept.append(status)
        return status

    def recent(self) -> tuple[NoticeStatus, ...]:
        """All that are kept."""
        return tuple(self._kept)


def _last(tail: str) -> str | None:
    """The end of a tail, as much as an event may carry; None where there is none."""
    return "\n".join(tail.splitlines()[-TAIL_LINES:]) or None


def _exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
