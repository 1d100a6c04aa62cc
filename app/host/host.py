"""Runs the schedule on the loop: carries its effects out and posts what became of them as the next event.

All state changes on one loop, so there are no locks. The only door for a request is ``host.turn(model)``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.events import EventBus
from app.host import view
from app.host import vocabulary as v
from app.host.model import Model
from app.host.notices import KeepsCrashingNotice, LoadFailedNotice, Notice, Notices, Reloaded, WorkerCrashed
from app.host.refused import Unserved, unserved
from app.host.schedule import Phase, Policy, Schedule
from app.host.status import EngineStatus, NoticeStatus, Status
from engines import Child, ChildLost, Engine, EngineError, LaunchPlan, LaunchSettings, Machine

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
"""How often a waiting turn hears how it stands."""


@dataclass(slots=True)
class Ticket:
    """One turn on its way through the schedule."""

    id: int
    model: Model
    asked: float
    by_user: bool
    hold: bool
    granted: asyncio.Future[Child]
    broken: asyncio.Future[Unserved]
    wait: v.Wait | None = None
    started_load: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A granted turn: the child is the holder's until the ``async with`` ends."""

    id: int
    model: Model
    child: Child
    queued_seconds: float
    """From asking to the grant, a load included."""
    load_seconds: float | None
    """How long the child took to load, when this turn waited for that load."""
    notices: tuple[NoticeStatus, ...]
    """What the user has to be told with this answer."""
    broken: asyncio.Future[Unserved]
    """Done when the turn is broken off: the child died, or the application closes."""


@dataclass(frozen=True, slots=True)
class WaitView:
    """How a waiting turn stands; ``seconds`` since it was asked."""

    seconds: float
    reason: v.WaitReason
    ahead: int
    progress: float | None


@dataclass(slots=True)
class Running:
    """What the host has of one child of the schedule."""

    id: int
    model: Model
    plan: LaunchPlan | None = None
    child: Child | None = None
    loading: asyncio.Task[None] | None = None
    progress: float | None = None
    stop: v.StopReason | None = None


@dataclass(slots=True)
class Host:
    """The one owner of children. Make it on the loop; ``close`` it before the loop ends."""

    engine: Engine
    engine_status: EngineStatus
    machine: Machine
    policy: Policy
    launch_settings: LaunchSettings
    bus: EventBus
    clock: Callable[[], float] = time.monotonic
    notices: Notices = field(default_factory=Notices)
    _running: dict[int, Running] = field(default_factory=dict)
    _tickets: dict[int, Ticket] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _idle_reaped: set[str] = field(default_factory=set)
    _owed: dict[str, list[NoticeStatus]] = field(default_factory=dict)
    _models: dict[str, Model] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _last_id: int = 0
    _schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        self._schedule = Schedule(self.policy)

    # --- the doors ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(
        self,
        model: Model,
        *,
        waiting: Callable[[WaitView], Awaitable[None]] | None = None,
        by_user: bool = False,
    ) -> AsyncIterator[Turn]:
        """Wait for a child of ``model`` and hold one of its slots.

        ``waiting`` is called every second until then. Raises ``Unserved``. Leaving by whatever way, cancelled in the
        very tick of the grant included, gives the slot back.
        """
        ticket = self._ticket(model, by_user=by_user)
        self._models[model.id] = model
        if by_user:
            self._given_up.discard(model.id)
        self._post(v.TurnAsked(ticket.asked, ticket.id, model.id, model.traits, by_user))
        try:
            while not ticket.granted.done():
                await asyncio.wait({ticket.granted}, timeout=REPORT_SECONDS)
                if not ticket.granted.done() and waiting is not None:
                    await waiting(self._wait_view(ticket))
            child = ticket.granted.result()
            queued = self.clock() - ticket.asked
            load = child.load_seconds if ticket.started_load else None
            owed = tuple(self._owed.pop(model.id, ()))
            yield Turn(ticket.id, model, child, queued, load, owed, ticket.broken)
        finally:
            self._drop(ticket)
            self._post(v.TurnEnded(self.clock(), ticket.id))

    @asynccontextmanager
    async def hold(self, model: Model, *, ahead: bool = False) -> AsyncIterator[Child]:
        """Have all slots of a loaded model's child, with nothing in flight. Raises ``Unserved`` when it is not loaded.

        ``ahead`` of the turns that wait: for what must happen between two of them.
        """
        ticket = self._ticket(model, hold=True)
        self._post(v.HoldAsked(self.clock(), ticket.id, model.id, ahead))
        try:
            yield await ticket.granted
        finally:
            self._drop(ticket)
            self._post(v.HoldEnded(self.clock(), ticket.id))

    async def load(self, model: Model) -> None:
        """Load a model because the user asked: it forgives a model that kept crashing. Raises ``Unserved``."""
        async with self.turn(model, by_user=True):
            pass

    def unload(self, model_id: str) -> None:
        """Have a model gone: its load is cancelled at once, its answer finished first."""
        self._post(v.UnloadAsked(self.clock(), model_id))

    def pin(self, model_id: str, *, pinned: bool) -> None:
        """Keep a model loaded, or no longer; acts on the child that runs now as on later turns."""
        self._post(v.PinChanged(self.clock(), model_id, pinned))

    def tick(self) -> None:
        """Let time pass; the monitor calls it."""
        self._post(v.Tick(self.clock()))

    @property
    def busy(self) -> bool:
        """Whether somebody waits or is served."""
        return bool(self._tickets)

    def loaded(self) -> tuple[str, ...]:
        """Ids of the models that serve now, the last used first."""
        ready = [c for c in self._schedule.children.values() if c.phase is Phase.READY]
        return tuple(c.model for c in sorted(ready, key=lambda c: -c.last_used))

    def child_of(self, model_id: str) -> Child | None:
        """The child that serves a model now."""
        ready = (r.child for r in self._running.values() if r.model.id == model_id and r.stop is None)
        return next((child for child in ready if child is not None), None)

    def plan(self, model: Model) -> LaunchPlan:
        """What loading a model now would be. Raises ``EngineError``."""
        return self.engine.plan(model.id, model.facts, self.machine, self.launch_settings)

    def status(self) -> Status:
        """Everything that the tray and the API show."""
        now = self.clock()
        children = [
            view.child_status(
                self._schedule.children[r.id],
                plan=r.plan,
                child=r.child,
                progress=r.progress,
                stopping=r.stop is not None,
            )
            for r in self._running.values()
            if r.id in self._schedule.children
        ]
        waits = [
            view.waiting_status(t.id, t.model.id, now - t.asked, t.wait, by_user=t.by_user)
            for t in self._tickets.values()
            if not t.granted.done() and not t.hold
        ]
        return Status(self.engine_status, tuple(children), tuple(waits), self.notices.recent())

    def say(self, notice: Notice, *, next_turn: bool = False) -> None:
        """Keep a notice and tell everybody; ``next_turn``: the model's next turn carries it too."""
        kept = self.notices.add(notice, time.time())
        if next_turn and notice.model is not None:
            self._owed.setdefault(notice.model, []).append(kept)
        log.info("notice %s: %s", kept.kind, kept.text)
        self.bus.publish(
            "notice",
            {"notice": kept.kind, "text": kept.text, "numbers": dict(kept.numbers), "model": kept.model},
        )

    async def close(self) -> None:
        """Refuse everybody, stop every child, and return when nothing of ours runs any more."""
        self._post(v.Closing(self.clock()))
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- events in, effects out ---------------------------------------------------------------------------------------

    def _post(self, event: v.Event) -> None:
        for effect in self._schedule.handle(event):
            match effect:
                case v.Spawn():
                    self._spawn(effect)
                case v.Stop(child, reason):
                    self._stop(self._running[child], reason)
                case v.Grant(turn, child):
                    self._grant(turn, child)
                case v.Refuse(turn, refusal):
                    self._refuse(turn, refusal)
                case v.Wait(turn):
                    self._wait(turn, effect)

    def _grant(self, turn: int, child_id: int) -> None:
        ticket, child = self._tickets.get(turn), self._running[child_id].child
        if ticket is not None and child is not None and not ticket.granted.done():
            ticket.granted.set_result(child)

    def _refuse(self, turn: int, refusal: v.Refusal) -> None:
        ticket = self._tickets.get(turn)
        if ticket is None:
            return
        error = unserved(refusal, ticket.model.name)
        if isinstance(refusal, v.KeepsCrashing):
            self._give_up(ticket.model, refusal)
        if not ticket.granted.done():
            ticket.granted.set_exception(error)
        elif not ticket.broken.done():
            ticket.broken.set_result(error)

    def _give_up(self, model: Model, refusal: v.KeepsCrashing) -> None:
        """Say it once, until the user tries again."""
        if model.id not in self._given_up:
            self._given_up.add(model.id)
            last = unserved(v.LoadFailure(refusal.error), model.name).sentence
            self.say(KeepsCrashingNotice(model.id, model.name, refusal.crashes, last))

    def _wait(self, turn: int, wait: v.Wait) -> None:
        ticket = self._tickets.get(turn)
        if ticket is not None:
            ticket.wait = wait
            ticket.started_load = ticket.started_load or wait.reason is v.WaitReason.LOADING

    def _spawn(self, effect: v.Spawn) -> None:
        running = Running(effect.child, self._models[effect.model])
        self._running[effect.child] = running
        running.loading = self._task(self._load(running, effect.cap))
        self._tell("child_loading", running)

    async def _load(self, running: Running, cap: int | None) -> None:
        def progress(value: float) -> None:
            running.progress = value

        model = running.model
        try:
            settings = self.launch_settings if cap is None else _with_cap(self.launch_settings, cap)
            running.plan = self.engine.plan(model.id, model.facts, self.machine, settings)
            child = await self.engine.start(running.plan, progress)
        except asyncio.CancelledError:
            self._gone(running)
            return
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("loading %s failed by a fault of ours", model.id)
            self._load_failed(running, error)
            return
        running.child, running.loading = child, None
        if running.stop is not None:  # the stop came in the very moment the load ended
            await child.stop(hurry=running.stop is v.StopReason.CLOSING)
            self._gone(running)
            return
        asyncio.ensure_future(child.died).add_done_callback(lambda died: self._died(running, died.result()))
        self._tell("child_ready", running, seconds=round(child.load_seconds, 3))
        if model.id in self._idle_reaped:
            self._idle_reaped.discard(model.id)
            window = child.facts.allocated_window
            self.say(Reloaded(model.id, model.name, "idle", child.load_seconds, window), next_turn=True)
        self._post(v.ChildReady(self.clock(), running.id, child.facts.slots))

    def _load_failed(self, running: Running, error: Exception) -> None:
        del self._running[running.id]
        shown = unserved(v.LoadFailure(error), running.model.name)
        log.warning("%s", shown.sentence)
        self.say(LoadFailedNotice(running.model.id, shown.sentence, shown.code))
        self._tell("load_failed", running, code=shown.code)
        self._post(v.LoadFailed(self.clock(), running.id, error))

    def _stop(self, running: Running, reason: v.StopReason) -> None:
        running.stop = reason
        if reason is v.StopReason.IDLE:
            self._idle_reaped.add(running.model.id)
        self._tell("child_stopping", running, reason=reason.value)
        if running.child is None:
            assert running.loading is not None
            running.loading.cancel()
        else:
            self._task(self._stop_child(running, running.child, reason))

    async def _stop_child(self, running: Running, child: Child, reason: v.StopReason) -> None:
        await child.stop(hurry=reason is v.StopReason.CLOSING)
        self._gone(running)

    def _gone(self, running: Running) -> None:
        self._running.pop(running.id, None)
        self._tell("child_stopped", running)
        self._post(v.MemoryFreed(self.clock(), running.id))

    def _died(self, running: Running, exit_code: int) -> None:
        if running.stop is not None or running.child is None:
            return
        del self._running[running.id]
        log.warning("the server of %s ended unasked (%d)", running.model.id, exit_code)
        self.say(WorkerCrashed(running.model.id, running.model.name, exit_code), next_turn=True)
        self._tell("worker_crashed", running, exit_code=exit_code)
        error = ChildLost(running.model.name, exit_code, tail=running.child.tail)
        self._post(v.ChildDied(self.clock(), running.id, error))

    def _ticket(self, model: Model, *, by_user: bool = False, hold: bool = False) -> Ticket:
        loop = asyncio.get_running_loop()
        self._last_id += 1
        ticket = Ticket(self._last_id, model, self.clock(), by_user, hold, loop.create_future(), loop.create_future())
        self._tickets[ticket.id] = ticket
        return ticket

    def _drop(self, ticket: Ticket) -> None:
        del self._tickets[ticket.id]
        ticket.granted.cancel()
        if not ticket.granted.cancelled():
            ticket.granted.exception()  # a refusal that came as its client left has been seen

    # --- parts --------------------------------------------------------------------------------------------------------

    def _wait_view(self, ticket: Ticket) -> WaitView:
        wait = ticket.wait or v.Wait(ticket.id, v.WaitReason.QUEUED, 0)
        loading = (r.progress for r in self._running.values() if r.model.id == ticket.model.id)
        progress = next(loading, None) if wait.reason is v.WaitReason.LOADING else None
        return WaitView(self.clock() - ticket.asked, wait.reason, wait.ahead, progress)

    def _task(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the host failed", exc_info=task.exception())

    def _tell(self, kind: str, running: Running, **more: float | str) -> None:
        facts: Mapping[str, object] = {"model": running.model.id, "child": running.id, **more}
        self.bus.publish(kind, facts)


def _with_cap(settings: LaunchSettings, cap: int) -> LaunchSettings:
    return LaunchSettings(settings.window, settings.threads, cap)
