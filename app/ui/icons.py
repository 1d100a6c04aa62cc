"""The mark: a Plimsoll line, a ring crossed by a bar, drawn anew and on whole pixels for every size.

The water in the ring tells the state, by its shape first and its colour second: a colour-blind eye and the
one-colour menu bar of macOS read it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPainterPathStroker, QPixmap

from app.ui.entries import Tone
from app.ui.menu import IconState

SIZES: Final = (16, 22, 24, 32, 48, 64)
"""Logical pixels: what panels ask for (16 Windows, 22 KDE and GNOME, 24 XEmbed, the rest scaled desktops)."""

SCALES: Final = (1, 2)
"""Device pixels per logical pixel."""

DOT_SIZE: Final = 16
"""Logical pixels of the dot beside a menu line: Qt's small icon."""

THICKNESS: Final = 0.10
"""Of bar and ring, of the icon's side; rounded to an even number of pixels: sharp edges around the middle."""

RING: Final = 0.73
"""Outer diameter of the ring, of the icon's side. The mark on a hull has 0.67; the water needs the room."""

PLATE: Final = 0.045
"""How far the plate on a panel of unknown colour stands out, of the icon's side; at least one pixel."""


@dataclass(frozen=True, slots=True)
class Inks:
    """Colours on one kind of panel, as ``#AARRGGBB`` or ``#RRGGBB``."""

    mark: str
    water: str
    amber: str
    red: str
    plate: str | None = None
    """What lies under the whole mark, where the panel's colour is unknown."""


ON_DARK: Final = Inks(mark="#F4F6F8", water="#3FB6F2", amber="#FFB020", red="#FF5A4F")
ON_LIGHT: Final = Inks(mark="#25323C", water="#0B84D0", amber="#D07C00", red="#D32F2F")
ON_UNKNOWN: Final = Inks(mark="#F4F6F8", water="#2FA8E8", amber="#FFA400", red="#F0483E", plate="#E61B262E")


def icon(state: IconState, dark: bool | None) -> QIcon:
    """The mark for a panel that is dark, light, or of a colour that nobody told (None: on its own plate)."""
    inks = ON_UNKNOWN if dark is None else ON_DARK if dark else ON_LIGHT
    result = QIcon()
    for size in SIZES:
        for scale in SCALES:
            shapes = list(_shapes(state, inks, size * scale))
            result.addPixmap(_pixmap(shapes, size, scale))
    return result


def dot(tone: Tone) -> QIcon:
    """A dot in the tone's colour, to stand before a line of a menu; no icon for a plain line."""
    result = QIcon()
    if tone is Tone.PLAIN:
        return result
    colour = ON_UNKNOWN.amber if tone is Tone.AMBER else ON_UNKNOWN.red
    for scale in SCALES:
        side = DOT_SIZE * scale
        pixmap = _pixmap([(_disc(side / 2, side / 4), colour)], DOT_SIZE, scale)
        result.addPixmap(pixmap)
        result.addPixmap(pixmap, QIcon.Mode.Disabled)  # of which Qt would make a grey one
    return result


def _pixmap(shapes: list[tuple[QPainterPath, str]], size: int, scale: int) -> QPixmap:
    pixmap = QPixmap(size * scale, size * scale)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    for shape, colour in shapes:
        painter.fillPath(shape, QColor(colour))
    painter.end()
    pixmap.setDevicePixelRatio(scale)
    return pixmap


@dataclass(frozen=True, slots=True)
class _Mark:
    """Measures in device pixels, on a square canvas with the mark in its middle."""

    side: int
    thick: int
    outer: int
    """Radius of the ring's outer edge."""

    @classmethod
    def on(cls, side: int) -> _Mark:
        return cls(side, max(2, 2 * round(THICKNESS * side / 2)), round(RING * side / 2))

    @property
    def middle(self) -> float:
        return self.side / 2

    @property
    def inner(self) -> int:
        return self.outer - self.thick

    @property
    def under_bar(self) -> float:
        return self.middle + self.thick / 2

    @property
    def depth(self) -> int:
        """From the bar down to the ring, inside."""
        return self.inner - self.thick // 2

    @property
    def bar(self) -> QPainterPath:
        margin = 1 if self.side > SIZES[0] else 0
        box = QRectF(margin, self.middle - self.thick / 2, self.side - 2 * margin, self.thick)
        return _rounded(box, self.thick / 4)

    def below(self, top: float, bottom: float | None = None) -> QPainterPath:
        """The canvas from ``top`` down to ``bottom``, or to its end."""
        end = self.side if bottom is None else bottom
        return _rounded(QRectF(0, top, self.side, end - top), 0)


def _shapes(state: IconState, inks: Inks, side: int) -> Iterator[tuple[QPainterPath, str]]:
    """What to fill, from the back to the front."""
    mark = _Mark.on(side)
    disc, hole = _disc(mark.middle, mark.outer), _disc(mark.middle, mark.inner)
    # Water reaches to the middle of the ring's stroke: two smooth edges that only touch show a seam.
    basin = _disc(mark.middle, mark.inner + mark.thick / 2)
    ring = disc.subtracted(hole)
    if inks.plate is not None:
        yield _grown(disc.united(mark.bar), max(1.0, PLATE * side)), inks.plate
    match state:
        case IconState.IDLE:
            yield ring, inks.mark
            yield mark.bar, inks.mark
        case IconState.LOADING:
            yield ring, inks.mark
            yield ring.intersected(mark.below(mark.under_bar)), inks.water
            yield from ((shape, inks.water) for shape in _dots(mark))
            yield mark.bar, inks.mark
        case IconState.SERVING:
            yield basin.intersected(mark.below(mark.under_bar)), inks.water
            yield ring, inks.mark
            yield mark.bar, inks.mark
        case IconState.REDUCED:
            yield basin.intersected(mark.below(mark.under_bar + round(mark.depth / 2))), inks.amber
            yield ring, inks.mark
            yield mark.bar, inks.amber
        case IconState.PROBLEM:
            slot = mark.below(mark.middle - mark.thick / 2, mark.under_bar).intersected(hole)
            yield disc.united(mark.bar).subtracted(slot), inks.red


def _dots(mark: _Mark) -> Iterator[QPainterPath]:
    """Three dots under the bar; none where the ring is too narrow for dots that stand apart."""
    dot = max(2, 2 * round(mark.depth / 6))
    step = dot + max(1, dot // 2)
    if 2 * step + dot > 1.5 * mark.inner:
        return
    top = mark.under_bar + max(1, (mark.depth - dot) // 3)
    for place in (-1, 0, 1):
        yield _rounded(QRectF(mark.middle - dot / 2 + place * step, top, dot, dot), dot / 4)


def _disc(middle: float, radius: float) -> QPainterPath:
    path = QPainterPath()
    path.addEllipse(QRectF(middle - radius, middle - radius, 2 * radius, 2 * radius))
    return path


def _rounded(box: QRectF, radius: float) -> QPainterPath:
    path = QPainterPath()
    path.addRoundedRect(box, radius, radius)
    return path


def _grown(shape: QPainterPath, by: float) -> QPainterPath:
    stroker = QPainterPathStroker()
    stroker.setWidth(2 * by)
    stroker.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
    return shape.united(stroker.createStroke(shape))
