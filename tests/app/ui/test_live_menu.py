"""A menu that keeps in step with its entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtCore import QEvent, QPoint
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from app.ui.entries import Action, Entry, Label, LoadModel, OpenLog, Quit, Separator, Submenu, Unload
from app.ui.live_menu import MENU_CHARACTERS, LiveMenu

QUIT = Action("Quit", Quit())


@pytest.fixture
def menu(qtbot: QtBot) -> LiveMenu:
    made = LiveMenu()
    qtbot.addWidget(made)
    return made


def texts(menu: LiveMenu) -> list[str]:
    return [row.text() for row in menu.actions()]


def test_entries_become_rows(menu: LiveMenu):
    menu.show_entries(
        (
            Label("state"),
            Separator(),
            Submenu("Recent", (Label("old"),)),
            Action("Pinned", OpenLog(), enabled=False, checked=True),
            QUIT,
        )
    )
    state, separator, recent, pinned, end = menu.actions()
    assert (state.text(), state.isEnabled()) == ("state", False)
    assert separator.isSeparator()
    submenu: Any = recent.menu()
    assert texts(submenu) == ["old"]
    assert (pinned.isEnabled(), pinned.isCheckable(), pinned.isChecked()) == (False, True, True)
    assert (end.text(), end.isEnabled(), end.isCheckable()) == ("Quit", True, False)


def test_choosing_a_row_tells_its_intent_once(menu: LiveMenu, qtbot: QtBot):
    chosen: list[object] = []
    menu.chosen.connect(chosen.append)
    menu.show_entries((Submenu("More", (Action("Log", OpenLog()),)), QUIT))
    menu.actions()[1].trigger()
    submenu: Any = menu.actions()[0].menu()
    submenu.actions()[0].trigger()
    assert chosen == [Quit(), OpenLog()]


def test_a_check_shows_what_is_and_not_that_one_has_clicked(menu: LiveMenu):
    loaded = Action("Qwen", LoadModel("qwen"), checked=True, radio=True)
    other = Action("Gemma", LoadModel("gemma"), checked=False, radio=True)
    pin = Action("Keep Qwen loaded", OpenLog(), checked=False)
    menu.show_entries((loaded, other, pin))
    for row in menu.actions():
        row.trigger()
    assert [row.isChecked() for row in menu.actions()] == [True, False, False]
    menu.show_entries((replace(loaded, checked=False), replace(other, checked=True), replace(pin, checked=True)))
    assert [row.isChecked() for row in menu.actions()] == [False, True, True]


def test_several_dots_may_be_set_and_hooks_are_no_dots(menu: LiveMenu):
    models = tuple(Action(name, LoadModel(name), checked=True, radio=True) for name in "ab")
    menu.show_entries((*models, Action("Keep a loaded", OpenLog(), checked=True)))
    assert [row.isChecked() for row in menu.actions()] == [True, True, True]
    groups = [row.actionGroup() for row in menu.actions()]
    assert [group is not None and group.isExclusive() for group in groups] == [True, True, False]


def test_a_line_that_is_cut_shows_all_of_its_text_under_the_mouse_and_a_whole_one_nothing(menu: LiveMenu, qtbot: QtBot):
    menu.show_entries((Label("broken.gguf <is damaged> " + "x" * MENU_CHARACTERS), Label("short")))
    menu.popup(QPoint(0, 0))
    tips = []
    for row in menu.actions():
        place = menu.actionGeometry(row).center()
        QApplication.sendEvent(menu, QHelpEvent(QEvent.Type.ToolTip, place, menu.mapToGlobal(place)))
        tips.append(QToolTip.text() if QToolTip.isVisible() else "")
        QToolTip.hideText()
        qtbot.waitUntil(lambda: not QToolTip.isVisible())
    assert tips == [f"<p>broken.gguf &lt;is damaged&gt; {'x' * MENU_CHARACTERS}</p>", ""]


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((Label("a"), QUIT), (Label("b"), QUIT), True),
        ((QUIT,), (Action("Quit now", Quit(), enabled=False),), True),
        ((Submenu("a", (Label("x"),)),), (Submenu("a", (Label("y"), Label("x"))),), True),
        ((Action("Unload", Unload("a")),), (Action("Unload", Unload("b")),), False),
        ((Label("a"), QUIT), (QUIT,), False),
    ],
    ids=["text", "enabled", "submenu", "another intent", "another shape"],
)
def test_rows_stay_while_their_meaning_does(
    menu: LiveMenu, before: tuple[Entry, ...], after: tuple[Entry, ...], kept: bool
):
    menu.show_entries(before)
    rows = menu.actions()
    menu.show_entries(after)
    assert (menu.actions() == rows) is kept
    assert texts(menu) == [entry.text for entry in after if not isinstance(entry, Separator)]


def test_an_open_menu_takes_another_shape_only_after_it_has_closed(menu: LiveMenu, qtbot: QtBot):
    menu.show_entries((Label("one"), QUIT))
    menu.popup(QPoint(0, 0))
    menu.show_entries((QUIT,))
    assert texts(menu) == ["one", "Quit"]
    menu.show_entries((Label("two"), QUIT))
    assert texts(menu) == ["two", "Quit"]
    menu.show_entries((QUIT,))
    menu.hide()
    qtbot.waitUntil(lambda: texts(menu) == ["Quit"])


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("Q&A", "Q&&A"),
        ("two\nlines", "two lines"),
        ("x" * 100, "x" * (MENU_CHARACTERS - 1) + "…"),
    ],
)
def test_any_text_is_one_plain_line(menu: LiveMenu, text: str, row: str):
    menu.show_entries((Label(text),))
    assert texts(menu) == [row]
