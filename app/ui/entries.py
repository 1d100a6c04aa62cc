"""What a menu is made of, and what its entries ask for. Pure, no Qt; the tray and the window render it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class CopyAddress:
    """Put the endpoint's address on the clipboard (the tray has done so before it forwards this)."""

    url: str


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Have this model loaded: at once, or after the answer that another one gives."""

    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop the child of this model; while it loads or waits to be loaded, give that up."""

    model: str


@dataclass(frozen=True, slots=True)
class PinModel:
    """Keep this model loaded once it is, or no longer."""

    model: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Rescan:
    """Look for models again."""


@dataclass(frozen=True, slots=True)
class StartWithSystem:
    """Start when the user logs in, or no longer."""

    on: bool


@dataclass(frozen=True, slots=True)
class UseCpu:
    """Run models on the processor instead of the graphics card."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Show the log in the desktop's own viewer."""


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """Show the folder of models in the desktop's file manager."""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program."""


Intent = CopyAddress | LoadModel | Unload | PinModel | Rescan | StartWithSystem | UseCpu | OpenLog | OpenFolder | Quit
"""What the user asked for. The composition root decides what becomes of it."""


class Tone(StrEnum):
    """How much a line wants to be seen."""

    PLAIN = "plain"
    AMBER = "amber"
    RED = "red"


@dataclass(frozen=True, slots=True)
class Label:
    """A line to read."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Action:
    """A line to choose. ``checked`` is None where there is nothing to check."""

    text: str
    intent: Intent
    enabled: bool = True
    checked: bool | None = None
    radio: bool = False
    """The check is drawn as a dot in a ring: one of several, where a hook is a thing of its own."""


@dataclass(frozen=True, slots=True)
class Separator:
    """A line between groups."""


@dataclass(frozen=True, slots=True)
class Submenu:
    """A menu in the menu."""

    text: str
    entries: tuple[Entry, ...]
    enabled: bool = True


Entry = Label | Action | Separator | Submenu


def grouped(*groups: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The groups with separators between them; those that are empty leave none behind."""
    entries: list[Entry] = []
    for group in filter(None, groups):
        if entries:
            entries.append(Separator())
        entries.extend(group)
    return tuple(entries)


def shape(entries: tuple[Entry, ...]) -> list[tuple[type[Entry], Intent | None]]:
    """What stays when entries are changed in place: above all, what a click on each means."""
    return [(type(entry), entry.intent if isinstance(entry, Action) else None) for entry in entries]


def shortened(text: str, characters: int) -> str:
    """``text`` in at most so many characters (at least 1), with an ellipsis where something was cut."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def shortened_inside(text: str, characters: int) -> str:
    """The same with the cut in the middle: names of models differ at their ends (``…-Instruct-Q4_K_M``)."""
    if len(text) <= characters:
        return text
    tail = (characters - 1) // 2
    head = text[: characters - 1 - tail].rstrip()
    return head + "…" + (text[-tail:].lstrip() if tail else "")
