"""The mark in the tray and its menu. It shows a view and forwards intents; it decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

from PySide6.QtCore import QObject, QPoint, QRect, QTimer
from PySide6.QtGui import QCursor, QGuiApplication, QIcon
from PySide6.QtWidgets import QSystemTrayIcon

from app.host.status import ChildState
from app.ui import icons
from app.ui.entries import CopyAddress, Intent
from app.ui.live_menu import LiveMenu
from app.ui.menu import IconState, icon_state, menu, tooltip
from app.ui.no_tray import NoTrayWindow
from app.ui.panel import panel_is_dark
from app.ui.view import TrayView

POLL_MS = 2000
"""Milliseconds between looks for a tray that was not there at the start (ours)."""

PATIENCE_MS = 6000
"""Milliseconds until the window stands in: at login, panels come seconds after the programs (ours)."""

COALESCE_MS = 50
"""Milliseconds in which changes are gathered: faster than the eye, slower than a load's progress (ours)."""

PROGRESS_MS = 500
"""Milliseconds between looks at a load's progress: seen to move, and little work beside the load itself (ours)."""

NOTICE_MS = 10_000
"""Milliseconds that a bubble stays, where the desktop asks: two long sentences read at ease (ours)."""


class Tray(QObject):
    """What stands in the tray; in its absence, the window that does.

    ``view`` is asked for the state whenever something may have changed; ``act`` is told what the user chose,
    on the Qt thread. An address is on the clipboard already when ``act`` hears of it.
    """

    def __init__(
        self,
        view: Callable[[], TrayView],
        act: Callable[[Intent], None],
        parent: QObject | None = None,
        *,
        poll_ms: int = POLL_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        super().__init__(parent)
        self._view = view
        self._act = act
        self._menu = LiveMenu()
        self._menu.aboutToShow.connect(self._render)
        self._menu.aboutToHide.connect(lambda: QTimer.singleShot(0, self, self._show_held_back))
        self._menu.chosen.connect(self._chosen)
        self._held_back: tuple[str, str] | None = None
        """The latest bubble that waits for the menu to close."""
        self._icon: QSystemTrayIcon | None = None
        self._shown: tuple[IconState, bool | None] | None = None
        self._window: NoTrayWindow | None = None
        self._changes = _timer(self, COALESCE_MS, self._render, once=True)
        self._progress = _timer(self, PROGRESS_MS, self._render)
        self._poll = _timer(self, poll_ms, self._look)
        self._patience = _timer(self, patience_ms, self._stand_in, once=True)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self.refresh)

    def show(self) -> None:
        """Appear in the tray, now or as soon as there is one; meanwhile, after some patience, as a window."""
        if self._icon is None and not self._poll.isActive():
            self._poll.start()
            self._patience.start()
            self._look()

    def refresh(self) -> None:
        """Something may have changed: ask for the view again, soon and once for many calls."""
        if not self._changes.isActive():
            self._changes.start()

    def notify(self, title: str, text: str) -> None:
        """Show a bubble. Without a tray nothing pops up: the window's list of notices has the sentence."""
        if self._icon is None:
            return
        if self._menu.isVisible() and not self._icon.geometry().isEmpty():
            self._held_back = (title, text)  # Qt's own bubble, at the mark, would cover the menu
        else:
            self._icon.showMessage(title, text, self._icon.icon(), NOTICE_MS)

    def bring_up(self) -> None:
        """Show the user where the program is: its window, or its menu where that can be opened unasked (X11)."""
        if self._icon is None:
            self._patience.stop()
            if self._window is None:
                self._stand_in()
            assert self._window is not None
            self._window.bring_up()
        elif _opens_menus() and not self._menu.isVisible():
            self._menu.popup(self._beside_icon())

    def close(self) -> None:
        """Take the mark, the menu and the window away; no intent comes after this."""
        for timer in (self._changes, self._progress, self._poll, self._patience):
            timer.stop()
        QGuiApplication.styleHints().colorSchemeChanged.disconnect(self.refresh)
        if self._icon is not None:
            self._icon.hide()
            self._icon.deleteLater()
            self._icon = None
        self._drop_window()
        self._held_back = None
        self._menu.chosen.disconnect(self._chosen)
        self._menu.hide()
        self._menu.deleteLater()

    def _show_held_back(self) -> None:
        if self._held_back is not None and not self._menu.isVisible():
            (title, text), self._held_back = self._held_back, None
            self.notify(title, text)

    def _look(self) -> None:
        if not QSystemTrayIcon.isSystemTrayAvailable():
            return
        self._poll.stop()
        self._patience.stop()
        self._drop_window()
        # One that was made before the tray came stays invisible for ever: this is a new one.
        self._icon = QSystemTrayIcon(self)
        self._icon.activated.connect(self._activated)
        self._render()
        self._icon.setContextMenu(self._menu)
        self._icon.show()

    def _stand_in(self) -> None:
        self._window = NoTrayWindow()
        self._window.chosen.connect(self._chosen)
        self._render()
        self._window.show()

    def _drop_window(self) -> None:
        if self._window is not None:
            self._window.hide()
            self._window.deleteLater()
            self._window = None

    def _render(self) -> None:
        view = self._view()
        entries = menu(view)
        if any(child.state is ChildState.LOADING for child in view.status.children):
            if not self._progress.isActive():
                self._progress.start()
        else:
            self._progress.stop()
        self._menu.show_entries(entries)
        if self._window is not None:
            self._window.show_entries(entries)
        if self._icon is not None:
            self._icon.setToolTip(tooltip(view))
            shown = (icon_state(view), panel_is_dark())
            if shown != self._shown:
                self._shown = shown
                self._icon.setIcon(_icon(*shown))

    def _activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        # X11 panels know no menu on the left button of their own, and people try that one first.
        if reason is QSystemTrayIcon.ActivationReason.Trigger and _opens_menus():
            self._menu.popup(self._beside_icon())

    def _beside_icon(self) -> QPoint:
        """Where the menu does not cover the mark; at the mouse, where a panel keeps the mark's place to itself."""
        box = self._icon.geometry() if self._icon is not None else QRect()
        screen = QGuiApplication.screenAt(box.center())
        if box.isEmpty() or screen is None:
            return QCursor.pos()
        if box.center().y() < screen.geometry().center().y():
            return box.bottomLeft() + QPoint(0, 1)
        return box.topLeft() - QPoint(0, self._menu.sizeHint().height())

    def _chosen(self, intent: Intent) -> None:
        if isinstance(intent, CopyAddress):
            QGuiApplication.clipboard().setText(intent.url)
        self._act(intent)


def _opens_menus() -> bool:
    """Whether a menu that is opened by us behaves: on Windows it does not close when one clicks beside it."""
    return QGuiApplication.platformName() == "xcb"


def _icon(state: IconState, dark: bool | None) -> QIcon:
    icon = icons.icon(state, dark)
    icon.setIsMask(sys.platform == "darwin")  # its menu bar gives the mark its own colour
    return icon


def _timer(parent: QObject, interval_ms: int, then: Callable[[], None], *, once: bool = False) -> QTimer:
    timer = QTimer(parent)
    timer.setInterval(interval_ms)
    timer.setSingleShot(once)
    timer.timeout.connect(then)
    return timer
