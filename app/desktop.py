"""The composition of the run with a tray: the application's parts behind the tray's face."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from app import paths
from app.application import AlreadyRunning, Application, on_signals
from app.autostart import Autostart, AutostartError, for_this_system, start_command
from app.commands import say, say_ready
from app.events import Event
from app.host.model import Model
from app.host.refused import Unserved
from app.library.records import ModelRecord
from app.paths import HomeError
from app.settings import SettingsError
from app.survey import Options
from app.ui.entries import (
    CopyAddress,
    Intent,
    LoadModel,
    OpenFolder,
    OpenLog,
    PinModel,
    Quit,
    Rescan,
    StartWithSystem,
    Unload,
    UseCpu,
)
from app.ui.loop import run
from app.ui.single_instance import FirstInstance, raise_first, server_name
from app.ui.tray import Tray
from app.ui.view import ModelView, TrayView, distinct_names, given_up
from engines import EngineError

log = logging.getLogger(__name__)

UNSAID = frozenset({"model_pinned", "waited_too_long"})
"""Codes of refusals that the host does not tell the user by itself: a client that is refused hears it instead."""


def run_in_tray(options: Options) -> int:
    """Run until Quit or a signal; returns the exit status."""
    return run(lambda _: _tray(options))


async def _tray(options: Options) -> int:
    name = server_name(paths.home(options.home).root)
    try:
        opened = await Application.open(options)
    except AlreadyRunning as running:
        if not await raise_first(name):
            raise
        say(running.sentence)
        return 0
    async with opened as app:
        face = _Face(app, for_this_system())
        on_signals(asyncio.get_running_loop(), app.stop)
        await face.look_at_autostart()
        face.tray.show()
        first = FirstInstance(name, face.started_again)
        unlisten = app.bus.listen(face.happened)
        say_ready(app)
        try:
            await app.stopping.wait()
            face.closing = True
            face.tray.refresh()
        finally:
            first.close()
            unlisten()
            await face.close()
    return 0


@dataclass(frozen=True, slots=True)
class NotDone:
    """What the user chose could not be done. The error owns the sentence."""

    sentence: str
    code: str
    model: str | None = None
    kind = "not_done"

    @property
    def numbers(self) -> Mapping[str, int | float | str]:
        """The error's code."""
        return {"code": self.code}


class _Face:
    """Shows the application in the tray and carries out what the user chooses."""

    def __init__(self, app: Application, autostart: Autostart) -> None:
        self._app = app
        self._autostart = autostart
        self._starts: bool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self.tray = Tray(self.view, self.act)

    def view(self) -> TrayView:
        records = self._app.library.records
        names = distinct_names({record.id: record.name for record in records})
        return TrayView(
            status=self._app.host.status(),
            base_url=self._app.base_url,
            names=names,
            models=tuple(self._models(names)),
            closing=self.closing,
            problem=self._app.surroundings.missing_server,
            autostart=self._starts,
        )

    def act(self, intent: Intent) -> None:
        match intent:
            case LoadModel(model):
                self._choose(model)
            case Unload(model):
                self._app.host.unload(model)
            case PinModel(model, pinned):
                self._do(self._pin(model, pinned))
            case Rescan():
                self._do(self._rescan())
            case StartWithSystem(on):
                self._do(self._start_with_system(on))
            case UseCpu():
                self._do(self._use_cpu())
            case OpenLog():
                _open(str(self._app.surroundings.home.log_file))
            case OpenFolder():
                _open(str(self._app.surroundings.home.models))
            case Quit():
                self._app.stop()
            case CopyAddress():
                pass  # it is on the clipboard already
        self.tray.refresh()

    def happened(self, event: Event) -> None:
        self.tray.refresh()
        if event.kind == "notice":
            self.tray.notify("Plimsoll", str(event.data["text"]))

    def started_again(self) -> None:
        self.tray.bring_up()
        self.tray.notify("Plimsoll", f"Plimsoll is already running at {self._app.base_url}")

    async def look_at_autostart(self) -> None:
        try:
            self._starts = await asyncio.to_thread(self._autostart.enabled)
        except AutostartError as error:
            log.warning("%s", error.sentence)
            self._starts = None
        self.tray.refresh()

    async def close(self) -> None:
        """Give up what the user chose and has not got, and take the face away."""
        self.closing = True
        self.tray.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _models(self, names: Mapping[str, str]) -> Iterator[ModelView]:
        for record in self._app.library.records:
            if record.enabled:
                window, pinned = self._planned_window(record), record.id in self._app.pins
                yield ModelView(record.id, names[record.id], record.size_bytes, window, pinned, record.broken)

    def _planned_window(self, record: ModelRecord) -> int | None:
        model = self._as_model(record)
        try:
            return None if model is None else self._app.host.plan(model).window.planned
        except EngineError:
            return None  # no engine here: the model is still on this machine

    def _as_model(self, record: ModelRecord) -> Model | None:
        """A record as the host wants it; None for a broken one."""
        if record.facts is None:
            return None
        return Model(record.id, record.name, record.facts, pinned=record.id in self._app.pins)

    def _model(self, model_id: str) -> Model | None:
        """The model of an id; None for one that has gone or broken since the menu was drawn."""
        record = next((record for record in self._app.library.records if record.id == model_id), None)
        return None if record is None else self._as_model(record)

    def _choose(self, model_id: str) -> None:
        model = self._model(model_id)
        status = self._app.host.status()
        if model is None or any(turn.by_user and turn.model == model_id for turn in status.waiting):
            return
        if self._app.host.policy.max_models == 1 and not model.traits.small:
            for other in given_up(status, model_id):
                if (rival := self._model(other)) is None or not rival.traits.small:
                    self._app.host.unload(other)
        self._do(self._load(model))

    async def _load(self, model: Model) -> None:
        try:
            await self._app.host.load(model)
        except Unserved as error:
            log.info("the choice of %s came to nothing: %s", model.id, error.sentence)
            if error.code in UNSAID:
                self._app.host.say(NotDone(error.sentence, error.code, model.id))

    async def _pin(self, model_id: str, pinned: bool) -> None:
        try:
            await self._app.pins.set(model_id, pinned)
        except (SettingsError, HomeError) as error:
            self._app.host.say(NotDone(error.sentence, error.code, model_id))

    async def _rescan(self) -> None:
        await self._app.library.rescan()

    async def _use_cpu(self) -> None:
        try:
            await self._app.use_cpu()
        except (SettingsError, HomeError) as error:
            self._app.host.say(NotDone(error.sentence, error.code))

    async def _start_with_system(self, on: bool) -> None:
        try:
            if on:
                await asyncio.to_thread(self._autostart.enable, start_command(_arguments(self._app.options)))
            else:
                await asyncio.to_thread(self._autostart.disable)
        except AutostartError as error:
            self._app.host.say(NotDone(error.sentence, error.code))
        await self.look_at_autostart()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what takes time; the tray follows when it is done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what the user chose failed", exc_info=error)
        if not self.closing:
            self.tray.refresh()


def _arguments(options: Options) -> list[str]:
    """The command line that starts another run like this one, from any folder."""
    home = [] if options.home is None else ["--home", str(options.home.absolute())]
    return ["run", *home, *(part for folder in options.models for part in ("--models", str(folder.absolute())))]


def _open(path: str) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(path))
