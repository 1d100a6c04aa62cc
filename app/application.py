"""The composition root: builds every part, starts them in order, stops them in reverse."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from filelock import FileLock, Timeout

from app import logs, paths, settings
from app.endpoint import guard
from app.endpoint.management import ManagementRoutes
from app.endpoint.openai import Chosen, OpenAiRoutes
from app.endpoint.relay import Relay
from app.endpoint.server import EndpointServer, bind
from app.endpoint.workers import WorkerRoutes
from app.events import EventBus
from app.host import monitor
from app.host.host import Host
from app.host.notices import EngineDoubted, EngineNotice, OrphansReaped, SettingsRefused
from app.host.schedule import Policy
from app.host.status import EngineStatus
from app.library.library import Library
from app.library.pins import Pins
from app.settings_watch import SettingsWatch
from app.survey import Options, Surroundings, survey
from engines import Choice, Engine, EngineName, Parts, open_engine
from engines.child.ledger import Ledger
from engines.memory import pressure
from engines.nvidia import spill_sensor

log = logging.getLogger(__name__)


class AlreadyRunning(Exception):
    """Another instance holds this home; ``sentence`` says where it serves."""

    code = "already_running"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(slots=True)
class Application:
    """Everything that runs, without a face. ``async with Application.open(options) as app``."""

    options: Options
    surroundings: Surroundings
    log_setup: logs.LogSetup
    lock: FileLock
    make_engine: MakeEngine
    bus: EventBus = field(default_factory=EventBus)
    _host: Host | None = None
    _library: Library | None = None
    _pins: Pins | None = None
    _relay: Relay | None = None
    _server: EndpointServer | None = None
    _names: OpenAiRoutes | None = None
    _watching: list[asyncio.Task[None]] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def open(
        cls,
        options: Options,
        surroundings: Surroundings | None = None,
        make_engine: MakeEngine | None = None,
    ) -> Self:
        """Survey, lock the home, and start all parts. Raises errors with a ``sentence``; then nothing runs.

        ``surroundings``: what to take for the survey, where a benchmark plays another machine; ``make_engine``: what
        to take for the engines of that machine.
        """
        if surroundings is None:
            surroundings = await asyncio.to_thread(survey, options)
        lock = _lock(surroundings.home)
        log_setup = logs.setup(surroundings.home, surroundings.settings.log_level, console=options.console_log)
        app = cls(options, surroundings, log_setup, lock, make_engine or engine_of)
        try:
            await app._start()
        except BaseException:
            await app.close()
            raise
        return app

    async def __aenter__(self) -> Self:
        """Nothing more to do: ``open`` started it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @property
    def host(self) -> Host:
        """The one owner of children."""
        assert self._host is not None
        return self._host

    @property
    def library(self) -> Library:
        """The models of this machine."""
        assert self._library is not None
        return self._library

    @property
    def pins(self) -> Pins:
        """The models that the user keeps loaded."""
        assert self._pins is not None
        return self._pins

    @property
    def base_url(self) -> str:
        """What clients are given."""
        assert self._server is not None
        host = self.surroundings.settings.host
        shown = "127.0.0.1" if host in {"0.0.0.0", "::", "localhost"} else f"[{host}]" if ":" in host else host  # noqa: S104
        return f"http://{shown}:{self._server.port}/v1"

    def ready_facts(self) -> dict[str, object]:
        """The line that says where it serves; ``endpoint.json`` holds the same."""
        assert self._server is not None
        return {"event": "ready", "base_url": self.base_url, "port": self._server.port, "pid": os.getpid()}

    def stop(self) -> None:
        """Ask the run to end. Safe from a signal handler of the loop."""
        self.stopping.set()

    def _pin(self, model: str, pinned: bool) -> None:
        self.host.pin(model, pinned=pinned)

    async def _start(self) -> None:
        s = self.surroundings
        for sentence in s.repaired:
            log.warning("%s", sentence)
        if s.settings.api_key is not None:
            self.log_setup.redactor.register(s.settings.api_key.get_secret_value())
        ledger = Ledger(s.home.ledger)
        reaped = await asyncio.to_thread(ledger.sweep)
        engine = self.make_engine(s, ledger)
        self._library = Library(model_folders(s.home, s.settings, self.options))
        self._host = Host(
            engine=engine,
            engine_status=engine_status(s),
            machine=s.machine,
            policy=policy(s.settings),
            launch_settings=s.launch,
            bus=self.bus,
            sensor=pressure.for_this_system(s.overrides.force_memory_pressure),
            periods=self.options.periods,
        )
        if reaped:
            self._host.say(OrphansReaped(len(reaped)))
        if s.choice.lesser:
            self._host.say(EngineNotice(s.choice.engine.value, s.choice.reason))
        if s.doubt is not None:
            self._host.say(EngineDoubted(s.doubt.sentence, s.doubt.code, s.doubt.proposed_engine))
        await self._library.rescan()
        self._relay = Relay(self._host)
        self._pins = Pins(s.home.settings, s.settings.pinned, self._pin)
        names = OpenAiRoutes(
            self._host, self._library, self._relay, Chosen(s.settings.default_model, pinned=self._pins)
        )
        self._names = names
        workers = WorkerRoutes(self._host, self._library, self._relay, names)
        management = ManagementRoutes(self._host, self._library, self.bus, names)
        listener = bind(s.settings.host, s.settings.port)
        self._server = EndpointServer(
            [*names.routes(), *workers.routes(), *management.routes()], guard_rules(s.settings), listener
        )
        await self._server.start()
        settings_watch = SettingsWatch(s.home.settings, s.settings, s.overrides, self._settle, self._refuse_settings)
        self._watching = [self._task(monitor.watch(self._host)), self._task(settings_watch.watch())]
        paths.write_private(s.home.endpoint_file, json.dumps(self.ready_facts()))
        log.info("serving on %s with the %s engine (%s)", self.base_url, s.choice.engine, s.choice.reason)

    async def use_cpu(self) -> None:
        """Run models on the processor from now on and after a restart; what is loaded is unloaded after its answer.

        Raises ``SettingsError`` or ``HomeError``; then nothing has changed.
        """
        s = self.surroundings
        await asyncio.to_thread(settings.change, s.home.settings, "engine", EngineName.CPU.value)
        choice = Choice(EngineName.CPU, 'the setting engine = "cpu"')
        self.surroundings = replace(s, choice=choice)
        engine = self.make_engine(self.surroundings, Ledger(s.home.ledger))
        self.host.use(engine, engine_status(self.surroundings))

    def _settle(self, chosen: settings.Settings) -> None:
        """Let changed settings act, as each key promises; what acts at the next start is not among them."""
        assert self._server is not None
        assert self._names is not None
        self.surroundings = replace(self.surroundings, settings=chosen)
        if chosen.api_key is not None:
            self.log_setup.redactor.register(chosen.api_key.get_secret_value())
        self.log_setup.set_level(chosen.log_level)
        self.host.settle(policy(chosen), self.surroundings.launch)
        self.pins.replace(chosen.pinned)
        self._names.chosen = Chosen(chosen.default_model, pinned=self.pins)
        self._server.settle(guard_rules(chosen))
        folders = model_folders(self.surroundings.home, chosen, self.options)
        if folders != self.library.folders:
            self.library.folders = folders
            self._watching.append(self._task(self._rescan()))

    def _refuse_settings(self, mistake: str) -> None:
        self.host.say(SettingsRefused(mistake))

    async def _rescan(self) -> None:
        await self.library.rescan()
        self.bus.publish("models", {"count": len(self.library.records)})

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(_say_failure)
        return task

    async def close(self) -> None:
        """Stop everything in reverse; afterwards no process of ours runs. Safe to call twice."""
        for task in self._watching:
            task.cancel()
        self.bus.close()
        closing = [part.close() for part in (self._host,) if part is not None]
        if self._server is not None:
            closing.append(self._server.stop())
            self.surroundings.home.endpoint_file.unlink(missing_ok=True)
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.error("closing failed", exc_info=outcome)
        if self._relay is not None:
            await self._relay.close()
        log.info("closed")
        self._watching, self._server, self._relay = [], None, None
        self.log_setup.close()
        self.lock.release()


MakeEngine = Callable[[Surroundings, Ledger], Engine]
"""Opens the engine of a survey."""


def engine_of(found: Surroundings, ledger: Ledger) -> Engine:
    """The engine that the survey chose."""
    forced = found.overrides.force_memory_pressure
    parts = Parts(
        ledger,
        found.home.child_config,
        found.settings.load_seconds,
        found.missing_server,
        spill=spill_sensor.for_this_system(forced),
    )
    return open_engine(found.choice, parts)


def engine_status(found: Surroundings) -> EngineStatus:
    """The engine as it is shown. Pure."""
    proposed = found.doubt.proposed_engine if found.doubt is not None else None
    return EngineStatus(found.choice.engine.value, found.choice.reason, proposed)


def _say_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a part of the application failed", exc_info=task.exception())


def model_folders(home: paths.Home, chosen: settings.Settings, options: Options) -> tuple[Path, ...]:
    """Where models are looked for, in order."""
    return (home.models, *chosen.models_folders, *(folder.absolute() for folder in options.models))


def policy(chosen: settings.Settings) -> Policy:
    """The schedule's numbers from the settings. Pure."""
    return Policy(
        max_models=chosen.max_models,
        evict_pinned=chosen.evict_pinned,
        idle_seconds=chosen.idle_seconds,
        max_wait_seconds=chosen.max_wait_seconds,
    )


def guard_rules(chosen: settings.Settings) -> guard.GuardRules:
    """Who may ask, from the settings and, on all interfaces, this machine's addresses."""
    interfaces = [] if chosen.loopback else [a.address.split("%")[0] for n in psutil.net_if_addrs().values() for a in n]
    return guard.rules_from(
        bind=chosen.host,
        hosts=chosen.allowed_hosts,
        origins=chosen.allowed_origins,
        key=chosen.api_key.get_secret_value() if chosen.api_key is not None else None,
        interfaces=interfaces,
    )


def _lock(home: paths.Home) -> FileLock:
    lock = FileLock(home.lock, mode=paths.PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise AlreadyRunning(f"Plimsoll already runs with this home{_where(home)}.") from None
    return lock


def _where(home: paths.Home) -> str:
    try:
        return f", at {json.loads(home.endpoint_file.read_text('utf-8'))['base_url']}"
    except (OSError, ValueError, KeyError):
        return ""


def on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Have SIGINT and SIGTERM end the run in order."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGBREAK", signal.SIGTERM)):
        if sys.platform == "win32":
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
        else:
            loop.add_signal_handler(number, stop)
