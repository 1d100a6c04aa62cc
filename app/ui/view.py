"""What the tray is shown: one value, made by the composition root. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from app.host.status import ChildState, ChildStatus, Status, WaitingStatus, WindowStatus
from app.ui.entries import shortened_inside

NAME_CHARACTERS = 40
"""Longest name in a line: with size and window it makes a line of 70, which every screen has (ours)."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model of this machine, loaded or not. All else about its state is in the host's status."""

    id: str
    name: str
    size_bytes: int
    """On disk, all parts."""
    window: int | None
    """Tokens that loading it would plan; None where nobody can say."""
    pinned: bool = False
    problem: str | None = None
    """A sentence that says why it cannot be used."""


@dataclass(frozen=True, slots=True)
class TrayView:
    """All that the tray shows."""

    status: Status
    base_url: str | None
    """The endpoint's address, ``/v1`` included; None while it is not open."""
    names: Mapping[str, str]
    """Model id to the name people know it by; an id that is missing is shown as it is."""
    models: tuple[ModelView, ...] = ()
    closing: bool = False
    problem: str | None = None
    """A sentence that says what is wrong and what to do."""
    autostart: bool | None = None
    """Whether the program starts with the system; None where that cannot be set."""
    zone: tzinfo | None = None
    """Time zone of the notices' clock; None is this machine's."""

    def name(self, model: str) -> str:
        """The display name of a model id, in one line of at most ``NAME_CHARACTERS``."""
        return shortened_inside(self.names.get(model) or model, NAME_CHARACTERS)

    def child(self, model: str) -> ChildStatus | None:
        """The child of a model; while an old one goes and a new one comes, the new one."""
        children = [child for child in self.status.children if child.model == model]
        return min(children, key=lambda child: child.state is ChildState.STOPPING, default=None)

    def choices(self) -> tuple[WaitingStatus, ...]:
        """What the user chose and has not got yet: turns for models that have no child."""
        return tuple(turn for turn in self.status.waiting if turn.by_user and self.child(turn.model) is None)


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """Model id to a name that no other has: quantisations of one model share theirs and are told apart by id."""
    owners = Counter(name.casefold() for name in names.values())
    return {model: name if owners[name.casefold()] == 1 else model for model, name in names.items()}


def given_up(status: Status, model: str) -> tuple[str, ...]:
    """What choosing ``model`` takes back: models that the user chose before it, and nobody else waits for."""
    awaited = {turn.model for turn in status.waiting if not turn.by_user}
    chosen = (turn.model for turn in status.waiting if turn.by_user)
    return tuple(dict.fromkeys(other for other in chosen if other != model and other not in awaited))


def when(choice: WaitingStatus, status: Status) -> str:
    """When a model that the user chose will be loaded: ``after this answer``, or ``next``."""
    answering = any(child.busy for child in status.children)
    return "after this answer" if answering and choice.reason == "queued" else "next"


def percent(progress: float | None) -> str:
    """A load's progress (0 to 1) with a blank before it; nothing where the server does not tell."""
    return "" if progress is None else f" {int(min(max(progress, 0.0), 1.0) * 100)} %"


def held(window: WindowStatus) -> int | None:
    """Tokens that a conversation may have: what is known best, in the order of how it binds."""
    return next((n for n in (window.working, window.allocated, window.planned) if n is not None), None)
