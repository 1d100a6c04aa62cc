"""The memory brake at work: takes samples at the safe points, asks the law, and has its decisions carried out.

It never raises: a failure is one WARNING with the exception's class, and the sample is lost. What it decides goes to
the schedule as ``BrakeDecided``; it starts and stops nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from app.host import notices
from app.host import vocabulary as v
from app.host.laws import ChildLaw, Look, Ram, law_of
from app.host.model import Model
from app.host.refused import Unserved
from app.host.status import BrakeStatus
from engines import Child
from engines.artifact.facts import ModelKind
from engines.engine import Landed
from engines.memory import brake, remembered
from engines.memory.brake import Action, BrakeNotice, BrakeState, Decision, Level, Point, Sample

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Periods:
    """How often an idle child is looked at; tests run the same story in seconds."""

    idle: float = brake.IDLE_SECONDS
    quiet: float = brake.QUIET_SECONDS
    """No idle sample so soon after another sample or the end of a turn."""
    before_turn: float = 10.0
    """No sample before a turn so soon after another: the one at the end of the last turn has just looked (start)."""


@dataclass(slots=True)
class Braked:
    """What the brake has of one model's child."""

    state: BrakeState = field(default_factory=BrakeState)
    level: Level = Level.CALM
    episodes: int = 0
    sampled: float | None = None
    turn_ended: float | None = None
    law: ChildLaw | None = None
    """None: nothing brakes the child."""
    respawn: tuple[Decision, Sample] | None = None
    """Decided, not yet applied."""


class Owner(Protocol):
    """What the brake asks of the host."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds of a clock that never runs backwards."""

    def hold(self, model: Model, *, ahead: bool = False) -> AbstractAsyncContextManager[Child]:
        """All slots of a loaded model's child."""

    def brake_decided(self, model: Model, action: v.BrakeAction, cap: int | None) -> None:
        """Have the schedule carry a decision out."""

    def planned_window(self, model: Model) -> int | None:
        """The window a load without a cap would get."""

    def say(self, notice: notices.Notice, *, next_turn: bool = False) -> None:
        """Tell the user."""


class Braking:
    """The brake of one host."""

    def __init__(self, owner: Owner, ram: Ram, *, pinned: bool, periods: Periods) -> None:
        self._owner = owner
        self._ram = ram
        self.pinned = pinned
        """The user set the window: nothing is resized."""
        self._periods = periods
        self._children: dict[str, Braked] = {}
        self._memory = remembered.BrakeMemory()

    # --- what the host tells of its children --------------------------------------------------------------------------

    def cap_for(self, model: Model, reason: v.SpawnReason, cap: int | None) -> int | None:
        """The cap that a spawn starts with: the one handed in, or what is remembered of the model."""
        if reason is v.SpawnReason.BRAKE:
            return cap
        state = self._memory.start(model.id, self._owner.clock())
        self._children[model.id] = Braked(state)
        return state.cap

    def live_window(self, model: Model) -> int | None:
        """Tokens of the child that a respawn replaces."""
        found = self._children.get(model.id)
        return found.respawn[1].allocated if found is not None and found.respawn is not None else None

    def spawned(self, model: Model, reason: v.SpawnReason, child: Child, landed: Landed) -> bool:
        """A child serves; says what a user has to know. Returns whether a reload was said."""
        seconds, window = child.load_seconds, child.facts.allocated_window
        found = self._children.setdefault(model.id, Braked())
        found.law = law_of(landed, child, self._ram)
        reloads = reason is v.SpawnReason.BRAKE or self._memory.reloads(model.id, self._owner.clock())
        if found.respawn is not None and reason is v.SpawnReason.BRAKE:
            decision, sample = found.respawn
            found.respawn, found.state = None, decision.state
            log.info("%s", brake.log_line(decision, sample))
            self._memory = self._memory.wrote(model.id, found.state)
            self._say(model, decision, sample)
        self._memory = self._memory.spawned(model.id, large=not model.traits.small)
        if reloads:
            self._owner.say(notices.Reloaded(model.id, model.name, "memory", seconds, window), next_turn=True)
        return reloads

    def spawn_failed(self, model: Model, reason: v.SpawnReason, error: BaseException) -> None:
        """A respawn failed: the model is gone, and what was decided waits for its next load."""
        found = self._children.pop(model.id, None)
        if reason is v.SpawnReason.BRAKE and found is not None and found.respawn is not None:
            decision, sample = found.respawn
            log.warning("%s", brake.respawn_failed_line(decision, sample, error))
            self._memory = self._memory.wrote(model.id, decision.state)
            self._memory = self._memory.unloaded(model.id, decision.state, self._owner.clock())

    def gone(self, model: Model, reason: v.StopReason) -> None:
        """A child was stopped or died; a respawn of the brake keeps the live state."""
        found = self._children.get(model.id)
        if found is not None and not (reason is v.StopReason.BRAKE and found.respawn is not None):
            del self._children[model.id]
        if reason in {v.StopReason.IDLE, v.StopReason.CLOSING}:
            self._memory = self._memory.unloads_forgotten()

    def status(self, model_id: str) -> BrakeStatus:
        """What is shown of a child's brake."""
        found = self._children.get(model_id)
        if found is None:
            return BrakeStatus()
        return BrakeStatus(found.level.value, found.state.cap, found.episodes)

    # --- the safe points ----------------------------------------------------------------------------------------------

    def turn_begins(self, model: Model) -> None:
        """A turn was granted."""
        found = self._children.get(model.id)
        if found is not None and found.law is not None:
            found.law.turn_begins()

    def is_due_before_turn(self, model: Model) -> bool:
        """Whether the last look at a model's child is so long ago that its next turn waits for one."""
        found = self._children.get(model.id)
        now = self._owner.clock()
        return found is not None and brake.idle_due(now, found.sampled, found.turn_ended, self._periods.before_turn)

    async def before_turn(self, model: Model) -> None:
        """A turn is about to be asked for whose model is loaded and free; a shrink here applies to that very turn."""
        await self._guarded(model, Point.TURN_START, self._owner.hold(model))

    async def after_turn(self, model: Model, held: AbstractAsyncContextManager[Child]) -> None:
        """A turn is over, however it ended; ``held`` was asked for before anybody else could have the slot."""
        found = self._children.get(model.id)
        if found is not None:
            found.turn_ended = self._owner.clock()
            request = found.law.request if found.law is not None else None
            found.state = brake.turn_ended(found.state, request)  # also where the sample is lost
        await self._guarded(model, Point.TURN_END, held)

    async def idle(self, models: list[Model]) -> None:
        """Look at the idle children, the one with the largest KV cache first, until one of them has to act."""
        now = self._owner.clock()
        for model in models:
            found = self._children.get(model.id)
            if found is None or not brake.idle_due(now, found.sampled, found.turn_ended, self._periods.quiet):
                continue
            if await self._guarded(model, Point.IDLE, self._owner.hold(model)):
                return

    # --- one sample ---------------------------------------------------------------------------------------------------

    async def _guarded(self, model: Model, point: Point, held: AbstractAsyncContextManager[Child]) -> bool:
        try:
            async with held:
                return await self._sample(model, point)
        except Unserved:
            return False  # no child any more: nothing to look at
        except Exception as error:  # noqa: BLE001 - a lost sample must not cost anybody an answer
            log.warning("a memory sample of %s failed: %s", model.id, type(error).__name__)
            return False

    async def _sample(self, model: Model, point: Point) -> bool:
        found = self._children.get(model.id)
        if found is None or found.law is None:
            return False
        before = found.state
        pinned = self.pinned or model.facts.kind is not ModelKind.CHAT
        look = Look(model, point, self._owner.clock(), self._owner.planned_window(model), pinned)
        step = await found.law.step(before, look)
        if step is None:
            return False
        found.sampled = look.now
        decision = step.decision
        if decision.level is not Level.CALM:
            log.debug("memory %s at %s: %s", decision.level, point, step.detail)
        if before.episode is None and decision.state.episode is not None:
            found.episodes += 1
        found.level = decision.level
        await self._carry_out(model, found, decision, step.sample)
        return decision.action is not Action.NONE

    async def _carry_out(self, model: Model, found: Braked, decision: Decision, sample: Sample) -> None:
        match decision.action:
            case Action.SHRINK_RESPAWN:
                found.state = decision.otherwise
                found.respawn = decision, sample
                self._owner.brake_decided(model, v.BrakeAction.RESPAWN, decision.cap)
                return
            case Action.UNLOAD:
                log.warning("%s", brake.log_line(decision, sample))
                self._memory = self._memory.wrote(model.id, decision.state)
                self._memory = self._memory.unloaded(model.id, decision.state, sample.now)
                self._owner.brake_decided(model, v.BrakeAction.UNLOAD, None)
            case Action.SHRINK | Action.GROW:
                if found.law is None or not await found.law.apply(decision.cap):
                    found.state = decision.otherwise  # as if it never happened; the child's engine has said so
                    return
                log.info("%s", brake.log_line(decision, sample))
        found.state = decision.state
        self._memory = self._memory.wrote(model.id, decision.state)
        self._say(model, decision, sample)

    def _say(self, model: Model, decision: Decision, sample: Sample) -> None:
        match decision.notice:
            case BrakeNotice.ACTED:
                notice = notices.WindowReduced(
                    model.id, model.name, decision.before, decision.after, model.facts.trained_window
                )
                self._owner.say(notice, next_turn=True)
            case BrakeNotice.EXTERNAL:
                self._owner.say(notices.PressureElsewhere(model.id, sample.footprint), next_turn=True)
