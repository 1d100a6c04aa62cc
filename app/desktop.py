"""The composition of the run with a tray: the application's parts behind the tray's face."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from app.application import Application, Options, on_signals
from app.commands import say_ready
from app.events import Event
from app.ui.loop import run
from app.ui.menu import CopyAddress, Intent, OpenFolder, OpenLog, Quit, TrayView, Unload
from app.ui.tray import Tray


def run_in_tray(options: Options) -> int:
    """Run until Quit or a signal; returns the exit status."""
    return run(lambda _: _tray(options))


async def _tray(options: Options) -> int:
    async with await Application.open(options) as app:
        face = _Face(app)
        on_signals(asyncio.get_running_loop(), app.stop)
        face.tray.show()
        unlisten = app.bus.listen(face.happened)
        say_ready(app)
        try:
            await app.stopping.wait()
            face.closing = True
            face.tray.refresh()
        finally:
            unlisten()
            face.tray.close()
    return 0


class _Face:
    """Shows the application in the tray and carries out what the user chooses."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self.closing = False
        self.tray = Tray(self.view, self.act)

    def view(self) -> TrayView:
        names: Mapping[str, str] = {record.id: record.name for record in self._app.library.records}
        return TrayView(
            status=self._app.host.status(),
            base_url=self._app.base_url,
            names=names,
            closing=self.closing,
            problem=self._app.surroundings.missing_server,
        )

    def act(self, intent: Intent) -> None:
        match intent:
            case Unload(model):
                self._app.host.unload(model)
            case OpenLog():
                _open(str(self._app.surroundings.home.log_file))
            case OpenFolder():
                _open(str(self._app.surroundings.home.models))
            case Quit():
                self._app.stop()
            case CopyAddress():
                pass  # it is on the clipboard already

    def happened(self, event: Event) -> None:
        self.tray.refresh()
        if event.kind == "notice":
            self.tray.notify("Plimsoll", str(event.data["text"]))


def _open(path: str) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(path))
