"""What goes into the brake and what comes out of it: values only.

Windows and caps are tokens, memory is bytes, times are seconds of a clock that never runs backwards. None is a value
that could not be read: it switches off what needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from engines.memory.pressure.levels import Level

REMEMBERED_SECONDS = 30 * 60.0
"""How long a cap, a window that hurt and an unload's record are remembered, each from its own last write."""


class Point(StrEnum):
    """The safe points: never during a generation."""

    TURN_START = "turn_start"
    TURN_END = "turn_end"
    IDLE = "idle"


class Action(StrEnum):
    """What is to be done now; the words of the log."""

    NONE = "none"
    SHRINK_RESPAWN = "shrink+respawn"
    """llama.cpp: stop the child and start it again with the cap."""
    UNLOAD = "unload"
    RELEASE = "release"
    """MLX: have the child give back what it can spare, then ask ``mlx_released`` for the rest of the sample."""
    SHRINK = "shrink"
    """MLX: send the smaller window to the running child."""
    GROW = "grow"
    """MLX: send the larger window to the running child. llama.cpp: nothing to do, the next load reads the cap."""


class BrakeNotice(StrEnum):
    """What a user is told of a step once it is applied."""

    ACTED = "acted"
    """The window was reduced."""
    EXTERNAL = "external"
    """The pressure is not ours."""


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """What is remembered of one model's window, and when each was last written.

    ``cap`` is the reduced window; ``hurt`` the latest allocated window under which a shrink was decided.
    """

    cap: int | None = None
    cap_at: float | None = None
    hurt: int | None = None
    hurt_at: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to remember."""
        return self.cap is None and self.hurt is None

    def at(self, now: float) -> WindowMemory:
        """What of it is still remembered at ``now``."""
        kept = self
        if kept.cap_at is not None and now - kept.cap_at >= REMEMBERED_SECONDS:
            kept = replace(kept, cap=None, cap_at=None)
        if kept.hurt_at is not None and now - kept.hurt_at >= REMEMBERED_SECONDS:
            kept = replace(kept, hurt=None, hurt_at=None)
        return kept

    def with_cap(self, cap: int | None, now: float) -> WindowMemory:
        """The same with another cap, or none."""
        return replace(self, cap=cap, cap_at=None if cap is None else now)

    def with_hurt(self, hurt: int, now: float) -> WindowMemory:
        """The same with another window that hurt."""
        return replace(self, hurt=hurt, hurt_at=now)


@dataclass(frozen=True, slots=True)
class Episode:
    """One time of pressure, from the first sample that is not calm until two calm ones in a row."""

    level: Level = Level.WARNING
    """The worst so far."""
    shrinks: int = 0
    turn_since_shrink: bool = False
    armed: bool = False
    """The next critical idle sample unloads, unless a turn or a sample that is not critical comes between."""
    acted: bool = False
    external: bool = False
    seeded: bool = False
    """Began in a child that is gone: nothing acts before it ends."""


@dataclass(frozen=True, slots=True)
class BrakeState:
    """All the brake knows of one child. A fresh child starts with ``BrakeState()``, see ``remembered`` for others."""

    memory: WindowMemory = WindowMemory()
    pending: int | None = None
    """llama.cpp: a cap that was decided and waits for its respawn. Dies with its episode."""
    calm: int = 0
    """Calm samples in a row since the last step."""
    episode: Episode | None = None
    left: int = 0
    """MLX: bytes above the base that this child's last successful release left."""
    request: int | None = None
    """MLX: tokens of the last turn's largest request."""

    @property
    def cap(self) -> int | None:
        """The reduced window; None while nothing is reduced."""
        return self.memory.cap

    @property
    def pressure(self) -> Episode:
        """The open episode, or the one that would open now."""
        return self.episode or Episode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the machine and at a child with nothing in flight.

    A level that cannot be read makes no sample at all.
    """

    now: float
    point: Point
    level: Level
    evidence: bool | None = False
    """Of the turn that ends here: ``Paging.evidence``, on CUDA ``spill_evidence``. None: the level decides alone."""
    allocated: int | None
    """The window the child really has."""
    planned: int | None
    """The window it would be given without a cap; None is unbounded."""
    pinned: bool = False
    """The user set the window, or the child is one that is never resized (embedding, rerank, profile)."""
    footprint: int | None = None
    """Bytes the child holds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSample(Sample):
    """A sample of a llama-server."""

    kv_bytes: int | None = None
    """The KV cache of the allocated window."""
    ram_bytes: int | None = None
    """Physical memory, bounded by our own cgroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSample(Sample):
    """A sample of an MLX child."""

    base: int | None = None
    """Bytes it held right after it was ready."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one sample comes to."""

    state: BrakeState
    """To be kept when the step was applied, or when there was none."""
    otherwise: BrakeState
    """To be kept when the step was not applied: the brake forgets it as if it never happened."""
    level: Level
    """The sample's, lifted by evidence where the law says so."""
    action: Action = Action.NONE
    cap: int | None = None
    """The cap after the step; None: there is none (any more)."""
    before: int | None = None
    after: int | None = None
    """The window before and after the step, for the log and the notice; after an unload 0."""
    notice: BrakeNotice | None = None
    """To be said once the step is applied."""
