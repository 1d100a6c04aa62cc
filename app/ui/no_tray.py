"""The window that stands in for the tray where a desktop has none: the same entries, as lines and buttons."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QMessageBox,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.ui import icons
from app.ui.menu import Action, Entry, Intent, Label, Separator, Submenu, Tone

WIDTH = 420
"""Logical pixels: a common notice in two lines, three buttons in a row (ours)."""

MARGIN = 16
"""Logical pixels around the entries (ours)."""

HINT = (
    "Plimsoll keeps running. This desktop has no tray, so closing the window only minimises it. "
    "Choose Quit to end the program."
)


class NoTrayWindow(QWidget):
    """Renders entries; ``chosen`` carries the ``Intent`` of the button that was pressed.

    Closing it minimises it; the first time it says so before.
    """

    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setWindowTitle("Plimsoll")
        self._entries: tuple[Entry, ...] = ()
        self._body = QWidget(self)
        self._buttons: dict[Intent, QPushButton] = {}
        self._hint: QMessageBox | None = None
        frame = QVBoxLayout(self)
        frame.setContentsMargins(MARGIN, MARGIN, MARGIN, MARGIN)
        frame.setSizeConstraint(QLayout.SizeConstraint.SetFixedSize)
        frame.addWidget(self._body)

    def show_entries(self, entries: tuple[Entry, ...]) -> None:
        """Show these from now on; the keyboard stays where it was."""
        if entries == self._entries:
            return
        focused = next((intent for intent, button in self._buttons.items() if button.hasFocus()), None)
        self._entries = entries
        self._buttons = {}
        body = QWidget(self)
        body.setFixedWidth(WIDTH)
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        self._fill(column, entries)
        frame = self.layout()
        assert frame is not None
        frame.replaceWidget(self._body, body)
        self._body.hide()
        self._body.deleteLater()
        self._body = body
        if focused in self._buttons:
            self._buttons[focused].setFocus()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        """Minimise instead."""
        event.ignore()
        if self._hint is not None:
            self.showMinimized()
            return
        self._hint = QMessageBox(QMessageBox.Icon.Information, "Plimsoll", HINT, parent=self)
        self._hint.finished.connect(self.showMinimized)
        self._hint.open()

    def _fill(self, column: QVBoxLayout, entries: tuple[Entry, ...]) -> None:
        for kind, run in groupby(entries, type):
            if kind is Action:
                column.addLayout(self._row(entry for entry in run if isinstance(entry, Action)))
                continue
            for entry in run:
                if isinstance(entry, Label):
                    column.addLayout(_line(entry))
                elif isinstance(entry, Separator):
                    column.addWidget(_rule())
                elif isinstance(entry, Submenu):
                    column.addLayout(_line(Label(f"{entry.text}:")))
                    self._fill(column, entry.entries)

    def _row(self, actions: Iterable[Action]) -> QHBoxLayout:
        row = QHBoxLayout()
        for action in actions:
            row.addWidget(self._button(action))
        row.addStretch()
        return row

    def _button(self, action: Action) -> QPushButton:
        button = QPushButton(action.text.replace("&", "&&"))
        button.setEnabled(action.enabled)
        button.setCheckable(action.checked is not None)
        button.setChecked(bool(action.checked))
        button.clicked.connect(lambda: self.chosen.emit(action.intent))
        self._buttons[action.intent] = button
        return button


def _line(label: Label) -> QHBoxLayout:
    line = QHBoxLayout()
    if label.tone is not Tone.PLAIN:
        dot = QLabel()
        dot.setPixmap(icons.dot(label.tone).pixmap(icons.DOT_SIZE))
        line.addWidget(dot)
    text = QLabel(label.text)
    text.setTextFormat(Qt.TextFormat.PlainText)
    text.setWordWrap(True)
    text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    line.addWidget(text, stretch=1)
    return line


def _rule() -> QFrame:
    rule = QFrame()
    rule.setFrameShape(QFrame.Shape.HLine)
    rule.setFrameShadow(QFrame.Shadow.Sunken)
    return rule
