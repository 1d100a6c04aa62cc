"""The laws at work on children in memory: what is read at a safe point, and what a child is asked to do."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest

from app.host import laws
from app.host.laws import Look, MlxLaw, Ram, RamLaw, SpillLaw, Step, TurnPaging, law_of
from app.host.model import Model
from engines import ChildFacts
from engines.engine import Landed, Law
from engines.memory.brake import Action, BrakeNotice, BrakeState, Level, LlamaSample, MlxSample, Point
from engines.memory.pressure import Reading
from engines.memory.pressure.reading import EVIDENCE_BYTES
from engines.nvidia.spill import SpillReading
from tests.fixtures.facts import facts

GIB = 1 << 30
MODEL = Model("a", "A", facts())


@dataclass
class FixedSensor:
    """Says what the test says."""

    reading: Reading

    def read(self) -> Reading:
        return self.reading


@dataclass
class AdjustableChild:
    """An MLX child without a server; its process is this one, so that its footprint can be read."""

    pid: int = field(default_factory=os.getpid)
    facts: ChildFacts = field(default_factory=lambda: ChildFacts(32_768, 1))
    measured_bytes: int | None = 0
    planned_window: int | None = 32_768
    last_request: int | None = None
    releases: bool = True
    confirms: bool = True
    asked: list[str] = field(default_factory=list)

    async def release(self) -> bool:
        self.asked.append("release")
        return self.releases

    async def set_window(self, cap: int | None) -> bool:
        self.asked.append(f"window {cap}")
        return self.confirms


def reading(level: Level | None, paged_out: int | None = 0) -> Reading:
    return Reading(level, paged_out, 4 * GIB, 16 * GIB, "as the test says")


def look(point: Point) -> Look:
    return Look(MODEL, point, 100.0, 32_768, pinned=False)


def mlx(level: Level, child: AdjustableChild) -> MlxLaw:
    return MlxLaw(child, Ram(FixedSensor(reading(level)), 16 * GIB))  # type: ignore[arg-type]


async def step(law: MlxLaw, state: BrakeState, point: Point) -> Step:
    found = await law.step(state, look(point))
    assert found is not None
    return found


async def test_a_release_that_succeeds_says_nothing_and_is_remembered() -> None:
    child = AdjustableChild(measured_bytes=-GIB)  # so this process holds more than 256 MiB above its base
    found = await step(mlx(Level.WARNING, child), BrakeState(), Point.TURN_END)
    assert found.decision.action is Action.NONE
    assert found.decision.notice is None
    assert found.decision.state.left > 0


async def test_a_release_that_fails_leaves_everything_to_the_next_sample() -> None:
    child = AdjustableChild(measured_bytes=-GIB, releases=False, last_request=30_000)
    state = BrakeState(request=30_000)
    found = await step(mlx(Level.CRITICAL, child), state, Point.TURN_END)
    assert child.asked == ["release"]
    assert (found.decision.action, found.decision.notice, found.decision.state.left) == (Action.NONE, None, 0)


async def test_after_a_release_a_window_that_the_last_request_outgrew_is_shrunk() -> None:
    child = AdjustableChild(measured_bytes=-GIB, last_request=30_000)
    found = await step(mlx(Level.CRITICAL, child), BrakeState(request=30_000), Point.TURN_END)
    assert child.asked == ["release"]
    assert (found.decision.action, found.decision.cap) == (Action.SHRINK, 16_384)
    assert found.decision.notice is BrakeNotice.ACTED


async def test_with_nothing_to_give_back_the_pressure_is_not_ours() -> None:
    child = AdjustableChild(measured_bytes=64 * GIB)
    found = await step(mlx(Level.WARNING, child), BrakeState(), Point.TURN_END)
    assert child.asked == []
    assert found.decision.notice is BrakeNotice.EXTERNAL


async def test_a_calm_child_is_not_even_measured() -> None:
    found = await step(mlx(Level.CALM, AdjustableChild()), BrakeState(), Point.IDLE)
    assert isinstance(found.sample, MlxSample)
    assert found.sample.footprint is None


@pytest.mark.parametrize("confirms", [True, False])
async def test_another_cap_is_sent_to_the_running_child(confirms: bool) -> None:
    child = AdjustableChild(confirms=confirms)
    assert await mlx(Level.CALM, child).apply(8192) is confirms
    assert child.asked == ["window 8192"]


async def test_paging_during_a_turn_lifts_a_calm_end_for_mlx_alone() -> None:
    sensor = FixedSensor(reading(Level.CALM, 0))
    law = MlxLaw(AdjustableChild(measured_bytes=64 * GIB), Ram(sensor, 16 * GIB))  # type: ignore[arg-type]
    law.turn_begins()
    started = law._paging._start
    assert started is not None
    await started
    sensor.reading = reading(Level.CALM, 64 << 20)
    assert (await step(law, BrakeState(), Point.TURN_END)).decision.level is Level.WARNING


async def test_a_level_that_cannot_be_read_is_no_sample_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    ram = Ram(FixedSensor(reading(None, None)), 16 * GIB)
    for law in (RamLaw(AdjustableChild(), ram), MlxLaw(AdjustableChild(), ram)):  # type: ignore[arg-type]
        assert await law.step(BrakeState(), look(Point.IDLE)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # the level, and the paging
    assert "the brake is off" in caplog.text


SPILLS: tuple[tuple[SpillReading, Level | None], ...] = (
    (SpillReading(None, None, "unreadable"), None),
    (SpillReading(Level.CALM, 100 << 20, ""), Level.CALM),
    (SpillReading(Level.WARNING, 300 << 20, ""), Level.WARNING),
    (SpillReading(Level.CRITICAL, GIB, ""), Level.CRITICAL),
)


@pytest.mark.parametrize(("spill", "level"), SPILLS)
async def test_a_card_s_sample_is_its_spill(spill: SpillReading, level: Level | None) -> None:
    law = SpillLaw(AdjustableChild(), lambda: spill)  # type: ignore[arg-type]
    found = await law.step(BrakeState(), look(Point.TURN_END))
    if level is None:
        assert found is None
        return
    assert found is not None
    assert isinstance(found.sample, LlamaSample)
    assert (found.sample.level, found.sample.evidence, found.sample.ram_bytes) == (level, spill.evidence, None)


LANDINGS: tuple[tuple[Landed, type | None], ...] = (
    (Landed(Law.NONE), None),
    (Landed(Law.RAM), RamLaw),
    (Landed(Law.SPILL, lambda: SPILLS[0][0]), SpillLaw),
    (Landed(Law.MLX), MlxLaw),
)


@pytest.mark.parametrize(("landed", "kind"), LANDINGS)
def test_each_landing_has_its_law(landed: Landed, kind: type | None) -> None:
    law = law_of(landed, AdjustableChild(), Ram(FixedSensor(reading(Level.CALM)), GIB))  # type: ignore[arg-type]
    assert type(law) is (kind or type(None))


async def test_the_lowest_footprint_of_two_idle_seconds_counts() -> None:
    seen: list[int | None] = [5 * GIB, 5 * GIB, 3 * GIB, None, 2 * GIB, 4 * GIB]
    law = MlxLaw(
        AdjustableChild(measured_bytes=GIB),  # type: ignore[arg-type]
        Ram(FixedSensor(reading(Level.WARNING)), 16 * GIB),
        footprint=lambda _pid: seen.pop(0),
        settling=0.0,
    )
    found = await step(law, BrakeState(), Point.IDLE)
    assert found.decision.state.left == GIB


@dataclass
class SlowSensor:
    """Its first reading takes until the second one is there, or a while; each has paged out more than the last."""

    count: int = 0
    second: threading.Event = field(default_factory=threading.Event)

    def read(self) -> Reading:
        self.count += 1
        mine = self.count
        if mine == 1:
            self.second.wait(0.2)
        else:
            self.second.set()
        return reading(Level.WARNING, mine * EVIDENCE_BYTES)


async def test_the_start_of_a_turn_is_never_read_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "SOON_SECONDS", 0.0)
    paging = TurnPaging(Ram(SlowSensor(), 16 * GIB))
    paging.begins()
    seen = await paging.look(Point.TURN_END)  # a turn so short that its start was not read yet
    assert seen is not None
    assert seen.evidence is True
