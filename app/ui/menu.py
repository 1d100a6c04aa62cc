"""What the tray says: a value made from the host's status. Pure, no Qt; the tray and the window render it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from app.host.status import ChildState, ChildStatus, NoticeStatus, WindowStatus
from app.ui.entries import (
    Action,
    CopyAddress,
    Entry,
    Label,
    OpenLog,
    Quit,
    StartWithSystem,
    Submenu,
    Tone,
    UseCpu,
    grouped,
    shortened,
)
from app.ui.models_menu import models_menu
from app.ui.view import TrayView, held, percent, when

RECENT_NOTICES = 10
"""Notices in the submenu: what fits beside a menu on a 768-pixel screen with room to spare (ours)."""

TOOLTIP_CHARACTERS = 127
"""Windows holds 128 UTF-16 units with the closing zero (``NOTIFYICONDATAW.szTip``)."""

MEMORY_BOUNDS = frozenset({"memory", "free memory", "brake"})
"""Values of ``WindowStatus.bound_by`` that blame memory; the others are the model's or the user's choice."""

REDUCED_BOUNDS = frozenset({"free memory", "brake"})
"""The bounds under which this load's window is smaller than the machine could hold when at rest."""


class IconState(StrEnum):
    """What the mark in the tray shows."""

    IDLE = "idle"
    LOADING = "loading"
    SERVING = "serving"
    REDUCED = "reduced"
    PROBLEM = "problem"


def menu(view: TrayView) -> tuple[Entry, ...]:
    """The entries from top to bottom; groups that are empty leave no separator behind."""
    models: tuple[Entry, ...] = (*_state(view), models_menu(view))
    return grouped(models, _endpoint(view), _machine(view), _end(view))


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
    for choice in view.choices():
        labels.append(Label(f"Next: {view.name(choice.model)}{_after(when(choice, view.status))}"))
    waiting = sum(not turn.by_user for turn in view.status.waiting)
    if waiting:
        labels.append(Label("1 request waits" if waiting == 1 else f"{waiting:,} requests wait"))
    return tuple(labels)


def _after(time: str) -> str:
    return "" if time == "next" else f", {time}"


def _child(child: ChildStatus, name: str) -> Iterator[Label]:
    match child.state:
        case ChildState.LOADING:
            yield Label(f"Loading {name}…" + percent(child.progress))
        case ChildState.STOPPING:
            yield Label(f"Unloading {name}…")
        case ChildState.READY:
            yield Label(" · ".join((name, *_tokens(child.window), *_answers(child.busy))))
            yield from _bound(child.window)


def _tokens(window: WindowStatus) -> Iterator[str]:
    tokens = held(window)
    if tokens is not None:
        yield f"{tokens:,} tokens"


def _answers(busy: int) -> Iterator[str]:
    if busy > 0:
        yield "answering" if busy == 1 else f"answering {busy}"


def _bound(window: WindowStatus) -> Iterator[Label]:
    tokens = held(window)
    if window.bound_by not in MEMORY_BOUNDS or tokens is None or window.trained is None:
        return
    if tokens < window.trained:
        yield Label(f"Memory holds {tokens:,} of {window.trained:,}", Tone.AMBER)


def _is_reduced(child: ChildStatus) -> bool:
    return child.brake.cap is not None or child.window.bound_by in REDUCED_BOUNDS


def _endpoint(view: TrayView) -> tuple[Entry, ...]:
    if view.base_url is None:
        return (Label("The endpoint is not open"),)
    return (Label(view.base_url), Action("Copy address", CopyAddress(view.base_url), not view.closing))


def _machine(view: TrayView) -> tuple[Entry, ...]:
    engine = view.status.engine
    line = f"Engine: {engine.name.upper()}" + (f" — {engine.reason}" if engine.reason else "")
    recent = tuple(_notice(notice, view.zone) for notice in view.status.notices[: -RECENT_NOTICES - 1 : -1])
    doubted = engine.proposed is not None
    return (
        Label(line, Tone.RED if doubted else Tone.PLAIN),
        *((Action("Use the CPU engine instead", UseCpu(), not view.closing),) if doubted else ()),
        *((Submenu("Recent", recent),) if recent else ()),
        Action("Open log", OpenLog(), not view.closing),
        *_autostart(view),
    )


def _autostart(view: TrayView) -> Iterator[Action]:
    if view.autostart is not None:
        change = StartWithSystem(not view.autostart)
        yield Action("Start with the system", change, not view.closing, checked=view.autostart)


def _notice(notice: NoticeStatus, zone: tzinfo | None) -> Label:
    at = datetime.fromtimestamp(notice.at, tz=UTC).astimezone(zone)
    return Label(f"{at:%H:%M} {notice.text}")


def _end(view: TrayView) -> tuple[Entry, ...]:
    return (Action("Quit", Quit(), not view.closing),)
