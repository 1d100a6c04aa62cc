"""How one child is watched: what is read at a safe point, and what the law makes of it.

A law reads and asks; it changes nothing but what a running child can give back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, cast

from app.host.model import Model
from engines import Child
from engines.engine import Landed, Law
from engines.memory import brake
from engines.memory.brake import Action, BrakeState, Decision, Level, LlamaSample, MlxSample, Point, Sample
from engines.memory.cost import kv_bytes
from engines.memory.footprint import anonymous_bytes
from engines.memory.pressure import Paging, Reading, SayOnce, Sensor
from engines.nvidia.spill import SpillReading

log = logging.getLogger(__name__)

SETTLING_SECONDS = 2.0
"""How long the memory that an idle child released may take to show (specified)."""
SETTLING_LOOKS = 4
SOON_SECONDS = 0.02
"""The reading at the start of a turn gives way to the turn: its request goes out first."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a child with nothing in flight."""

    model: Model
    point: Point
    now: float
    planned: int | None
    """The window it would be given without a cap, in tokens."""
    pinned: bool
    """Its window is never resized."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a look came to."""

    decision: Decision
    sample: Sample
    detail: str
    """The raw values, for the log."""


class ChildLaw(Protocol):
    """The law of one child."""

    @property
    def request(self) -> int | None:
        """Tokens of the last turn's largest request, where the law asks for them."""

    def turn_begins(self) -> None:
        """A turn was granted."""

    async def step(self, state: BrakeState, look: Look) -> Step | None:
        """Look, and decide; None where nothing could be read."""

    async def apply(self, cap: int | None) -> bool:
        """Have the running child take another cap (None: no cap); whether it did. A failure is logged."""


class Adjustable(Child, Protocol):
    """A child that gives memory back and takes another window while it runs (MLX)."""

    @property
    def planned_window(self) -> int | None:
        """The window it has without a cap, in tokens."""

    @property
    def last_request(self) -> int | None:
        """Tokens of the last turn's largest request."""

    async def release(self) -> bool:
        """Give back what it can spare; whether that succeeded."""

    async def set_window(self, cap: int | None) -> bool:
        """Hold it to a cap, or to none; whether it confirmed."""


def law_of(landed: Landed, child: Child, ram: Ram) -> ChildLaw | None:
    """The law that holds for a child; None: nothing brakes it."""
    match landed.law:
        case Law.RAM:
            return RamLaw(child, ram)
        case Law.SPILL:
            assert landed.spill is not None
            return SpillLaw(child, landed.spill)
        case Law.MLX:
            return MlxLaw(cast("Adjustable", child), ram)
    return None


class Ram:
    """The system's memory as all children's laws see it. What cannot be read is said once for all of them."""

    def __init__(self, sensor: Sensor, total_bytes: int) -> None:
        self._sensor = sensor
        self.total_bytes = total_bytes
        self._blind, self._blind_paging = SayOnce(), SayOnce()

    async def read(self) -> Reading:
        """Look now."""
        return await asyncio.to_thread(self._sensor.read)

    def sees(self, reading: Reading) -> bool:
        """Whether the level is known; says what is not."""
        speak, self._blind = self._blind.after(reading.level is not None)
        if speak:
            log.warning("the system's memory pressure cannot be read, the brake is off: %s", reading.detail)
        speak, self._blind_paging = self._blind_paging.after(reading.paged_out_bytes is not None)
        if speak:
            log.warning("the system's paging cannot be read, the pressure level decides alone: %s", reading.detail)
        return reading.level is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """How short of memory the system is at a safe point."""

    level: Level
    evidence: bool | None
    """Of the turn that ends there."""
    detail: str


class TurnPaging:
    """The level at a safe point, and how much was paged out while a turn ran."""

    def __init__(self, ram: Ram) -> None:
        self._ram = ram
        self._start: asyncio.Task[Reading] | None = None

    def begins(self) -> None:
        """Remember how much has been paged out until now. Costs the turn nothing."""
        self._start = asyncio.create_task(self._read_soon())

    async def look(self, point: Point) -> Seen | None:
        """Look now; None where the level cannot be read."""
        start = None
        if point is Point.TURN_END:  # taken before the look: a start that is read after the end would say nothing
            start, self._start = await self._begun(), None
        reading = await self._ram.read()
        if not self._ram.sees(reading) or reading.level is None:
            return None
        evidence: bool | None = False
        if point is Point.TURN_END:
            evidence = None if start is None else Paging(start.paged_out_bytes, reading.paged_out_bytes).evidence
        return Seen(reading.level, evidence, reading.detail)

    async def _begun(self) -> Reading | None:
        """How it stood when the turn began."""
        if self._start is None or self._start.done():
            return None if self._start is None else self._start.result()
        self._start.cancel()  # a turn of some milliseconds: what is paged out while one looks stands for it
        return await self._ram.read()

    async def _read_soon(self) -> Reading:
        await asyncio.sleep(SOON_SECONDS)
        return await self._ram.read()


class RamLaw:
    """A llama-server in RAM: a smaller window is another start."""

    request = None

    def __init__(self, child: Child, ram: Ram) -> None:
        self._child, self._ram = child, ram
        self._paging = TurnPaging(ram)

    def turn_begins(self) -> None:
        """See ``ChildLaw``."""
        self._paging.begins()

    async def step(self, state: BrakeState, look: Look) -> Step | None:
        """See ``ChildLaw``."""
        seen = await self._paging.look(look.point)
        if seen is None:
            return None
        calm = seen.level is Level.CALM  # nothing is said then, and the next turn waits for this sample
        footprint = None if calm else await asyncio.to_thread(anonymous_bytes, self._child.pid)
        sample = llama_sample(
            look, self._child, seen.level, seen.evidence, footprint=footprint, ram_bytes=self._ram.total_bytes
        )
        return Step(brake.llama_step(state, sample), sample, seen.detail)

    async def apply(self, cap: int | None) -> bool:
        """The next load reads the cap."""
        return True


class SpillLaw:
    """A llama-server on a card, by what Windows serves of it from RAM. How short RAM is drives nothing."""

    request = None

    def __init__(self, child: Child, read: Callable[[], SpillReading]) -> None:
        self._child, self._read = child, read

    def turn_begins(self) -> None:
        """A spill is a gauge: nothing to remember."""

    async def step(self, state: BrakeState, look: Look) -> Step | None:
        """See ``ChildLaw``."""
        reading = await asyncio.to_thread(self._read)
        if reading.level is None:
            return None
        sample = llama_sample(
            look, self._child, reading.level, reading.evidence, footprint=reading.spill, ram_bytes=None
        )
        return Step(brake.llama_step(state, sample, asks_share=False), sample, reading.detail)

    async def apply(self, cap: int | None) -> bool:
        """The next load reads the cap."""
        return True


class MlxLaw:
    """An MLX child: it gives memory back and takes another window while it runs."""

    def __init__(
        self,
        child: Adjustable,
        ram: Ram,
        *,
        footprint: Callable[[int], int | None] = anonymous_bytes,
        settling: float = SETTLING_SECONDS,
    ) -> None:
        self._child, self._ram = child, ram
        self._held, self._settling = footprint, settling
        self._paging = TurnPaging(ram)

    @property
    def request(self) -> int | None:
        """See ``ChildLaw``."""
        return self._child.last_request

    def turn_begins(self) -> None:
        """See ``ChildLaw``."""
        self._paging.begins()

    async def step(self, state: BrakeState, look: Look) -> Step | None:
        """See ``ChildLaw``. A release is carried out here: what it left decides about the rest."""
        seen = await self._paging.look(look.point)
        if seen is None:
            return None
        calm = seen.level is Level.CALM and seen.evidence is not True
        sample = MlxSample(
            now=look.now,
            point=look.point,
            level=seen.level,
            evidence=seen.evidence,
            allocated=self._child.facts.allocated_window,
            planned=self._child.planned_window,
            pinned=look.pinned,
            footprint=None if calm else await self._footprint(),
            base=self._child.measured_bytes,
        )
        decision = brake.mlx_step(state, sample)
        if decision.action is Action.RELEASE:
            decision = await self._release(decision, sample)
        return Step(decision, sample, seen.detail)

    async def apply(self, cap: int | None) -> bool:
        """See ``ChildLaw``."""
        return await self._child.set_window(cap)

    async def _release(self, decision: Decision, sample: MlxSample) -> Decision:
        if not await self._child.release():
            return replace(decision, state=decision.otherwise, action=Action.NONE)
        left = await self._settled() if sample.point is Point.IDLE else await self._footprint()
        log.info("%s", brake.log_line(decision, sample, released=left))
        return brake.mlx_released(decision, sample, left)

    async def _settled(self) -> int | None:
        """The lowest footprint over two seconds."""
        seen = [await self._footprint()]
        for _ in range(SETTLING_LOOKS):
            await asyncio.sleep(self._settling / SETTLING_LOOKS)
            seen.append(await self._footprint())
        return min((size for size in seen if size is not None), default=None)

    async def _footprint(self) -> int | None:
        return await asyncio.to_thread(self._held, self._child.pid)


def llama_sample(
    look: Look, child: Child, level: Level, evidence: bool | None, *, footprint: int | None, ram_bytes: int | None
) -> LlamaSample:
    """The sample of a llama-server. Pure."""
    allocated = child.facts.allocated_window
    return LlamaSample(
        now=look.now,
        point=look.point,
        level=level,
        evidence=evidence,
        allocated=allocated,
        planned=look.planned,
        pinned=look.pinned,
        footprint=footprint,
        kv_bytes=kv_bytes(look.model.facts, allocated) if allocated is not None else None,
        ram_bytes=ram_bytes,
    )
