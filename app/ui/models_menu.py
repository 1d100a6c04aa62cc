"""The submenu of models: which there are, how each stands, and what can be done with those in play. Pure.

A choice keeps its meaning while its model loads, serves or waits, so that an open menu stays in place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from app.host.status import ChildState
from app.ui.entries import (
    Action,
    Entry,
    Label,
    LoadModel,
    OpenFolder,
    PinModel,
    Rescan,
    Submenu,
    Unload,
    grouped,
    shortened,
    shortened_inside,
)
from app.ui.view import NAME_CHARACTERS, ModelView, TrayView, held, percent, when

LISTED = 16
"""Models in one menu: with what else stands there about 26 lines, which a 768-pixel screen has (ours)."""

MOVED = 4
"""How far a cut between two parts moves, in models: a part then has 24 at most (ours)."""

BROKEN_LISTED = 3
"""Broken models that are listed among the others; more get a submenu of their own (ours)."""

RANGE_CHARACTERS = 20
"""Longest name in the title of a part of a long list (ours)."""

KB, MB, GB = 10**3, 10**6, 10**9
"""Decimal, as file managers and model pages count them."""


def models_menu(view: TrayView) -> Submenu:
    """The submenu. Where there are many models, those in play stand in front, the others in parts by name."""
    by_name = sorted(view.models, key=lambda model: (model.name.casefold(), model.id))
    whole = [model for model in by_name if model.problem is None]
    broken = [model for model in by_name if model.problem is not None]
    lines = (*_whole(view, whole), *_broken(broken)) or (Label("No models here yet"),)
    looking = (
        Action("Look for models again", Rescan(), not view.closing),
        Action("Open models folder", OpenFolder(), not view.closing),
    )
    doing = (*_unload(view), *_keep_loaded(view, whole))
    return Submenu("Models", grouped(lines, doing, looking))


def size(size_bytes: int) -> str:
    """Bytes for people."""
    if size_bytes >= GB:
        return f"{size_bytes / GB:,.1f} GB"
    return f"{size_bytes / MB:.0f} MB" if size_bytes >= MB else f"{size_bytes / KB:.0f} kB"


def crashing(view: TrayView) -> frozenset[str]:
    """Models that are not loaded by themselves any more, and that nobody loads just now."""
    loading = {choice.model for choice in view.choices()} | {child.model for child in view.status.children}
    return frozenset(view.status.given_up) - loading


def _whole(view: TrayView, models: Sequence[ModelView]) -> Iterator[Entry]:
    crashed = crashing(view)
    if len(models) <= LISTED:
        yield from (_model(view, model, crashed) for model in models)
        return
    in_play = {choice.model for choice in view.choices()} | {child.model for child in view.status.children} | crashed
    front = [model for model in models if model.pinned or model.id in in_play]
    yield from (_model(view, model, crashed) for model in front)
    rest = [model for model in models if model not in front]
    for part in _parts(view, rest):
        first, last = (shortened(view.name(model.id), RANGE_CHARACTERS) for model in (part[0], part[-1]))
        title = first if len(part) == 1 else f"{first} – {last}"
        yield Submenu(title, tuple(_model(view, model, crashed) for model in part))


def _parts(view: TrayView, models: Sequence[ModelView]) -> Iterator[Sequence[ModelView]]:
    """As few even parts as keep each short; with very many models, the parts and their number grow alike.

    A cut moves a little where that keeps the models of a family together.
    """
    families = [re.split(r"[^a-z]", view.name(model.id).casefold(), maxsplit=1)[0] for model in models]
    count = math.ceil(len(models) / max(LISTED, math.isqrt(len(models))))
    start = 0
    for part in range(1, count + 1):
        even = len(models) * part // count
        near = range(max(start + 1, even - MOVED), min(len(models), even + MOVED + 1))
        between = [at for at in near if families[at - 1] != families[at]] if part < count else []
        end = min(between, key=lambda at: abs(at - even), default=even)
        yield models[start:end]
        start = end


def _model(view: TrayView, model: ModelView, crashed: frozenset[str]) -> Action:
    child = view.child(model.id)
    facts = (view.name(model.id), size(model.size_bytes), *_standing(view, model, crashed))
    loaded = child is not None and child.state is ChildState.READY
    text = " · ".join((*facts, "pinned") if model.pinned else facts)
    return Action(text, LoadModel(model.id), not view.closing, checked=loaded, radio=True)


def _standing(view: TrayView, model: ModelView, crashed: frozenset[str]) -> Iterator[str]:
    """What its line says of its window, or of what happens to it."""
    child = view.child(model.id)
    choice = next((choice for choice in view.choices() if choice.model == model.id), None)
    if choice is not None:
        yield when(choice, view.status)
    elif child is not None and child.state is ChildState.LOADING:
        yield "loading…" + percent(child.progress)
    elif child is not None and child.state is ChildState.STOPPING:
        yield "unloading…"
    elif model.id in crashed:
        yield "keeps crashing, try again"
    else:
        tokens = held(child.window) if child is not None else model.window
        if tokens is not None:
            yield f"{tokens:,} tokens"


def _broken(models: Sequence[ModelView]) -> tuple[Entry, ...]:
    lines = tuple(Label(f"✕ {_reason(model)}") for model in models)
    return lines if len(lines) <= BROKEN_LISTED else (Submenu(f"✕ {len(lines)} cannot be used", lines),)


def _reason(model: ModelView) -> str:
    """The sentence that says what is wrong; most begin with the file's name by themselves."""
    assert model.problem is not None
    name = shortened_inside(model.name, NAME_CHARACTERS)
    same = model.problem.startswith(model.name)
    return name + model.problem.removeprefix(model.name) if same else f"{name}: {model.problem}"


def _unload(view: TrayView) -> Iterator[Action]:
    for choice in view.choices():
        yield Action(f"Do not load {view.name(choice.model)}", Unload(choice.model), not view.closing)
    for child in view.status.children:
        verb = "Stop loading" if child.state is ChildState.LOADING else "Unload"
        enabled = child.state is not ChildState.STOPPING and not view.closing
        yield Action(f"{verb} {view.name(child.model)}", Unload(child.model), enabled)


def _keep_loaded(view: TrayView, models: Sequence[ModelView]) -> Iterator[Action]:
    for model in models:
        child = view.child(model.id)
        if model.pinned or (child is not None and child.state is not ChildState.STOPPING):
            text = f"Keep {view.name(model.id)} loaded"
            yield Action(text, PinModel(model.id, not model.pinned), not view.closing, checked=model.pinned)
