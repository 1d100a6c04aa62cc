"""What the tray says: a value made from the host's status. Pure, no Qt; the tray and the window render it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from app.host.status import ChildState, ChildStatus, NoticeStatus, Status, WindowStatus

RECENT_NOTICES = 10
"""Notices in the submenu: what fits beside a menu on a 768-pixel screen with room to spare (ours)."""

TOOLTIP_CHARACTERS = 127
"""Windows holds 128 UTF-16 units with the closing zero (``NOTIFYICONDATAW.szTip``)."""

MEMORY_BOUNDS = frozenset({"memory", "free memory", "brake"})
"""Values of ``WindowStatus.bound_by`` that blame memory; the others are the model's or the user's choice."""

REDUCED_BOUNDS = frozenset({"free memory", "brake"})
"""The bounds under which this load's window is smaller than the machine could hold when at rest."""


@dataclass(frozen=True, slots=True)
class CopyAddress:
    """Put the endpoint's address on the clipboard (the tray has done so before it forwards this)."""

    url: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop the child of this model; while it loads, give the load up."""

    model: str


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Show the log in the desktop's own viewer."""


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """Show the folder of models in the desktop's file manager."""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program."""


Intent = CopyAddress | Unload | OpenLog | OpenFolder | Quit
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


class IconState(StrEnum):
    """What the mark in the tray shows."""

    IDLE = "idle"
    LOADING = "loading"
    SERVING = "serving"
    REDUCED = "reduced"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class TrayView:
    """All that the tray shows."""

    status: Status
    base_url: str | None
    """The endpoint's address, ``/v1`` included; None while it is not open."""
    names: Mapping[str, str]
    """Model id to the name people know it by; an id that is missing is shown as it is."""
    closing: bool = False
    problem: str | None = None
    """A sentence that says what is wrong and what to do."""
    zone: tzinfo | None = None
    """Time zone of the notices' clock; None is this machine's."""

    def name(self, model: str) -> str:
        """The display name of a model id."""
        return self.names.get(model, model)


def menu(view: TrayView) -> tuple[Entry, ...]:
    """The entries from top to bottom; groups that are empty leave no separator behind."""
    groups = (_state(view), _endpoint(view), _unload(view), _machine(view), _end(view))
    entries: list[Entry] = []
    for group in filter(None, groups):
        if entries:
            entries.append(Separator())
        entries.extend(group)
    return tuple(entries)


def icon_state(view: TrayView) -> IconState:
    """A problem outranks a load, a load a reduced window, and that a plain one."""
    children = view.status.children
    ready = [child for child in children if child.state is ChildState.READY]
    if view.problem is not None:
        return IconState.PROBLEM
    if any(child.state is ChildState.LOADING for child in children):
        return IconState.LOADING
    if any(_is_reduced(child) for child in ready):
        return IconState.REDUCED
    return IconState.SERVING if ready else IconState.IDLE


def tooltip(view: TrayView) -> str:
    """The same state in a few short lines, at most ``TOOLTIP_CHARACTERS`` long."""
    lines = ["Plimsoll", *(label.text for label in _state(view))]
    return shortened("\n".join(lines), TOOLTIP_CHARACTERS)


def shortened(text: str, characters: int) -> str:
    """``text`` in at most so many characters (at least 1), with an ellipsis where something was cut."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def _state(view: TrayView) -> tuple[Label, ...]:
    labels: list[Label] = []
    if view.problem is not None:
        labels.append(Label(view.problem, Tone.RED))
    if view.closing:
        return (*labels, Label("Quitting…"))
    for child in view.status.children:
        labels.extend(_child(child, view.name(child.model)))
    if not view.status.children:
        labels.append(Label("No model loaded"))
    waiting = len(view.status.waiting)
    if waiting:
        labels.append(Label("1 request waits" if waiting == 1 else f"{waiting:,} requests wait"))
    return tuple(labels)


def _child(child: ChildStatus, name: str) -> Iterator[Label]:
    match child.state:
        case ChildState.LOADING:
            yield Label(f"Loading {name}…" + _percent(child.progress))
        case ChildState.STOPPING:
            yield Label(f"Unloading {name}…")
        case ChildState.READY:
            yield Label(" · ".join((name, *_tokens(child.window), *_answers(child.busy))))
            yield from _bound(child.window)


def _percent(progress: float | None) -> str:
    return "" if progress is None else f" {int(min(max(progress, 0.0), 1.0) * 100)} %"


def _tokens(window: WindowStatus) -> Iterator[str]:
    held = _held(window)
    if held is not None:
        yield f"{held:,} tokens"


def _answers(busy: int) -> Iterator[str]:
    if busy > 0:
        yield "answering" if busy == 1 else f"answering {busy}"


def _bound(window: WindowStatus) -> Iterator[Label]:
    held = _held(window)
    if window.bound_by not in MEMORY_BOUNDS or held is None or window.trained is None:
        return
    if held < window.trained:
        yield Label(f"Memory holds {held:,} of {window.trained:,}", Tone.AMBER)


def _held(window: WindowStatus) -> int | None:
    """Tokens that a conversation may have: what is known best, in the order of how it binds."""
    return next((n for n in (window.working, window.allocated, window.planned) if n is not None), None)


def _is_reduced(child: ChildStatus) -> bool:
    return child.brake.cap is not None or child.window.bound_by in REDUCED_BOUNDS


def _endpoint(view: TrayView) -> tuple[Entry, ...]:
    if view.base_url is None:
        return (Label("The endpoint is not open"),)
    return (Label(view.base_url), Action("Copy address", CopyAddress(view.base_url), not view.closing))


def _unload(view: TrayView) -> tuple[Entry, ...]:
    def action(child: ChildStatus) -> Action:
        verb = "Stop loading" if child.state is ChildState.LOADING else "Unload"
        enabled = child.state is not ChildState.STOPPING and not view.closing
        return Action(f"{verb} {view.name(child.model)}", Unload(child.model), enabled)

    return tuple(action(child) for child in view.status.children)


def _machine(view: TrayView) -> tuple[Entry, ...]:
    engine = view.status.engine
    line = f"Engine: {engine.name.upper()}" + (f" — {engine.reason}" if engine.reason else "")
    recent = tuple(_notice(notice, view.zone) for notice in view.status.notices[: -RECENT_NOTICES - 1 : -1])
    return (
        Label(line),
        *((Submenu("Recent", recent),) if recent else ()),
        Action("Open models folder", OpenFolder(), not view.closing),
        Action("Open log", OpenLog(), not view.closing),
    )


def _notice(notice: NoticeStatus, zone: tzinfo | None) -> Label:
    at = datetime.fromtimestamp(notice.at, tz=UTC).astimezone(zone)
    return Label(f"{at:%H:%M} {notice.text}")


def _end(view: TrayView) -> tuple[Entry, ...]:
    return (Action("Quit", Quit(), not view.closing),)
