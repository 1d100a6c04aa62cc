"""A QMenu that shows entries and keeps in step with them while it is open."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QAction, QActionGroup, QGuiApplication, QPalette
from PySide6.QtWidgets import QMenu, QWidget

from app.ui import icons
from app.ui.entries import Action, Entry, Intent, Label, Separator, Submenu, shape, shortened

MENU_CHARACTERS = 80
"""Longest line of a menu: about 560 pixels in a common font, which every screen has (ours)."""

LABEL_INK = 0.72
"""How much of a label's ink is the text's, the rest the background's: read at ease, seen to be no button."""


class LiveMenu(QMenu):
    """Renders entries; ``chosen`` carries the ``Intent`` of the one that was picked, submenus included.

    Entries of the same kinds and intents in the same order are changed in place: hosts that read the menu
    through D-Bus keep their ids, and a click on its way is neither lost nor given another meaning. Any other
    change waits until an open menu has closed.
    """

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: tuple[Entry, ...] = ()
        self._waiting: tuple[Entry, ...] | None = None
        self._rows: list[QAction] = []
        self._menus: list[LiveMenu] = []
        self.setToolTipsVisible(True)
        self.aboutToShow.connect(lambda: self.setPalette(_with_dark_labels(QGuiApplication.palette())))
        # Not in the signal itself: it comes before the action that was picked has fired.
        self.aboutToHide.connect(lambda: QTimer.singleShot(0, self, self._catch_up))

    def show_entries(self, entries: tuple[Entry, ...]) -> None:
        """Show these from now on."""
        self._waiting = None
        if entries == self._entries:
            return
        if shape(entries) == shape(self._entries):
            self._entries = entries
            self._update()
        elif self.isVisible():
            self._waiting = entries
        else:
            self._entries = entries
            self._rebuild()
            self._update()

    def _catch_up(self) -> None:
        if self._waiting is not None and not self.isVisible():
            self.show_entries(self._waiting)

    def _rebuild(self) -> None:
        self.clear()
        for submenu in self._menus:
            submenu.deleteLater()  # clear() leaves them to their parent
        self._rows, self._menus = [], []
        for entry in self._entries:
            if isinstance(entry, Submenu):
                submenu = LiveMenu(self)
                submenu.chosen.connect(self.chosen)
                self._menus.append(submenu)
                self._rows.append(self.addMenu(submenu))
            elif isinstance(entry, Separator):
                self._rows.append(self.addSeparator())
            else:
                row = QAction(self)
                if isinstance(entry, Action):
                    row.triggered.connect(lambda _checked=False, intent=entry.intent: self._choose(intent))
                    if entry.radio:
                        # Alone in its group: several may be checked, and it is only the group that draws a dot.
                        group = QActionGroup(row)
                        group.setExclusionPolicy(QActionGroup.ExclusionPolicy.ExclusiveOptional)
                        group.addAction(row)
                self.addAction(row)
                self._rows.append(row)

    def _choose(self, intent: Intent) -> None:
        self._update()  # Qt has checked the row already; what is so, the entries say
        self.chosen.emit(intent)

    def _update(self) -> None:
        submenus = iter(self._menus)
        for row, entry in zip(self._rows, self._entries, strict=True):
            if not isinstance(entry, Separator):
                row.setText(_line(entry.text))
                row.setToolTip(_whole(entry.text))
            match entry:
                case Label():
                    row.setIcon(icons.dot(entry.tone))
                    row.setEnabled(False)
                case Action():
                    row.setEnabled(entry.enabled)
                    row.setCheckable(entry.checked is not None)
                    row.setChecked(bool(entry.checked))
                case Submenu():
                    row.setEnabled(entry.enabled)
                    next(submenus).show_entries(entry.entries)
                case Separator():
                    pass


def _line(text: str) -> str:
    """One line of a menu; an ampersand would mark a shortcut."""
    return shortened(" ".join(text.split()), MENU_CHARACTERS).replace("&", "&&")


def _whole(text: str) -> str:
    """The tip for a line that is cut: all of the text, wrapped. None for one that is whole."""
    return f"<p>{escape(text)}</p>" if len(" ".join(text.split())) > MENU_CHARACTERS else ""


def _with_dark_labels(palette: QPalette) -> QPalette:
    """Qt greys what is disabled until it is hard to read; labels are there to be read."""
    ink, paper = palette.color(QPalette.ColorRole.WindowText), palette.color(QPalette.ColorRole.Window)

    def mixed(a: int, b: int) -> int:
        return round(LABEL_INK * a + (1 - LABEL_INK) * b)

    red, green = mixed(ink.red(), paper.red()), mixed(ink.green(), paper.green())
    ink.setRgb(red, green, mixed(ink.blue(), paper.blue()))
    for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, ink)
    return palette
