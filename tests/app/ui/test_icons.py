"""The mark is there, is sharp, can be read on every panel, and looks different in every state."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QIcon, QImage
from PySide6.QtWidgets import QApplication

from app.ui.entries import Tone
from app.ui.icons import DOT_SIZE, RING, SCALES, SIZES, dot, icon
from app.ui.menu import IconState

pytestmark = pytest.mark.usefixtures("qapp")

PANELS = {
    True: ["#000000", "#20252a", "#2d3436"],
    False: ["#ffffff", "#eff0f1", "#dcdcdc"],
    None: ["#000000", "#20252a", "#808080", "#eff0f1", "#ffffff"],
}
"""Colours of real panels for each answer to whether they are dark."""

ROUGHNESS = 32
"""Steps of alpha by which smoothing may differ from the left to the right."""

LEGIBLE = 3.0
"""Contrast ratio that WCAG 2.1 (1.4.11) asks of graphics."""


drawn = cache(icon)


def image(state: IconState, dark: bool | None, size: int, scale: int) -> QImage:
    made = drawn(state, dark)
    return made.pixmap(QSize(size, size), float(scale)).toImage().convertToFormat(QImage.Format.Format_ARGB32)


def pixels(picture: QImage) -> list[QColor]:
    return [picture.pixelColor(x, y) for y in range(picture.height()) for x in range(picture.width())]


def luminance(colour: QColor) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(colour.redF()) + 0.7152 * linear(colour.greenF()) + 0.0722 * linear(colour.blueF())


def contrast(a: QColor, b: QColor) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [True, False, None])
@pytest.mark.parametrize("state", IconState)
def test_every_size_is_drawn_for_itself_and_in_the_middle(state: IconState, dark: bool | None):
    for size in SIZES:
        for scale in SCALES:
            picture = image(state, dark, size, scale)
            assert picture.width() == picture.height() == size * scale
            mirrored = picture.flipped(Qt.Orientation.Horizontal)
            off = [abs(a.alpha() - b.alpha()) for a, b in zip(pixels(picture), pixels(mirrored), strict=True)]
            assert max(off) <= ROUGHNESS


@pytest.mark.parametrize("dark", PANELS)
@pytest.mark.parametrize("state", IconState)
def test_the_mark_stands_out_from_the_panel(state: IconState, dark: bool | None):
    for size in SIZES:
        solid = [colour for colour in pixels(image(state, dark, size, 1)) if colour.alpha() > 200]
        for panel in map(QColor, PANELS[dark]):
            clear = [colour for colour in solid if contrast(colour, panel) >= LEGIBLE]
            assert len(clear) > size * 1.5, f"{size} px on {panel.name()}"


@pytest.mark.parametrize(("one", "other"), list(combinations(IconState, 2)))
def test_states_differ_in_colour_at_every_size(one: IconState, other: IconState):
    for dark in (True, False, None):
        for size in SIZES:
            assert image(one, dark, size, 1) != image(other, dark, size, 1)


@pytest.mark.parametrize(("one", "other"), list(combinations(IconState, 2)))
def test_states_differ_without_colour_where_the_menu_bar_has_but_one(one: IconState, other: IconState):
    def shape(state: IconState) -> list[int]:
        return [colour.alpha() for colour in pixels(image(state, False, 22, 2))]

    differing = sum(abs(a - b) > 128 for a, b in zip(shape(one), shape(other), strict=True))
    assert differing >= 44


def test_the_bar_has_sharp_edges(qapp: QApplication):
    for size in SIZES:
        picture = image(IconState.IDLE, True, size, 1)
        beside_ring = size // 2 - round(RING * size / 2) - 1
        column = [picture.pixelColor(beside_ring, y).alpha() for y in range(size)]
        assert {alpha for alpha in column if 8 < alpha < 247} == set(), f"{size} px"


def test_a_plain_line_has_no_dot_and_the_others_keep_their_colour_when_disabled():
    assert dot(Tone.PLAIN).isNull()
    colours = set()
    for tone in (Tone.AMBER, Tone.RED):
        pixmap = dot(tone).pixmap(QSize(DOT_SIZE, DOT_SIZE), 1.0, QIcon.Mode.Disabled)
        colours.add(pixmap.toImage().pixelColor(DOT_SIZE // 2, DOT_SIZE // 2).name())
    assert colours == {"#ffa400", "#f0483e"}
