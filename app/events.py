"""What happened, told to whoever listens: the tray, the API, the log.

All of it runs on the loop's thread, so there are no locks. A subscriber that is too slow holds nobody up: it
loses the oldest events and gets one ``gap`` in their place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

HISTORY = 1000
"""Events kept for those who come back."""
QUEUE = 256
"""Events that wait for one subscriber."""
GAP = "gap"
"""Kind of the event that stands for lost ones."""
IDS_PER_SECOND = 1_000_000
"""The first id of a run is its start in microseconds, so that a later run's ids are always higher."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    ``id`` grows by one with each event of a run and is never used by another run (unless the clock was set
    back); it fits a JavaScript number. ``at`` is Unix time in seconds. ``data`` can be written as JSON.

    A ``gap`` has the id before the next event's. Its data: ``dropped``, how many events of this run are lost,
    and ``restarted``, True when the subscriber's last id was of another run: what that one lost nobody knows.
    """

    id: int
    at: float
    kind: str
    data: Mapping[str, object]


class EventBus:
    """Takes events in and hands them to subscriptions (asynchronous) and listeners (at once)."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._first = int(clock() * IDS_PER_SECOND)
        self._next = self._first
        self._history: deque[Event] = deque(maxlen=HISTORY)
        self._subscriptions: list[Subscription] = []
        self._listeners: dict[object, Callable[[Event], None]] = {}
        self._untold: deque[Event] = deque()
        self._telling = False

    def publish(self, kind: str, data: Mapping[str, object]) -> Event:
        """Tell everybody. Never waits; a listener that fails is logged and the others are still told."""
        event = Event(self._next, self._clock(), kind, dict(data))
        self._next += 1
        self._history.append(event)
        for subscription in self._subscriptions:
            subscription._put(event)
        self._untold.append(event)
        self._tell()
        return event

    def subscribe(self, last_id: int | None = None, size: int = QUEUE) -> Subscription:
        """Events from now on, or all that are newer than ``last_id``, which may be of an earlier connection.

        At most ``size`` (2 or more) wait. Close the subscription when done (``with``).
        """
        subscription = Subscription(self._clock, size, self._subscriptions)
        if last_id is not None:
            oldest = self._history[0].id if self._history else self._next
            known = self._first - 1 <= last_id < self._next
            if not known:
                subscription._lose(oldest - self._first, oldest - 1, restarted=True)
            elif last_id < oldest - 1:
                subscription._lose(oldest - 1 - last_id, oldest - 1)
            for event in self._history:
                if not known or event.id > last_id:
                    subscription._put(event)
        self._subscriptions.append(subscription)
        return subscription

    def listen(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` at every event, in order, inside ``publish``; returns what ends that."""
        ticket = object()
        self._listeners[ticket] = callback

        def unlisten() -> None:
            self._listeners.pop(ticket, None)

        return unlisten

    def close(self) -> None:
        """End every subscription after what waits in it."""
        for subscription in tuple(self._subscriptions):
            subscription.close()

    def _tell(self) -> None:
        if self._telling:  # a listener published: its event comes after the one that is being told
            return
        self._telling = True
        try:
            while self._untold:
                event = self._untold.popleft()
                for ticket, listener in tuple(self._listeners.items()):
                    if ticket not in self._listeners:
                        continue  # an earlier one has just ended it
                    try:
                        listener(event)
                    except Exception:
                        log.exception("a listener failed at a %s event", event.kind)
        finally:
            self._telling = False


class Subscription:
    """Events for one reader, an asynchronous iterator: ``with bus.subscribe() as events: async for ...``."""

    def __init__(self, clock: Callable[[], float], size: int, register: list[Subscription]) -> None:
        if size < 2:
            raise ValueError("a subscription needs room for a gap and an event")
        self._clock = clock
        self._size = size
        self._register = register
        self._waiting: deque[Event] = deque()
        self._gap: Event | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def queued(self) -> int:
        """How many events wait, a gap included; never more than the size asked for."""
        return len(self._waiting) + (self._gap is not None)

    def close(self) -> None:
        """No more events; the reader gets what waits, then the end."""
        self._closed = True
        self._news.set()
        if self in self._register:
            self._register.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self.queued:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        if self._gap is not None:
            gap, self._gap = self._gap, None
            return gap
        return self._waiting.popleft()

    def _put(self, event: Event) -> None:
        self._waiting.append(event)
        while self.queued > self._size:
            self._lose(1, self._waiting.popleft().id)
        self._news.set()

    def _lose(self, dropped: int, last: int, *, restarted: bool = False) -> None:
        if self._gap is not None:
            dropped += _count(self._gap)
            restarted = restarted or bool(self._gap.data["restarted"])
        self._gap = Event(last, self._clock(), GAP, {"dropped": dropped, "restarted": restarted})
        self._news.set()


def _count(gap: Event) -> int:
    dropped = gap.data["dropped"]
    assert isinstance(dropped, int)
    return dropped
