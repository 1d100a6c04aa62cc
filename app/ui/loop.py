"""Qt and asyncio on one thread and one loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from PySide6.QtCore import QEvent, QTimer, Signal
from PySide6.QtWidgets import QApplication
from qasync import QEventLoop

from app.ui import icons
from app.ui.menu import IconState

APPLICATION = "plimsoll"
"""Name of the application and of its desktop file, without ``.desktop``."""

DISPLAY_NAME = "Plimsoll"

SIGNAL_POLL_MS = 200
"""Milliseconds, Windows only: Python hears of Ctrl+C when it next runs, and Qt's loop may rest for long."""


class NoDisplayError(RuntimeError):
    """There is no desktop to show anything on. Qt would abort the process with a core dump."""

    code = "no_display"

    def __init__(self) -> None:
        super().__init__(
            "There is no display here: neither DISPLAY nor WAYLAND_DISPLAY is set. "
            "Use `plimsoll serve`, which needs none."
        )


class _Application(QApplication):
    quit_asked = Signal()

    def event(self, event: QEvent) -> bool:
        """Cmd+Q, the Dock's Quit and the end of a session all arrive as this event.

        Qt would end its loop at once and leave every coroutine hanging in the air.
        """
        if event.type() is QEvent.Type.Quit:
            self.quit_asked.emit()
            return True
        return super().event(event)


def run(main: Callable[[QApplication], Coroutine[Any, Any, int]]) -> int:
    """Run ``main`` to its end on a Qt application's loop and return what it returns.

    Nothing but the end of ``main`` ends the loop: closing the last window does not, and where the desktop
    asks the program to quit, ``main`` is cancelled (0 is returned if it lets the cancellation through).
    Signals: ``loop.add_signal_handler`` on Linux and macOS, ``signal.signal`` on Windows.

    Raises:
        NoDisplayError: on a Linux machine without a desktop.
    """
    if display_is_missing(sys.platform, os.environ):
        raise NoDisplayError
    app = _Application([APPLICATION])
    app.setApplicationName(APPLICATION)
    app.setApplicationDisplayName(DISPLAY_NAME)
    app.setDesktopFileName(APPLICATION)
    app.setWindowIcon(icons.icon(IconState.SERVING, dark=None))
    app.setQuitOnLastWindowClosed(False)
    if sys.platform == "win32":
        wake_for_signals(app)
    with asyncio.Runner(loop_factory=lambda: QEventLoop(app)) as runner:
        return runner.run(_until_quit(app, main))


def display_is_missing(platform: str, environ: Mapping[str, str]) -> bool:
    """True where Qt would find nothing to draw on. ``platform`` is ``sys.platform``."""
    chosen = ("QT_QPA_PLATFORM", "WAYLAND_DISPLAY", "DISPLAY")
    return platform == "linux" and not any(environ.get(name) for name in chosen)


def wake_for_signals(app: QApplication) -> QTimer:
    """Let Python run now and then, so that its signal handlers do."""
    timer = QTimer(app)
    timer.timeout.connect(lambda: None)
    timer.start(SIGNAL_POLL_MS)
    return timer


async def _until_quit(app: _Application, main: Callable[[QApplication], Coroutine[Any, Any, int]]) -> int:
    asked = False

    def quit_asked() -> None:
        nonlocal asked
        if not asked:  # a second one would interrupt the clean-up that the first began
            asked = True
            task.cancel()

    task = asyncio.ensure_future(main(app))
    app.quit_asked.connect(quit_asked)
    try:
        return await task
    except asyncio.CancelledError:
        if asked and task.cancelled():
            return 0
        raise
    finally:
        app.quit_asked.disconnect(quit_asked)
