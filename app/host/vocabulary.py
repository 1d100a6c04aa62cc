"""The words of the schedule: the events that go in, the effects that come out. Values only.

Every event carries ``now``, seconds of a clock that never runs backwards. Turns, holds and children have ids that
are never used twice. Who posts what: the endpoint asks for turns and leaves; the host reports what became of
its children; the monitor ticks and asks for holds; the brake posts what it decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    """Why a child is stopped. A stop that was asked for is never a crash."""

    SWITCH = "switch"
    IDLE = "idle"
    USER = "user"
    BRAKE = "brake"
    CLOSING = "closing"


class SpawnReason(StrEnum):
    """Why a child is started."""

    TURN = "turn"
    BRAKE = "brake"


class BrakeAction(StrEnum):
    """What the brake wants of a child."""

    RESPAWN = "respawn"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Traits:
    """What the schedule has to know of a model."""

    small: bool = False
    """An embedding or rerank worker that may stay beside a large model."""
    pinned: bool = False


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnAsked:
    """A request wants ``model``. ``by_user`` (a click, a load call) also forgives a model its crashes."""

    now: float
    turn: int
    model: str
    traits: Traits = Traits()
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class TurnLeft:
    """The client of a turn went away, waiting or granted. Idempotent."""

    now: float
    turn: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A granted turn is over, errors included. Idempotent."""

    now: float
    turn: int


@dataclass(frozen=True, slots=True)
class HoldAsked:
    """Somebody (a sample, a reset, a benchmark) wants all slots of one child; refused when there is none.

    ``ahead``: before the turns that wait already, for what must happen between two turns.
    """

    now: float
    hold: int
    model: str
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A hold is given back or no longer wanted. Idempotent."""

    now: float
    hold: int


@dataclass(frozen=True, slots=True)
class BrakeDecided:
    """The brake wants a child of ``model`` smaller (``cap`` tokens) or gone."""

    now: float
    model: str
    action: BrakeAction
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class ChildReady:
    """A spawned child serves."""

    now: float
    child: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class ChildDied:
    """A child that served ended unasked."""

    now: float
    child: int
    error: Exception


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A spawn did not become a child; nothing of it runs any more. ``crashed``: it counts against the model."""

    now: float
    child: int
    error: Exception
    crashed: bool = True


@dataclass(frozen=True, slots=True)
class MemoryFreed:
    """A child that was asked to stop is gone and its memory is back."""

    now: float
    child: int


@dataclass(frozen=True, slots=True)
class UnloadAsked:
    """The user wants a model gone: a load is cancelled at once, asked-for or begun; an answer is finished first."""

    now: float
    model: str


@dataclass(frozen=True, slots=True)
class PinChanged:
    """The user pinned a model or let it go."""

    now: float
    model: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """The application ends: everything that waits is refused, every child stopped."""

    now: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""

    now: float


Event = (
    TurnAsked
    | TurnLeft
    | TurnEnded
    | HoldAsked
    | HoldEnded
    | BrakeDecided
    | ChildReady
    | ChildDied
    | LoadFailed
    | MemoryFreed
    | UnloadAsked
    | PinChanged
    | Closing
    | Tick
)

# --- why a turn is refused --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """The model could not be loaded, with the engine's error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Crashed:
    """The child died under a granted turn."""

    error: Exception


@dataclass(frozen=True, slots=True)
class KeepsCrashing:
    """The model died too often lately and is not reloaded by itself."""

    model: str
    crashes: int
    error: Exception


@dataclass(frozen=True, slots=True)
class PinnedInTheWay:
    """Another model is pinned and there is no room beside it."""

    pinned: str


@dataclass(frozen=True, slots=True)
class WaitedTooLong:
    """The bound of every wait, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LoadCancelled:
    """The user cancelled the load that the turn waited for."""


@dataclass(frozen=True, slots=True)
class ShuttingDown:
    """The application is closing."""


@dataclass(frozen=True, slots=True)
class NoChild:
    """A hold was asked for a model that is not loaded."""


Refusal = (
    LoadFailure | Crashed | KeepsCrashing | PinnedInTheWay | WaitedTooLong | LoadCancelled | ShuttingDown | NoChild
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a child; answer with ``ChildReady`` or ``LoadFailed``."""

    child: int
    model: str
    reason: SpawnReason = SpawnReason.TURN
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a child (or cancel its load); answer with ``MemoryFreed`` when it is gone."""

    child: int
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Grant:
    """A turn (or a hold) may use the child now."""

    turn: int
    child: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """A turn or hold will not be served, or a granted one is broken off."""

    turn: int
    refusal: Refusal


class WaitReason(StrEnum):
    """What a waiting turn waits for."""

    LOADING = "loading"
    QUEUED = "queued"
    SWITCHING = "switching"


@dataclass(frozen=True, slots=True)
class Wait:
    """A turn waits; sent again whenever what it waits for changes."""

    turn: int
    reason: WaitReason
    ahead: int
    """Turns that are served before it, as far as is known now."""


Effect = Spawn | Stop | Grant | Refuse | Wait
