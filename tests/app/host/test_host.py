"""The host on a real loop, with an engine whose children are in memory: who gets the slot when clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from app.events import EventBus
from app.host.host import Host
from app.host.model import Model
from app.host.refused import Unserved
from app.host.schedule import Policy
from app.host.status import EngineStatus
from engines import Child, ChildFacts, LaunchPlan, LaunchSettings, Machine, Memory, Progress, Window
from engines.artifact.facts import ModelFacts
from engines.engine import Landed, Law
from engines.errors import OutOfMemory
from tests.fixtures.facts import facts

MODEL = Model("a", "A", facts())


@dataclass
class MemoryChild:
    """A child without a process."""

    plan: LaunchPlan
    pid: int = 1
    port: int = 1
    key: str = "key"
    facts: ChildFacts = field(default_factory=lambda: ChildFacts(4096, 1))
    load_seconds: float = 0.5
    measured_bytes: int | None = None
    tail: str = ""
    died: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def stop(self, *, hurry: bool = False) -> None:
        if not self.died.done():
            self.died.set_result(0)


@dataclass
class MemoryEngine:
    """Starts children when the test says so."""

    name: str = "memory"
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    fault: Exception | None = None
    """Raised by the look at a child that was just started."""
    children: list[MemoryChild] = field(default_factory=list)
    cancelled: int = 0
    retried: Window | None = None
    """The window of a second try."""

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        env: Mapping[str, str] = {}
        return LaunchPlan(model, self.name, (), env, Window(4096, 4096, "model", ""), Memory(None))

    async def start(self, plan: LaunchPlan, progress: Progress) -> MemoryChild:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        if self.retried is not None:
            plan = replace(plan, window=self.retried)
        self.children.append(MemoryChild(plan))
        return self.children[-1]

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        return settings

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        if self.fault is not None:
            raise self.fault
        return Landed(Law.NONE)


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def host(engine: MemoryEngine) -> Host:
    machine = Machine("Linux", "x86_64", 1, 1)
    return Host(engine, EngineStatus("memory", "a test"), machine, Policy(), LaunchSettings(), EventBus())


async def busy(host: Host) -> list[int]:
    await asyncio.sleep(0)
    return [child.busy for child in host.status().children]


async def hold(host: Host, entered: asyncio.Event, leave: asyncio.Event) -> None:
    async with host.turn(MODEL):
        entered.set()
        await leave.wait()


async def test_a_turn_cancelled_in_the_tick_of_its_grant_gives_the_slot_back(host: Host, engine: MemoryEngine) -> None:
    first_in, first_out, second_in, never = (asyncio.Event() for _ in range(4))
    engine.gate.set()
    first = asyncio.create_task(hold(host, first_in, first_out))
    await first_in.wait()
    second = asyncio.create_task(hold(host, second_in, never))
    third_in = asyncio.Event()
    await asyncio.sleep(0)
    third = asyncio.create_task(hold(host, third_in, never))
    await asyncio.sleep(0)
    first_out.set()
    await first  # in this very tick the second was granted, and has not run yet
    second.cancel()
    await asyncio.wait({second})
    assert not second_in.is_set()
    await asyncio.wait_for(third_in.wait(), 1)
    assert await busy(host) == [1]
    third.cancel()
    await asyncio.wait({third})
    assert await busy(host) == [0]


@pytest.mark.parametrize("ticks", range(12))
async def test_a_turn_cancelled_at_any_tick_leaves_the_host_able_to_serve(
    host: Host, engine: MemoryEngine, ticks: int
) -> None:
    engine.gate.set()
    entered, never = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(hold(host, entered, never))
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    async with asyncio.timeout(1), host.turn(MODEL) as turn:
        assert turn.child in engine.children
    assert len(engine.children) == 1
    assert host.status().waiting == ()


async def test_eight_cold_turns_make_one_load(host: Host, engine: MemoryEngine) -> None:
    async def one() -> None:
        async with host.turn(MODEL):
            await asyncio.sleep(0)

    turns = [asyncio.create_task(one()) for _ in range(8)]
    await asyncio.sleep(0)
    engine.gate.set()
    await asyncio.gather(*turns)
    assert len(engine.children) == 1


async def test_a_failed_load_is_one_error_for_all_and_one_notice(host: Host, engine: MemoryEngine) -> None:
    engine.error = OutOfMemory("A")
    engine.gate.set()

    async def one() -> str:
        try:
            async with host.turn(MODEL):
                return "granted"
        except Unserved as error:
            return error.code

    assert await asyncio.gather(one(), one(), one()) == ["out_of_memory"] * 3
    assert [n.kind for n in host.status().notices] == ["load_failed"]
    assert host.status().children == ()


async def test_a_fault_of_ours_while_loading_is_said_and_logged(host: Host, engine: MemoryEngine) -> None:
    engine.error = ZeroDivisionError("oops")
    engine.gate.set()
    with pytest.raises(Unserved) as caught:
        async with host.turn(MODEL):
            pass
    assert caught.value.code == "internal_error"
    assert "oops" not in caught.value.sentence


async def test_a_dead_child_breaks_its_turn_and_the_next_turn_is_told(host: Host, engine: MemoryEngine) -> None:
    engine.gate.set()
    async with host.turn(MODEL) as turn:
        engine.children[0].died.set_result(-9)
        error = await asyncio.wait_for(asyncio.shield(turn.broken), 1)
        assert error.code == "worker_crashed"
    async with host.turn(MODEL) as turn:
        assert [n.kind for n in turn.notices] == ["worker_crashed"]
    async with host.turn(MODEL) as turn:
        assert turn.notices == ()


async def test_unloading_while_loading_cancels_the_load(host: Host, engine: MemoryEngine) -> None:
    async def one() -> str:
        try:
            async with host.turn(MODEL):
                return "granted"
        except Unserved as error:
            return error.code

    asking = asyncio.create_task(one())
    await asyncio.sleep(0.01)
    host.unload("a")
    assert await asyncio.wait_for(asking, 1) == "load_cancelled"
    await asyncio.sleep(0.01)
    assert engine.cancelled == 1
    assert host.status().children == ()


async def test_a_load_cancelled_in_the_tick_it_was_asked_for_is_in_nobodys_way(
    host: Host, engine: MemoryEngine
) -> None:
    engine.gate.set()
    entered, never = asyncio.Event(), asyncio.Event()
    asking = asyncio.create_task(hold(host, entered, never))
    await asyncio.sleep(0)  # asked for; the load's task has not taken a step
    host.unload("a")
    await asyncio.wait({asking})
    assert isinstance(asking.exception(), Unserved)
    async with asyncio.timeout(1), host.turn(MODEL):
        assert len(engine.children) == 1


async def test_a_hold_has_the_child_alone_between_two_turns(host: Host, engine: MemoryEngine) -> None:
    engine.gate.set()
    order: list[str] = []

    async def turn(name: str) -> None:
        async with host.turn(MODEL):
            order.append(name)
            await asyncio.sleep(0.01)

    async def sample() -> None:
        async with host.hold(MODEL, ahead=True) as child:
            assert child is engine.children[0]
            assert host.status().children[0].busy == 0
            order.append("hold")

    first = asyncio.create_task(turn("first"))
    await asyncio.sleep(0.005)
    second = asyncio.create_task(turn("second"))
    await asyncio.sleep(0)
    await asyncio.gather(first, second, sample())
    assert order == ["first", "hold", "second"]
    assert host.status().waiting == ()


async def test_a_hold_of_a_model_that_is_not_loaded_is_refused(host: Host) -> None:
    with pytest.raises(Unserved, match="not loaded"):
        async with host.hold(MODEL):
            pass


async def test_closing_stops_loading_and_ready_children_and_refuses_all(host: Host, engine: MemoryEngine) -> None:
    engine.gate.set()
    async with host.turn(MODEL) as turn:
        await host.close()
        assert turn.broken.result().code == "shutting_down"
    assert engine.children[0].died.done()
    with pytest.raises(Unserved, match="closing"):
        async with host.turn(MODEL):
            pass


async def test_a_waiting_turn_hears_how_it_stands(host: Host, engine: MemoryEngine) -> None:
    heard = asyncio.Event()
    seen = []

    async def waiting(view: object) -> None:
        seen.append(view)
        heard.set()

    async def one() -> None:
        async with host.turn(MODEL, waiting=waiting):
            pass

    asking = asyncio.create_task(one())
    await asyncio.wait_for(heard.wait(), 5)
    engine.gate.set()
    await asking
    assert seen[0].reason == "loading"


async def test_a_child_whose_landing_cannot_be_judged_is_stopped_and_the_load_has_failed(
    host: Host, engine: MemoryEngine
) -> None:
    engine.gate.set()
    engine.fault = RuntimeError("a bug")
    with pytest.raises(Unserved, match="a fault in Plimsoll"):
        async with host.turn(MODEL):
            pass
    (child,) = engine.children
    assert child.died.done()
    assert host.status().children == ()


async def test_a_load_that_was_tried_with_another_plan_shows_that_plan(host: Host, engine: MemoryEngine) -> None:
    engine.gate.set()
    engine.retried = Window(2048, 4096, "memory", "the card ran out of memory")
    async with host.turn(MODEL):
        assert host.status().children[0].window.planned == 2048


async def test_another_engine_serves_what_comes_next_and_the_old_child_goes_after_its_answer(
    host: Host, engine: MemoryEngine
) -> None:
    engine.gate.set()
    other = MemoryEngine(name="other")
    other.gate.set()
    async with host.turn(MODEL) as turn:
        host.use(other, EngineStatus("other", "chosen"))
        old = turn.child
        assert not old.died.done()
        assert host.status().engine.name == "other"
    async with host.turn(MODEL) as turn:
        assert turn.child in other.children
    assert old.died.done()
