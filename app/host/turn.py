"""A turn and a child as the host holds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.host import vocabulary as v
from app.host.model import Model
from app.host.refused import Unserved
from app.host.status import NoticeStatus
from engines import Child, LaunchPlan


@dataclass(slots=True)
class Ticket:
    """One turn on its way through the schedule."""

    id: int
    model: Model
    asked: float
    by_user: bool
    hold: bool
    granted: asyncio.Future[Child]
    broken: asyncio.Future[Unserved]
    wait: v.Wait | None = None
    started_load: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A granted turn: the child is the holder's until the ``async with`` ends."""

    id: int
    model: Model
    child: Child
    queued_seconds: float
    """From asking to the grant, a load included."""
    load_seconds: float | None
    """How long the child took to load, when this turn waited for that load."""
    notices: tuple[NoticeStatus, ...]
    """What the user has to be told with this answer."""
    broken: asyncio.Future[Unserved]
    """Done when the turn is broken off: the child died, or the application closes."""


@dataclass(frozen=True, slots=True)
class WaitView:
    """How a waiting turn stands; ``seconds`` since it was asked."""

    seconds: float
    reason: v.WaitReason
    ahead: int
    progress: float | None


@dataclass(slots=True)
class Running:
    """What the host has of one child of the schedule."""

    id: int
    model: Model
    plan: LaunchPlan | None = None
    child: Child | None = None
    loading: asyncio.Task[None] | None = None
    progress: float | None = None
    stop: v.StopReason | None = None
