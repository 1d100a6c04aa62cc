"""The window that stands in for the tray where a desktop has none: the same entries, as lines and buttons."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QCheckBox,
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
from app.ui.entries import Action, Entry, Intent, Label, Separator, Submenu, Tone, shape
from app.ui.live_menu import LiveMenu

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

    A submenu of lines is written out; one with something to choose opens from a button. Entries of the same kinds
    and intents in the same order are changed in place: a press on its way is not lost. Closing the window minimises
    it; the first time it says so before.
    """

    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setWindowTitle("Plimsoll")
        self._entries: tuple[Entry, ...] = ()
        self._parts: list[QWidget] = []
        """One for each entry."""
        self._menus: dict[str, LiveMenu] = {}
        """By title. They outlive their buttons, so that an open one stays open."""
        self._hint: QMessageBox | None = None
        self._body = QWidget(self)
        frame = QVBoxLayout(self)
        frame.setContentsMargins(MARGIN, MARGIN, MARGIN, MARGIN)
        frame.setSizeConstraint(QLayout.SizeConstraint.SetFixedSize)
        frame.addWidget(self._body)

    def show_entries(self, entries: tuple[Entry, ...]) -> None:
        """Show these from now on; the keyboard stays where it was."""
        before, self._entries = self._entries, tuple(_written_out(entries))
        if self._entries == before:
            return
        if shape(self._entries) != shape(before):
            focused = next((_key(e) for e, part in zip(before, self._parts, strict=True) if part.hasFocus()), None)
            self._rebuild()
            for entry, part in zip(self._entries, self._parts, strict=True):
                if focused is not None and _key(entry) == focused:
                    part.setFocus()
        for entry, part in zip(self._entries, self._parts, strict=True):
            self._update(entry, part)

    def bring_up(self) -> None:
        """Put the window before the others, minimised or not."""
        self.showNormal()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        """Minimise instead."""
        event.ignore()
        if self._hint is not None:
            self.showMinimized()
            return
        self._hint = QMessageBox(QMessageBox.Icon.Information, "Plimsoll", HINT, parent=self)
        self._hint.finished.connect(self.showMinimized)
        self._hint.open()

    def _rebuild(self) -> None:
        body = QWidget(self)
        body.setFixedWidth(WIDTH)
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        self._parts = []
        for are_buttons, run in groupby(self._entries, lambda entry: isinstance(entry, Action | Submenu)):
            parts = [self._part(entry) for entry in run]
            self._parts += parts
            if are_buttons:
                row = QHBoxLayout()
                column.addLayout(row)
                for part in parts:
                    row.addWidget(part)
                row.addStretch()
            else:
                for part in parts:
                    column.addWidget(part)
        frame = self.layout()
        assert frame is not None
        frame.replaceWidget(self._body, body)
        self._body.hide()
        self._body.deleteLater()
        self._body = body

    def _part(self, entry: Entry) -> QWidget:
        match entry:
            case Label():
                return _Line()
            case Separator():
                return _rule()
            case Action():
                button: QAbstractButton = QPushButton() if entry.checked is None else QCheckBox()
                button.clicked.connect(lambda: self._choose(entry.intent))
                return button
            case Submenu():
                opener = QPushButton()
                opener.setMenu(self._menu(entry.text))
                return opener

    def _menu(self, title: str) -> LiveMenu:
        if title not in self._menus:
            self._menus[title] = LiveMenu(self)
            self._menus[title].chosen.connect(self.chosen)
        return self._menus[title]

    def _update(self, entry: Entry, part: QWidget) -> None:
        match entry, part:
            case Label(), _Line():
                part.show_label(entry)
            case Action(), QAbstractButton():
                part.setText(entry.text.replace("&", "&&"))
                part.setEnabled(entry.enabled)
                part.setChecked(bool(entry.checked))
            case Submenu(), QAbstractButton():
                part.setText(entry.text.replace("&", "&&"))
                part.setEnabled(entry.enabled)
                self._menus[entry.text].show_entries(entry.entries)

    def _choose(self, intent: Intent) -> None:
        for entry, part in zip(self._entries, self._parts, strict=True):
            self._update(entry, part)  # Qt has checked the box already; what is so, the entries say
        self.chosen.emit(intent)


class _Line(QWidget):
    """A label, and the dot before it where it has one."""

    def __init__(self) -> None:
        super().__init__()
        self._dot, self._text = QLabel(), QLabel()
        self._text.setTextFormat(Qt.TextFormat.PlainText)
        self._text.setWordWrap(True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self._dot)
        row.addWidget(self._text, stretch=1)

    def show_label(self, label: Label) -> None:
        """Show this one."""
        self._text.setText(label.text)
        self._dot.setPixmap(icons.dot(label.tone).pixmap(icons.DOT_SIZE))
        self._dot.setVisible(label.tone is not Tone.PLAIN)


def _written_out(entries: tuple[Entry, ...]) -> Iterator[Entry]:
    for entry in entries:
        if isinstance(entry, Submenu) and all(isinstance(inner, Label) for inner in entry.entries):
            yield Label(f"{entry.text}:")
            yield from entry.entries
        else:
            yield entry


def _key(entry: Entry) -> Intent | str | None:
    """What makes it the same button in another arrangement."""
    return entry.intent if isinstance(entry, Action) else entry.text if isinstance(entry, Submenu) else None


def _rule() -> QFrame:
    rule = QFrame()
    rule.setFrameShape(QFrame.Shape.HLine)
    rule.setFrameShadow(QFrame.Shadow.Sunken)
    return rule
