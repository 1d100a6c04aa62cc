"""What the host shows of itself: one value, read by the tray, the API and the log alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ChildState(StrEnum):
    """Where a child is in its life."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine that runs models here, and the sentence why."""

    name: str
    reason: str
    proposed: str | None = None
    """The engine to use instead, because this one will likely not run a model."""


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """Context window in tokens; None is unknown."""

    trained: int | None
    planned: int | None
    allocated: int | None
    working: int | None
    bound_by: str
    """``model``, ``memory``, ``free memory``, ``brake`` or ``user``."""
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """The child's anonymous memory right after its load, in bytes; None is unknown."""

    predicted: int | None
    measured: int | None
    bill: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrakeStatus:
    """The memory brake of one child; ``cap`` in tokens."""

    level: str = "calm"
    cap: int | None = None
    episode: int = 0


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """One running server."""

    model: str
    """The model's id."""
    pid: int | None
    port: int | None
    state: ChildState
    slots: int
    busy: int
    progress: float | None
    """0..1 while loading, where the server tells."""
    window: WindowStatus
    memory: MemoryStatus
    brake: BrakeStatus = BrakeStatus()
    load_seconds: float | None = None
    """From spawn to ready."""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class WaitingStatus:
    """One turn that waits, and for how long (seconds)."""

    turn: int
    model: str
    seconds: float
    reason: str
    """``loading``, ``queued`` (behind others of its model, or until an answer of another ends) or ``switching``."""
    by_user: bool = False
    """The user chose the model: a load without a question."""


@dataclass(frozen=True, slots=True)
class NoticeStatus:
    """One sentence the user was told. ``at`` is Unix time in seconds."""

    kind: str
    at: float
    text: str
    numbers: Mapping[str, int | float | str]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that the tray and ``/api/status`` show."""

    engine: EngineStatus
    children: tuple[ChildStatus, ...]
    waiting: tuple[WaitingStatus, ...]
    notices: tuple[NoticeStatus, ...]
    """Newest last."""
    given_up: tuple[str, ...] = ()
    """Models that crashed too often and are not loaded by themselves until the user asks."""
