"""Runs the schedule on the loop: carries its effects out and posts what became of them as the next event.

All state changes on one loop, so there are no locks. The only door for a request is ``host.turn(model)``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from app.events import EventBus
from app.host import view
from app.host import vocabulary as v
from app.host.braking import Braking, Periods
from app.host.laws import Ram
from app.host.model import Model
from app.host.notices import KeepsCrashingNotice, LoadFailedNotice, Notice, Notices, Reloaded, WorkerCrashed
from app.host.refused import unserved
from app.host.schedule import Phase, Policy, Schedule
from app.host.status import BrakeStatus, EngineStatus, NoticeStatus, Status
from app.host.turn import Running, Ticket, Turn, WaitView
from engines import Child, Engine, EngineError, LaunchPlan, LaunchSettings, Machine
from engines.child.failures import lost
from engines.engine import Landed
from engines.errors import LoadTimedOut
from engines.memory.pressure import Sensor

log = logging.getLogger(__name__)

RESPAWN_SECONDS = 30.0
"""Bound of a load that the brake asked for: the model was just here, and its file is likely still in memory."""
REPORT_SECONDS = 1.0
"""How often a waiting turn hears how it stands."""


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
    sensor: Sensor | None = None
    """How short of memory the system is; None: not known."""
    periods: Periods = field(default_factory=Periods)
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
    _brake: Braking | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._schedule = Schedule(self.policy)
        if self.sensor is not None:
            pinned = self.launch_settings.window is not None
            self._brake = Braking(
                self, Ram(self.sensor, self.machine.usable_bytes), pinned=pinned, periods=self.periods
            )

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
        if self._brake is not None and self._is_free(model.id) and self._brake.is_due_before_turn(model):
            await asyncio.shield(self._task(self._brake.before_turn(model)))  # it outlives a client that leaves
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
            if self._brake is not None:
                self._brake.turn_begins(model)
            yield Turn(ticket.id, model, child, queued, load, owed, ticket.broken)
        finally:
            served = ticket.granted.done() and not ticket.granted.cancelled() and ticket.granted.exception() is None
            self._drop(ticket)
            if served and self._brake is not None and not ticket.broken.done() and self._is_last_of(ticket):
                # Asked for before the slot is given back: what follows a turn comes before those that wait.
                self._task(self._brake.after_turn(model, self._held(self._ask_hold(model, ahead=True))))
            self._post(v.TurnEnded(self.clock(), ticket.id))

    def hold(self, model: Model, *, ahead: bool = False) -> AbstractAsyncContextManager[Child]:
        """Have all slots of a loaded model's child, with nothing in flight. Raises ``Unserved`` when it is not loaded.

        It is asked for at once, ``ahead`` of the turns that wait for what must happen between two of them.
        """
        return self._held(self._ask_hold(model, ahead=ahead))

    async def look_at_idle_children(self) -> None:
        """Take the brake's idle samples where they are due; the monitor calls it."""
        if self._brake is None:
            return
        ready = [r for r in self._running.values() if r.child is not None and self._is_free(r.model.id)]
        ready.sort(key=lambda r: -(r.plan.memory.bill.get("kv", 0) if r.plan is not None else 0))
        await self._brake.idle([r.model for r in ready])

    def brake_decided(self, model: Model, action: v.BrakeAction, cap: int | None) -> None:
        """The brake's decision goes the way of all events."""
        self._post(v.BrakeDecided(self.clock(), model.id, action, cap))

    def planned_window(self, model: Model) -> int | None:
        """The window a load without a cap would get; None where there is no plan."""
        try:
            return self.plan(model).window.planned
        except EngineError:
            return None

    async def load(self, model: Model) -> None:
        """Load a model because the user asked: it forgives a model that kept crashing. Raises ``Unserved``."""
        async with self.turn(model, by_user=True):
            pass

    def unload(self, model_id: str) -> None:
        """Have a model gone: its load is cancelled at once, its answer finished first."""
        self._post(v.UnloadAsked(self.clock(), model_id))

    def use(self, engine: Engine, status: EngineStatus) -> None:
        """Load models with another engine from now on; what is loaded goes after its answer."""
        self.engine, self.engine_status = engine, status
        for model in {running.model.id for running in self._running.values()}:
            self.unload(model)

    def settle(self, policy: Policy, launch_settings: LaunchSettings) -> None:
        """Changed settings: the policy holds at once, what concerns launches at the next load."""
        self.policy = self._schedule.policy = policy
        self.launch_settings = launch_settings
        if self._brake is not None:
            self._brake.pinned = launch_settings.window is not None

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
                brake=self._brake.status(r.model.id) if self._brake is not None else BrakeStatus(),
                plan=r.child.plan if r.child is not None else r.plan,  # an MLX child's changes while it runs
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
        given_up = tuple(sorted(self._given_up))
        return Status(self.engine_status, tuple(children), tuple(waits), self.notices.recent(), given_up)

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
        running.loading = self._task(self._load(running, effect))
        # Heard of here, not in the task: one that is cancelled before its first step never runs.
        running.loading.add_done_callback(lambda task: self._gone(running) if task.cancelled() else None)
        self._tell("child_loading", running)

    async def _load(self, running: Running, effect: v.Spawn) -> None:
        def progress(value: float) -> None:
            running.progress = value

        engine = self.engine  # the user may choose another meanwhile
        try:
            running.plan = await self._plan_load(engine, running, effect)
            seconds = RESPAWN_SECONDS if effect.reason is v.SpawnReason.BRAKE else None
            async with asyncio.timeout(seconds):
                child = await engine.start(running.plan, progress)
                landed = await self._land(engine, child, running.model, effect)
            running.plan = child.plan  # a load that did not fit may have been tried with another
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to hear of it
            self._load_failed(running, effect, error)
            return
        running.child, running.loading = child, None
        if running.stop is not None:  # the stop came in the very moment the load ended
            await child.stop(hurry=running.stop is v.StopReason.CLOSING)
            self._gone(running)
            return
        asyncio.ensure_future(child.died).add_done_callback(lambda died: self._died(running, died.result()))
        self._loaded(running, child, landed, effect)
        self._post(v.ChildReady(self.clock(), running.id, child.facts.slots))

    async def _land(self, engine: Engine, child: Child, model: Model, effect: v.Spawn) -> Landed:
        """Look at a child that was just started; where that fails, or is cancelled, the child is gone again."""
        respawned = effect.reason is v.SpawnReason.BRAKE
        try:
            return await asyncio.to_thread(engine.landed, child, model.facts, respawned=respawned)
        except BaseException:
            await child.stop()
            raise

    async def _plan_load(self, engine: Engine, running: Running, effect: v.Spawn) -> LaunchPlan:
        """The plan of a real load: with what others hold, what is free now, and what the brake remembers."""
        model, cap = running.model, effect.cap
        if self._brake is not None:
            cap = self._brake.cap_for(model, effect.reason, effect.cap)
        respawn = effect.reason is v.SpawnReason.BRAKE
        settings = replace(
            self.launch_settings,
            cap=cap,
            respawn=respawn,
            live_window=self._brake.live_window(model) if respawn and self._brake is not None else None,
            reserved_bytes=sum(view.held_bytes(r) for r in self._running.values() if r is not running),
            available_bytes=await asyncio.to_thread(self._available_bytes),
        )
        settings = await asyncio.to_thread(engine.at_load, self.machine, settings)
        return engine.plan(model.id, model.facts, self.machine, settings)

    def _available_bytes(self) -> int | None:
        """What can be had without swapping, bounded by our own container. Blocking."""
        return self.sensor.read().available_bytes if self.sensor is not None else None

    def _loaded(self, running: Running, child: Child, landed: Landed, effect: v.Spawn) -> None:
        """Say what a user has to know of a load."""
        model, window = running.model, child.facts.allocated_window
        self._tell("child_ready", running, seconds=round(child.load_seconds, 3))
        idle = model.id in self._idle_reaped
        self._idle_reaped.discard(model.id)
        self._given_up.discard(model.id)
        said = self._brake is not None and self._brake.spawned(model, effect.reason, child, landed)
        if idle and not said:
            self.say(Reloaded(model.id, model.name, "idle", child.load_seconds, window), next_turn=True)
        sentence = view.surplus(running)
        if sentence is not None:
            log.warning("%s", sentence)
        bound = view.memory_bound(running.plan, model)
        if bound is not None and effect.reason is v.SpawnReason.TURN:
            self.say(bound, next_turn=True)

    def _load_failed(self, running: Running, effect: v.Spawn, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            error = LoadTimedOut(running.model.name, detail=f"{RESPAWN_SECONDS:.0f} s")
        if not isinstance(error, EngineError):
            log.error("loading %s failed by a fault of ours", running.model.id, exc_info=error)
        del self._running[running.id]
        if self._brake is not None:
            self._brake.spawn_failed(running.model, effect.reason, error)
        shown = unserved(v.LoadFailure(error), running.model.name)
        log.warning("%s", shown.sentence)
        self.say(LoadFailedNotice(running.model.id, shown.sentence, shown.code, shown.tail))
        self._tell("load_failed", running, code=shown.code)
        self._post(v.LoadFailed(self.clock(), running.id, error, getattr(error, "crash", True)))

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
        if self._brake is not None and running.stop is not None:
            self._brake.gone(running.model, running.stop)
        self._tell("child_stopped", running)
        self._post(v.MemoryFreed(self.clock(), running.id))

    def _died(self, running: Running, exit_code: int) -> None:
        if running.stop is not None or running.child is None:
            return
        del self._running[running.id]
        if self._brake is not None:
            self._brake.gone(running.model, v.StopReason.USER)
        log.warning("the server of %s ended unasked (%d)", running.model.id, exit_code)
        error = lost(running.model.name, exit_code, running.child.tail)
        cause = error.cause.code if error.cause is not None else None
        said = WorkerCrashed(running.model.id, running.model.name, exit_code, cause, error.tail)
        self.say(said, next_turn=True)
        self._tell("worker_crashed", running, exit_code=exit_code)
        self._post(v.ChildDied(self.clock(), running.id, error))

    def _ticket(self, model: Model, *, by_user: bool = False, hold: bool = False) -> Ticket:
        loop = asyncio.get_running_loop()
        self._last_id += 1
        ticket = Ticket(self._last_id, model, self.clock(), by_user, hold, loop.create_future(), loop.create_future())
        self._tickets[ticket.id] = ticket
        return ticket

    def _ask_hold(self, model: Model, *, ahead: bool) -> Ticket:
        ticket = self._ticket(model, hold=True)
        self._post(v.HoldAsked(self.clock(), ticket.id, model.id, ahead))
        return ticket

    @asynccontextmanager
    async def _held(self, ticket: Ticket) -> AsyncIterator[Child]:
        try:
            yield await ticket.granted
        finally:
            self._drop(ticket)
            self._post(v.HoldEnded(self.clock(), ticket.id))

    def _is_last_of(self, ticket: Ticket) -> bool:
        """Whether nothing else is in flight beside a granted turn: a child with several slots is sampled alone."""
        return any(c.busy == {ticket.id} for c in self._schedule.children.values())

    def _is_free(self, model_id: str) -> bool:
        """Whether the model's child is ready with nothing in flight and nobody waiting for it."""
        wanted = any(item.model == model_id for item in self._schedule.waiting.values())
        return not wanted and any(c.model == model_id and c.idle for c in self._schedule.children.values())

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
