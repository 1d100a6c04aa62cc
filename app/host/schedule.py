"""Who is served when, and which child runs for it: a pure state machine, events in, effects out.

No clock, no I/O, no tasks. The state changes only by events, so a decision can never rest on something read
earlier. Rules, in the order they are applied after every event:

1. A child that is to go and has nothing in flight is stopped.
2. Turns are granted first come first served, a child's slots at a time; where the machine has one slot, children
   take turns. A model that waits for room closes the door of those it would evict after ``group_seconds``.
3. One switch at a time: the oldest turn without a child gets one, after the least recently used idle child that
   stands in its way was stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.host import vocabulary as v


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of the schedule. Times are seconds."""

    max_models: int = 1
    """Large models resident at a time."""
    machine_slot: bool = True
    """One child generates at a time: two busy servers on one CPU make each other 5 to 8 times slower (measured)."""
    evict_pinned: bool = False
    group_seconds: float = 30.0
    """How much longer than the first turn of another model has waited the resident one is served (start value)."""
    idle_seconds: float = 300.0
    """An unused child is stopped after this; 0 is never."""
    max_wait_seconds: float = 600.0
    """The bound of every wait (start value)."""
    crash_limit: int = 3
    crash_seconds: float = 600.0
    """This many crashes within this time, and a model is not reloaded by itself."""


class Phase(StrEnum):
    """Where a child is in its life."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(slots=True)
class Child:
    """What the schedule knows of one child."""

    id: int
    model: str
    traits: v.Traits
    phase: Phase
    reason: v.SpawnReason
    last_used: float
    slots: int = 1
    busy: set[int] = field(default_factory=set)
    hold: int | None = None
    leaving: v.StopReason | None = None
    """To be stopped as soon as nothing is in flight."""
    respawn: bool = False
    cap: int | None = None

    @property
    def idle(self) -> bool:
        """Ready, with nothing in flight."""
        return self.phase is Phase.READY and not self.busy and self.hold is None


@dataclass(slots=True)
class Waiting:
    """One turn or hold in the queue."""

    id: int
    model: str
    traits: v.Traits
    asked: float
    by_user: bool
    hold: bool = False
    told: v.Wait | None = None


class Schedule:
    """The state machine. ``handle`` is its only door; ``children`` and ``waiting`` are for reading."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.children: dict[int, Child] = {}
        self.waiting: dict[int, Waiting] = {}
        self._granted: dict[int, int] = {}
        self._crashes: dict[str, deque[tuple[float, Exception]]] = {}
        self._closing = False
        self._last_child = 0
        self._effects: list[v.Effect] = []

    def handle(self, event: v.Event) -> tuple[v.Effect, ...]:
        """Take one event; returns what has to be done, in order."""
        self._effects = []
        match event:
            case v.TurnAsked():
                self._turn_asked(event)
            case v.TurnLeft(now, turn) | v.TurnEnded(now, turn):
                self.waiting.pop(turn, None)
                self._release(turn, now)
            case v.HoldAsked():
                self._hold_asked(event)
            case v.HoldEnded(_, hold):
                self.waiting.pop(hold, None)
                for child in self.children.values():
                    if child.hold == hold:
                        child.hold = None
            case v.BrakeDecided():
                self._brake_decided(event)
            case v.ChildReady(now, id_, slots):
                self._child_ready(now, id_, slots)
            case v.ChildDied(now, id_, error):
                self._child_died(now, id_, error)
            case v.LoadFailed():
                self._load_failed(event)
            case v.MemoryFreed(now, id_):
                self._memory_freed(now, id_)
            case v.UnloadAsked(_, model):
                self._unload_asked(model)
            case v.PinChanged(_, model, pinned):
                for child in self._of(model):
                    child.traits = replace(child.traits, pinned=pinned)
            case v.Closing():
                self._close()
            case v.Tick(now):
                self._tick(now)
        self._advance(event.now)
        return tuple(self._effects)

    # --- events -------------------------------------------------------------------------------------------------------

    def _turn_asked(self, event: v.TurnAsked) -> None:
        if self._closing:
            self._effects.append(v.Refuse(event.turn, v.ShuttingDown()))
            return
        if event.by_user:
            self._crashes.pop(event.model, None)
        self.waiting[event.turn] = Waiting(event.turn, event.model, event.traits, event.now, event.by_user)
        for child in self._of(event.model):
            child.traits = event.traits

    def _hold_asked(self, event: v.HoldAsked) -> None:
        child = self._ready(event.model)
        if self._closing or child is None:
            self._effects.append(v.Refuse(event.hold, v.NoChild()))
            return
        hold = Waiting(event.hold, event.model, child.traits, event.now, by_user=False, hold=True)
        self.waiting = {hold.id: hold, **self.waiting} if event.ahead else {**self.waiting, hold.id: hold}

    def _brake_decided(self, event: v.BrakeDecided) -> None:
        child = self._ready(event.model)
        if child is None:
            return
        child.leaving = v.StopReason.BRAKE
        child.respawn = event.action is v.BrakeAction.RESPAWN
        child.cap = event.cap

    def _child_ready(self, now: float, id_: int, slots: int) -> None:
        child = self.children.get(id_)
        if child is not None and child.phase is Phase.LOADING:
            child.phase, child.slots, child.last_used = Phase.READY, slots, now

    def _child_died(self, now: float, id_: int, error: Exception) -> None:
        child = self.children.get(id_)
        if child is None:
            return
        if child.phase is Phase.STOPPING:
            self._memory_freed(now, id_)
            return
        self._remove(child, v.Crashed(error))
        self._count_crash(now, child.model, error)

    def _load_failed(self, event: v.LoadFailed) -> None:
        child = self.children.get(event.child)
        if child is None:
            return
        if child.phase is Phase.STOPPING:
            self._memory_freed(event.now, event.child)
            return
        self._remove(child, v.LoadFailure(event.error))
        if event.crashed and child.reason is not v.SpawnReason.BRAKE:
            self._count_crash(event.now, child.model, event.error)
        self._refuse_waiting(child.model, v.LoadFailure(event.error))

    def _memory_freed(self, now: float, id_: int) -> None:
        child = self.children.get(id_)
        if child is None:
            return
        self._remove(child, v.LoadCancelled())
        if child.respawn and not self._closing:
            self._spawn(child.model, child.traits, now, v.SpawnReason.BRAKE, child.cap)

    def _unload_asked(self, model: str) -> None:
        for item in [i for i in self.waiting.values() if i.model == model and i.by_user]:
            self._refuse(item.id, v.LoadCancelled())
        for child in self._of(model):
            child.respawn = False
            if child.phase is Phase.LOADING:
                self._stop(child, v.StopReason.USER)
                self._refuse_waiting(model, v.LoadCancelled())
            elif child.phase is Phase.READY:
                child.leaving = v.StopReason.USER

    def _close(self) -> None:
        self._closing = True
        for item in list(self.waiting.values()):
            self._refuse(item.id, v.ShuttingDown())
        for child in self.children.values():
            child.respawn = False
            for turn in sorted(child.busy):
                self._effects.append(v.Refuse(turn, v.ShuttingDown()))
                self._granted.pop(turn, None)
            child.busy.clear()
            child.hold = None
            if child.phase is not Phase.STOPPING:
                self._stop(child, v.StopReason.CLOSING)

    def _tick(self, now: float) -> None:
        for item in list(self.waiting.values()):
            if now - item.asked >= self.policy.max_wait_seconds:
                self._refuse(item.id, v.WaitedTooLong(self.policy.max_wait_seconds))
        if not self.policy.idle_seconds:
            return
        wanted = {item.model for item in self.waiting.values()}
        for child in self.children.values():
            unused = child.idle and child.leaving is None and child.model not in wanted
            if unused and not child.traits.pinned and now - child.last_used >= self.policy.idle_seconds:
                child.leaving = v.StopReason.IDLE

    # --- what follows from the state ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._stop_leaving()
        if not self._closing:
            self._grant(now)
            while self._switch(now):
                pass
        self._tell()

    def _stop_leaving(self) -> None:
        for child in self.children.values():
            if child.leaving is not None and child.idle:
                self._stop(child, child.leaving)

    def _grant(self, now: float) -> None:
        door = self._door(now)
        blocked: set[int] = set()
        for item in list(self.waiting.values()):
            child = self._ready(item.model)
            if child is None or child.id in blocked:
                continue
            if child.hold is not None or len(child.busy) >= child.slots or (item.hold and child.busy):
                blocked.add(child.id)
            elif item.hold:
                child.hold = item.id
                del self.waiting[item.id]
                self._effects.append(v.Grant(item.id, child.id))
            elif door is not None and item.asked > door.asked and self._in_the_way(child, door):
                blocked.add(child.id)
            elif self.policy.machine_slot and any(c.busy for c in self.children.values() if c is not child):
                return  # strictly first come first served: nobody overtakes who waits for the machine
            else:
                child.busy.add(item.id)
                self._granted[item.id] = child.id
                del self.waiting[item.id]
                self._effects.append(v.Grant(item.id, child.id))

    def _door(self, now: float) -> Waiting | None:
        """The turn that has waited long enough for room to close the door of those in its way."""
        first = next(self._homeless(), None)
        return first if first is not None and now - first.asked >= self.policy.group_seconds else None

    def _switch(self, now: float) -> bool:
        """Do the next step of a switch; True when something was refused and the next turn is to be looked at."""
        if any(child.phase is not Phase.READY for child in self.children.values()):
            return False
        turn = next(self._homeless(), None)
        if turn is None:
            return False
        crashes = self._recent_crashes(now, turn.model)
        if crashes is not None:
            self._refuse_waiting(turn.model, crashes)
            return True
        if turn.traits.small or len(self._large()) < self.policy.max_models:
            self._spawn(turn.model, turn.traits, now, v.SpawnReason.TURN, None)
            return False
        rivals = [child for child in self._large() if self._in_the_way(child, turn)]
        if not rivals:
            self._refuse(turn.id, v.PinnedInTheWay(self._large()[0].model))
            return True
        idle = [child for child in rivals if child.idle]
        if idle:
            self._stop(min(idle, key=lambda c: (c.traits.pinned, c.last_used)), v.StopReason.SWITCH)
        return False

    def _tell(self) -> None:
        switching = any(child.phase is Phase.STOPPING for child in self.children.values())
        ahead: dict[str, int] = {}
        for child in self.children.values():
            ahead[child.model] = ahead.get(child.model, 0) + len(child.busy)
        for item in self.waiting.values():
            phases = {child.phase for child in self._of(item.model)}
            if Phase.LOADING in phases:
                reason = v.WaitReason.LOADING
            elif Phase.READY in phases or not switching:
                reason = v.WaitReason.QUEUED
            else:
                reason = v.WaitReason.SWITCHING
            wait = v.Wait(item.id, reason, ahead.get(item.model, 0))
            ahead[item.model] = wait.ahead + 1
            if wait != item.told and not item.hold:
                item.told = wait
                self._effects.append(wait)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _of(self, model: str) -> list[Child]:
        return [child for child in self.children.values() if child.model == model]

    def _ready(self, model: str) -> Child | None:
        ready = (c for c in self._of(model) if c.phase is Phase.READY and c.leaving is None)
        return next(ready, None)

    def _large(self) -> list[Child]:
        return [child for child in self.children.values() if not child.traits.small]

    def _homeless(self) -> Iterator[Waiting]:
        """Turns whose model has no child, oldest first."""
        housed = {child.model for child in self.children.values()}
        return (item for item in self.waiting.values() if not item.hold and item.model not in housed)

    def _in_the_way(self, child: Child, turn: Waiting) -> bool:
        """Whether ``child`` would have to go for ``turn``, and may."""
        if turn.traits.small or child.traits.small or len(self._large()) < self.policy.max_models:
            return False
        return self.policy.evict_pinned or not child.traits.pinned

    def _spawn(self, model: str, traits: v.Traits, now: float, reason: v.SpawnReason, cap: int | None) -> None:
        self._last_child += 1
        child = Child(self._last_child, model, traits, Phase.LOADING, reason, last_used=now, cap=cap)
        self.children[child.id] = child
        self._effects.append(v.Spawn(child.id, model, reason, cap))

    def _stop(self, child: Child, reason: v.StopReason) -> None:
        child.phase = Phase.STOPPING
        self._effects.append(v.Stop(child.id, reason))

    def _remove(self, child: Child, refusal: v.Refusal) -> None:
        del self.children[child.id]
        for turn in sorted(child.busy):
            self._granted.pop(turn, None)
            self._effects.append(v.Refuse(turn, refusal))
        if child.hold is not None:
            self._effects.append(v.Refuse(child.hold, refusal))
        for item in [i for i in self.waiting.values() if i.hold and i.model == child.model]:
            self._refuse(item.id, v.NoChild())

    def _release(self, turn: int, now: float) -> None:
        child = self.children.get(self._granted.pop(turn, 0))
        if child is not None:
            child.busy.discard(turn)
            child.last_used = now

    def _refuse(self, turn: int, refusal: v.Refusal) -> None:
        del self.waiting[turn]
        self._effects.append(v.Refuse(turn, refusal))

    def _refuse_waiting(self, model: str, refusal: v.Refusal) -> None:
        for item in [i for i in self.waiting.values() if i.model == model]:
            self._refuse(item.id, refusal)

    def _count_crash(self, now: float, model: str, error: Exception) -> None:
        self._crashes.setdefault(model, deque(maxlen=self.policy.crash_limit)).append((now, error))

    def _recent_crashes(self, now: float, model: str) -> v.KeepsCrashing | None:
        crashes = self._crashes.get(model)
        if crashes is None or len(crashes) < self.policy.crash_limit:
            return None
        if now - crashes[0][0] >= self.policy.crash_seconds:
            return None
        return v.KeepsCrashing(model, len(crashes), crashes[-1][1])
