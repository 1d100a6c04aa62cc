"""Events: ordered, bounded, resumable, and honest about what was lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import GAP, HISTORY, Event, EventBus, Subscription


class Clock:
    """A clock that tests turn."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def drain(subscription: Subscription) -> list[Event]:
    return [await anext(subscription) for _ in range(subscription.queued)]


def numbers(events: list[Event]) -> list[object]:
    return [event.data["n"] for event in events if event.kind != GAP]


def fill(bus: EventBus, count: int, start: int = 0) -> list[Event]:
    return [bus.publish("step", {"n": number}) for number in range(start, start + count)]


async def test_events_arrive_in_order_with_growing_ids() -> None:
    clock = Clock()
    bus = EventBus(clock)
    with bus.subscribe() as events:
        clock.now += 5
        published = [bus.publish("load", {"model": "a"}), bus.publish("unload", {})]
        assert await drain(events) == published
    assert published[0].at == clock.now
    assert published[0].kind == "load"
    assert published[1].id == published[0].id + 1
    assert published[1].id < 2**53
    assert json.loads(json.dumps(published[0].data)) == {"model": "a"}


async def test_an_event_keeps_the_data_it_was_published_with() -> None:
    data: dict[str, object] = {"n": 1}
    event = EventBus(Clock()).publish("step", data)
    data["n"] = 2
    assert event.data == {"n": 1}


async def test_a_waiting_reader_wakes_up() -> None:
    bus = EventBus(Clock())
    with bus.subscribe() as events:
        reader = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        published = bus.publish("step", {})
        assert await reader == published


async def test_a_cancelled_reader_loses_nothing() -> None:
    bus = EventBus(Clock())
    with bus.subscribe() as events:
        reader = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        reader.cancel()
        published = bus.publish("step", {})
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await anext(events) == published


@pytest.mark.parametrize("end", [EventBus.close, None])
async def test_the_end_comes_after_what_waits(end: Callable[[EventBus], None] | None) -> None:
    bus = EventBus(Clock())
    events = bus.subscribe()
    fill(bus, 2)
    if end is None:
        events.close()
    else:
        end(bus)
    bus.publish("step", {"n": 99})
    assert numbers([event async for event in events]) == [0, 1]
    events.close()


async def test_the_end_wakes_a_waiting_reader() -> None:
    bus = EventBus(Clock())
    events = bus.subscribe()
    reader = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    bus.close()
    with pytest.raises(StopAsyncIteration):
        await reader


async def test_a_slow_subscriber_gets_one_gap_in_place_of_the_oldest() -> None:
    bus = EventBus(Clock())
    with bus.subscribe(size=4) as slow, bus.subscribe() as quick:
        published = fill(bus, 10)
        gap, *rest = await drain(slow)
        assert (gap.kind, gap.data, gap.id) == (GAP, {"dropped": 7, "restarted": False}, published[6].id)
        assert numbers(rest) == [7, 8, 9]
        assert numbers(await drain(quick)) == list(range(10))


def test_a_queue_without_room_for_a_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="room"):
        EventBus(Clock()).subscribe(size=1)


@given(st.integers(2, 6), st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=30))
def test_never_more_than_size_and_the_counts_add_up(size: int, steps: list[int | None]) -> None:
    """A number publishes as many, None reads one."""

    async def run() -> None:
        bus = EventBus(Clock())
        published = 0
        seen: list[Event] = []
        with bus.subscribe(size=size) as events:
            for step in steps:
                if step is None and events.queued:
                    seen.append(await anext(events))
                elif step is not None:
                    fill(bus, step, published)
                    published += step
                assert events.queued <= size
            seen += await drain(events)
        accounted = 0
        for event in seen:
            if event.kind == GAP:
                dropped = event.data["dropped"]
                assert isinstance(dropped, int)
                assert dropped > 0
                accounted += dropped
            else:
                assert event.data["n"] == accounted
                accounted += 1
        assert accounted == published
        ids = [event.id for event in seen]
        assert ids == sorted(set(ids))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("published", "behind", "gap", "first"),
    [
        (0, 0, None, None),
        (5, 0, None, None),
        (5, 2, None, 3),
        (5, 5, None, 0),
        (HISTORY, HISTORY, None, 0),
        (HISTORY + 7, HISTORY, None, 7),
        (HISTORY + 7, HISTORY + 1, 1, 7),
        (HISTORY + 7, HISTORY + 7, 7, 7),
    ],
)
async def test_who_comes_back_gets_what_was_missed(
    published: int, behind: int, gap: int | None, first: int | None
) -> None:
    bus = EventBus(Clock())
    start = bus.publish("step", {"n": -1}).id
    fill(bus, published)
    with bus.subscribe(start + published - behind, size=HISTORY + 1) as events:
        got = await drain(events)
    if gap is not None:
        assert got[0].data == {"dropped": gap, "restarted": False}
        got = got[1:]
    assert numbers(got) == ([] if first is None else list(range(first, published)))


async def test_coming_back_with_a_gaps_id_repeats_nothing() -> None:
    bus = EventBus(Clock())
    with bus.subscribe(size=3) as events:
        fill(bus, 9)
        gap = await anext(events)
    with bus.subscribe(gap.id) as events:
        assert numbers(await drain(events)) == [7, 8]


async def test_a_replay_longer_than_the_queue_is_bounded_too() -> None:
    bus = EventBus(Clock())
    start = bus.publish("step", {"n": -1}).id
    fill(bus, 100)
    with bus.subscribe(start, size=10) as events:
        assert events.queued == 10
        gap, *rest = await drain(events)
    assert gap.data["dropped"] == 91
    assert numbers(rest) == list(range(91, 100))


@pytest.mark.parametrize("later_seconds", [0.001, 3600.0])
@pytest.mark.parametrize("of_this_run", [0, 3, HISTORY + 5])
async def test_an_id_of_a_former_run_gives_a_gap_and_all_there_is(later_seconds: float, of_this_run: int) -> None:
    clock = Clock()
    former = fill(EventBus(clock), 20)
    clock.now += later_seconds
    bus = EventBus(clock)
    fill(bus, of_this_run)
    with bus.subscribe(former[-1].id, size=HISTORY + 1) as events:
        gap, *rest = await drain(events)
    lost = max(0, of_this_run - HISTORY)
    assert (gap.kind, gap.data) == (GAP, {"dropped": lost, "restarted": True})
    assert numbers(rest) == list(range(lost, of_this_run))
    with bus.subscribe(gap.id, size=HISTORY + 1) as events:
        assert await drain(events) == rest


@pytest.mark.parametrize("last_id", [-1, 0, 2**62])
async def test_an_id_of_no_run_gives_a_gap_too(last_id: int) -> None:
    bus = EventBus(Clock())
    fill(bus, 2)
    with bus.subscribe(last_id) as events:
        gap, *rest = await drain(events)
    assert gap.data == {"dropped": 0, "restarted": True}
    assert numbers(rest) == [0, 1]


async def test_a_restart_stays_said_when_more_is_lost() -> None:
    bus = EventBus(Clock())
    with bus.subscribe(0, size=3) as events:
        fill(bus, 9)
        gap, *rest = await drain(events)
    assert gap.data == {"dropped": 7, "restarted": True}
    assert numbers(rest) == [7, 8]


def test_listeners_are_told_at_once_until_they_leave() -> None:
    bus = EventBus(Clock())
    told: list[Event] = []
    unlisten = bus.listen(told.append)
    published = fill(bus, 2)
    unlisten()
    unlisten()
    fill(bus, 1)
    assert told == published


def test_a_listener_that_publishes_keeps_the_order_for_all() -> None:
    bus = EventBus(Clock())
    told: list[str] = []

    def echo(event: Event) -> None:
        if event.kind == "a":
            bus.publish("b", {})

    bus.listen(echo)
    bus.listen(lambda event: told.append(event.kind))
    bus.publish("a", {})
    assert told == ["a", "b"]


def test_a_listener_may_leave_while_it_is_told() -> None:
    bus = EventBus(Clock())
    told: list[str] = []

    def once(event: Event) -> None:
        told.append(event.kind)
        leave()

    leave = bus.listen(once)
    bus.listen(lambda event: told.append(event.kind + "!"))
    bus.publish("a", {})
    bus.publish("b", {})
    assert told == ["a", "a!", "b!"]


def test_a_listener_that_has_left_is_not_told_any_more() -> None:
    bus = EventBus(Clock())
    told: list[str] = []
    bus.listen(lambda event: leave())
    leave = bus.listen(lambda event: told.append(event.kind))
    bus.publish("a", {})
    assert told == []


def test_a_listener_that_fails_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus(Clock())
    told: list[str] = []

    def fail(event: Event) -> None:
        raise RuntimeError("broken tray")

    bus.listen(fail)
    bus.listen(lambda event: told.append(event.kind))
    bus.publish("a", {})
    bus.publish("b", {})
    assert told == ["a", "b"]
    assert caplog.text.count("RuntimeError: broken tray") == 2
