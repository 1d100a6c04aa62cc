"""The VRAM that Windows serves from RAM: the gauges, the levels, and what the brake's law makes of their sequences."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llama_cpp.output import read_output
from engines.memory.brake import Action, BrakeNotice, BrakeState, Decision, Level, LlamaSample, Point, llama_step
from engines.nvidia import spill
from engines.nvidia.spill import ChildVram, GpuUsage
from engines.nvidia.spill_sensor import SpillSensor, for_this_system
from engines.nvidia.spill_windows import WindowsGauges

MIB = 1 << 20
GIB = 1 << 30
PID = 8312
CALM, WARNING, CRITICAL = Level.CALM, Level.WARNING, Level.CRITICAL
START, END, IDLE = Point.TURN_START, Point.TURN_END, Point.IDLE
NONE, RESPAWN, UNLOAD = Action.NONE, Action.SHRINK_RESPAWN, Action.UNLOAD
DISCRETE, INTEGRATED = "0x00000000_0x0000D3E8", "0x00000000_0x0000A1B2"


def instance(pid: int, luid: str = DISCRETE, phys: int = 0) -> str:
    return f"pid_{pid}_luid_{luid}_phys_{phys}"


# --- levels and baselines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "flash", "mib"),
    [
        (0, True, 128),
        (4096, True, 132),
        (8192, True, 136),
        (8192, False, 144),
        (40_960, True, 168),
        (131_072, True, 256),
    ],
)
def test_a_healthy_child_holds_more_with_a_larger_window_and_twice_that_without_flash_attention(
    window: int, flash: bool, mib: int
) -> None:
    assert spill.healthy_bytes(window, flash=flash) == mib * MIB


@pytest.mark.parametrize(("window", "measured_mib"), [(8192, 90), (4096, 106), (40_960, 130)])
def test_what_was_measured_of_healthy_children_is_healthy(window: int, measured_mib: int) -> None:
    assert measured_mib * MIB < spill.healthy_bytes(window, flash=True)


@pytest.mark.parametrize(
    ("printed", "proven", "runs"),
    [
        ("", True, True),
        ("", False, False),
        ("sched_reserve: Flash Attention enabled", False, True),
        ("sched_reserve: Flash Attention not supported, set to disabled", True, False),
        ("Flash Attention enabled\nFlash Attention not supported, set to disabled", True, False),
        ("Flash Attention not supported, set to disabled\nFlash Attention enabled", False, True),
    ],
)
def test_the_last_line_about_flash_attention_counts_more_than_the_proof(printed: str, proven: bool, runs: bool) -> None:
    assert spill.flash_runs(read_output(printed), proven=proven) is runs


@pytest.mark.parametrize(
    ("usage", "baseline"),
    [
        (GpuUsage(GIB, 90 * MIB), 90 * MIB),
        (GpuUsage(GIB, 136 * MIB), 136 * MIB),
        (GpuUsage(GIB, 2 * GIB), 136 * MIB),
        (GpuUsage(GIB, 0), 0),
        (None, 136 * MIB),
    ],
)
def test_the_baseline_is_the_reading_after_the_load_at_most_the_healthy_level(
    usage: GpuUsage | None, baseline: int
) -> None:
    assert spill.stamped(PID, 136 * MIB, usage).baseline == baseline


@pytest.mark.parametrize(
    ("size", "level", "evidence"),
    [
        (0, CALM, False),
        (256 * MIB - 1, CALM, False),
        (256 * MIB, WARNING, True),
        (GIB - 1, WARNING, True),
        (GIB, CRITICAL, True),
        (9 * GIB, CRITICAL, True),
    ],
)
def test_a_spill_to_a_level_and_to_evidence(size: int, level: Level, evidence: bool) -> None:
    child = spill.stamped(PID, 136 * MIB, GpuUsage(GIB, 100 * MIB))
    reading = spill.read(GpuUsage(GIB, 100 * MIB + size), child, "")
    assert (reading.level, reading.spill, reading.evidence) == (level, size, evidence)


@given(st.integers(0, 1 << 42), st.integers(0, 1 << 42), st.integers(0, 1 << 30))
def test_more_shared_memory_is_never_a_better_level(shared: int, more: int, healthy: int) -> None:
    child = spill.stamped(PID, healthy, None)
    levels = [spill.read(GpuUsage(None, size), child, "").level for size in (shared, shared + more)]
    order = list(Level)
    assert levels[0] is not None
    assert levels[1] is not None
    assert order.index(levels[0]) <= order.index(levels[1])


def test_less_than_the_baseline_is_no_spill() -> None:
    child = spill.stamped(PID, 136 * MIB, GpuUsage(GIB, 120 * MIB))
    assert spill.spilled(GpuUsage(GIB, 50 * MIB), child) == 0


def test_the_detail_has_the_raw_values() -> None:
    child = spill.stamped(PID, 136 * MIB, GpuUsage(GIB, 100 * MIB))
    assert spill.read(GpuUsage(3 * GIB, 500 * MIB), child, "").detail == (
        "shared 500 MiB, 400 MiB above the baseline of 100 MiB; dedicated 3,072 MiB"
    )
    assert spill.read(GpuUsage(None, 500 * MIB), child, "").detail.endswith("dedicated unreadable")


@pytest.mark.parametrize(("shared", "said"), [(90, False), (136, False), (137, True), (1400, True)])
def test_a_load_above_the_healthy_level_is_said(shared: int, said: bool) -> None:
    sentence = spill.load_sentence("big", spill.stamped(PID, 136 * MIB, GpuUsage(GIB, shared * MIB)))
    assert (sentence is not None) is said
    if sentence is not None:
        assert "136 MiB is healthy" in sentence


def test_a_load_without_a_reading_says_nothing() -> None:
    assert spill.load_sentence("big", spill.stamped(PID, 136 * MIB, None)) is None


# --- which instance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dedicated", "shared", "usage"),
    [
        ({instance(PID): 5 * GIB}, {instance(PID): 90 * MIB}, GpuUsage(5 * GIB, 90 * MIB)),
        (
            {instance(PID, INTEGRATED): 0, instance(PID): 5 * GIB},
            {instance(PID, INTEGRATED): 7 * GIB, instance(PID): 90 * MIB},
            GpuUsage(5 * GIB, 90 * MIB),
        ),
        (
            {instance(PID, phys=0): GIB, instance(PID, phys=1): 2 * GIB, instance(PID, INTEGRATED): 2 * GIB},
            {instance(PID, phys=0): 10, instance(PID, phys=1): 20, instance(PID, INTEGRATED): 30},
            GpuUsage(3 * GIB, 30),
        ),
        (
            {instance(83_120): 9 * GIB, instance(831): 9 * GIB, instance(PID): GIB},
            {instance(83_120): 1, instance(831): 2, instance(PID): 3},
            GpuUsage(GIB, 3),
        ),
        ({instance(PID).replace("0x0000D3E8", "0x0000d3e8"): GIB}, {instance(PID): 3}, GpuUsage(GIB, 3)),
        ({instance(1): GIB}, {instance(1): 3}, None),
        ({instance(PID): GIB}, {}, None),
        ({}, {instance(PID): GIB}, None),
        ({"_Total": GIB, "": 1}, {"_Total": GIB}, None),
    ],
    ids=[
        "one adapter",
        "the discrete card of a laptop",
        "linked cards are one adapter",
        "only this process",
        "the spelling of the luid",
        "another process",
        "half a reading",
        "the other half",
        "no instances of processes",
    ],
)
def test_the_adapter_that_holds_most_of_the_childs_dedicated_memory(
    dedicated: Mapping[str, float], shared: Mapping[str, float], usage: GpuUsage | None
) -> None:
    assert spill.of_process(PID, dedicated, shared) == usage


@given(st.dictionaries(st.text(max_size=60), st.floats(-1e15, 1e15)))
def test_no_name_of_an_instance_breaks_it(gauge: dict[str, float]) -> None:
    spill.of_process(PID, gauge, gauge)


# --- PDH, at the library's calls --------------------------------------------------------------------------------------


class Pdh:
    """``win32pdh``: the gauges of one look after the other; None is a look that PDH refuses."""

    PDH_FMT_LARGE = 0x400

    class error(Exception):
        pass

    class counter_status_error(Exception):
        pass

    def __init__(self, *looks: GpuUsage | None, denies: str = "") -> None:
        self.looks: Iterator[GpuUsage | None] = iter(looks)
        self.denies, self.queries = denies, 0
        self.now: GpuUsage | None = None

    def _may(self, call: str) -> None:
        if self.denies == call:
            raise self.error(-1073738824, call, "The specified object was not found on the computer.")

    def OpenQuery(self) -> int:
        self._may("OpenQuery")
        self.queries += 1
        return 1

    def CloseQuery(self, query: int) -> None:
        self.queries -= 1

    def AddEnglishCounter(self, query: int, path: str) -> str:
        self._may("AddEnglishCounter")
        assert query == 1
        assert path.startswith("\\GPU Process Memory(*)\\")
        return path.rsplit("\\", maxsplit=1)[-1]

    def CollectQueryData(self, query: int) -> None:
        self._may("CollectQueryData")
        self.now = next(self.looks)

    def GetFormattedCounterArray(self, counter: str, kind: int) -> dict[str, int]:
        assert kind == self.PDH_FMT_LARGE
        if self.now is None:
            raise self.counter_status_error(-1073738810, "GetFormattedCounterArray", "The data is not valid.")
        size = {"Dedicated Usage": self.now.dedicated or 0, "Shared Usage": self.now.shared}[counter]
        return {instance(4): 77 * GIB, instance(PID): size}


def test_the_gauges_of_the_child_in_one_query() -> None:
    pdh = Pdh(GpuUsage(GIB, 5), GpuUsage(GIB, 6))
    gauges = WindowsGauges(pdh)
    assert [gauges.usage(PID), gauges.usage(PID)] == [GpuUsage(GIB, 5), GpuUsage(GIB, 6)]
    assert (pdh.queries, gauges.why) == (1, "")


@pytest.mark.parametrize("call", ["OpenQuery", "AddEnglishCounter", "CollectQueryData"])
def test_a_refusal_is_no_reading_and_names_its_reason_until_pdh_answers_again(call: str) -> None:
    pdh = Pdh(GpuUsage(GIB, 5), denies=call)
    gauges = WindowsGauges(pdh)
    assert gauges.usage(PID) is None
    assert "was not found on the computer" in gauges.why
    pdh.denies = ""
    assert gauges.usage(PID) == GpuUsage(GIB, 5)
    assert (gauges.why, pdh.queries) == ("", 1)


def test_a_process_without_an_instance_is_no_reading() -> None:
    gauges = WindowsGauges(Pdh(GpuUsage(GIB, 5)))
    assert gauges.usage(99) is None
    assert gauges.why == "no instance for process 99"


# --- the sensor -------------------------------------------------------------------------------------------------------


def unreadable(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "unreadable" in r.getMessage()]


def test_an_unreadable_gauge_is_one_warning_an_episode_and_a_good_reading_rearms_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = GpuUsage(GIB, 100 * MIB)
    sensor = SpillSensor(WindowsGauges(Pdh(good, None, None, None, good, None, good)))
    child = sensor.stamp(PID, 8192, flash=True)
    levels, said = [], []
    for _ in range(6):
        levels.append(sensor.read(child, "big").level)
        said.append(len(unreadable(caplog)))
    assert levels == [None, None, None, CALM, None, CALM]
    assert said == [1, 1, 1, 1, 2, 2]
    assert unreadable(caplog)[0] == (
        "GPU spill gauge unreadable for big ((-1073738810, 'GetFormattedCounterArray', 'The data is not valid.'));"
        " the memory brake is off while it stays unreadable"
    )


def test_each_child_has_its_own_episode_and_a_new_child_with_an_old_id_a_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sensor = SpillSensor(WindowsGauges(Pdh(*[None] * 9)))
    one, other = sensor.stamp(PID, 8192, flash=True), sensor.stamp(99, 8192, flash=True)
    for child in (one, other, one, other):
        sensor.read(child, "big")
    assert len(unreadable(caplog)) == 2
    again = sensor.stamp(PID, 8192, flash=True)
    sensor.read(again, "big")
    assert len(unreadable(caplog)) == 3


@pytest.mark.parametrize("window", [4096, 8192, 131_072])
@pytest.mark.parametrize(
    ("value", "tier", "level"), [("vram-warning", 256 * MIB, WARNING), ("vram-critical", GIB, CRITICAL)]
)
@pytest.mark.parametrize("real", [GpuUsage(3 * GIB, 5), None], ids=["readable", "unreadable"])
def test_the_qa_values_force_the_spill_at_load_and_on_every_reading(
    window: int, value: str, tier: int, level: Level, real: GpuUsage | None
) -> None:
    sensor = SpillSensor(WindowsGauges(Pdh(real, real, real)), value)
    child = sensor.stamp(PID, window, flash=True)
    healthy = spill.healthy_bytes(window, flash=True)
    dedicated = None if real is None else 3 * GIB
    assert child == ChildVram(PID, healthy, healthy, GpuUsage(dedicated, healthy + tier))
    for _ in range(2):
        reading = sensor.read(child, "big")
        assert (reading.level, reading.spill, reading.evidence) == (level, tier, True)
    assert spill.load_sentence("big", child) is not None


@pytest.mark.parametrize("value", [None, "", "warning", "critical"])
def test_the_values_about_ram_do_nothing_to_vram(value: str | None) -> None:
    sensor = SpillSensor(WindowsGauges(Pdh(GpuUsage(GIB, 5), GpuUsage(GIB, 5))), value)
    assert sensor.read(sensor.stamp(PID, 8192, flash=True), "big").level is CALM


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has the gauges")
@pytest.mark.parametrize("value", [None, "warning", "critical", "vram-warning", "vram-critical"])
def test_elsewhere_than_on_windows_there_is_no_sensor_whatever_is_forced(value: str | None) -> None:
    assert for_this_system(value) is None


# --- recorded sequences through the law -------------------------------------------------------------------------------


class Story:
    """One child on Windows: its gauges look by look, its brake, a minute between samples, respawns carried out."""

    def __init__(self, *looks: GpuUsage | None, window: int = 40_960, forced: str | None = None) -> None:
        self.window = self.planned = window
        self.sensor = SpillSensor(WindowsGauges(Pdh(*looks)), forced)
        self.child = self.sensor.stamp(PID, window, flash=True)
        self.state, self.now = BrakeState(), 1000.0

    def see(self, point: Point) -> Decision | None:
        """A sample, None where the gauge made none."""
        reading = self.sensor.read(self.child, "big")
        self.now += 60
        if reading.level is None:
            return None
        sample = LlamaSample(
            now=self.now,
            point=point,
            level=reading.level,
            evidence=reading.evidence,
            allocated=self.window,
            planned=self.planned,
        )
        decision = llama_step(self.state, sample, asks_share=False)
        self.state = decision.state
        if decision.action is RESPAWN:
            assert decision.cap is not None
            self.window = decision.cap
            self.child = self.sensor.stamp(PID, self.window, flash=True)
        return decision

    def tell(self, *points: Point) -> list[tuple[Action, int | None] | None]:
        decisions = [self.see(point) for point in points]
        return [None if d is None else (d.action, d.after) for d in decisions]


def shared(*sizes: int | None) -> list[GpuUsage | None]:
    """Looks with that many MiB of Shared Usage; None is unreadable."""
    return [None if size is None else GpuUsage(7 * GIB, size * MIB) for size in sizes]


def test_a_stable_small_spill_is_calm_and_never_acts() -> None:
    story = Story(*shared(130, *[380] * 12))
    points = [START, END, IDLE] * 4
    assert story.tell(*points) == [(NONE, None)] * 12
    assert (story.state.episode, story.state.memory.empty) == (None, True)


def test_a_child_that_spilled_at_its_load_counts_from_the_healthy_level() -> None:
    story = Story(*shared(168 + 600, 168 + 600, 168 + 600, 150))
    assert story.child.baseline == 168 * MIB
    assert story.tell(END) == [(NONE, None)]
    assert story.state.pending == 30_720
    assert story.tell(IDLE) == [(RESPAWN, 30_720)]


def test_a_warning_at_the_end_of_a_turn_waits_for_the_user_to_be_away() -> None:
    story = Story(*shared(130, 130, 420, 430, 120, 120, 120))
    assert story.tell(START, END) == [(NONE, None), (NONE, None)]
    assert story.state.pending == 30_720
    applied = story.see(IDLE)
    assert applied is not None
    assert (applied.action, applied.cap, applied.notice) == (RESPAWN, 30_720, BrakeNotice.ACTED)
    assert story.child.baseline == 120 * MIB
    assert story.tell(END, IDLE) == [(NONE, None)] * 2
    assert story.state.episode is None


def test_critical_acts_at_the_turn_and_later_unloads_a_child_that_nobody_uses() -> None:
    story = Story(*shared(130, 1400, 1300, 1300, 1300))
    assert story.tell(END) == [(RESPAWN, 20_480)]
    assert story.child.baseline == 148 * MIB
    assert story.tell(IDLE, IDLE) == [(NONE, None), (UNLOAD, 0)]


def test_while_the_gauge_is_unreadable_nothing_acts_and_the_episode_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = Story(*shared(130, 420, None, None, None, 420, 120, None, 120, 120))
    assert story.tell(END) == [(NONE, None)]
    assert story.tell(IDLE, END, IDLE) == [None, None, None]
    assert story.state.pending == 30_720
    assert story.tell(IDLE) == [(RESPAWN, 30_720)]
    assert story.tell(IDLE, END) == [None, (NONE, None)]
    assert len(unreadable(caplog)) == 2


def test_a_child_loaded_blind_counts_from_the_healthy_level_once_it_can_be_seen() -> None:
    story = Story(*shared(None, 168 + 255, 168 + 1024, 120))
    assert story.child.baseline == 168 * MIB
    assert story.tell(END, END) == [(NONE, None), (RESPAWN, 20_480)]


def test_at_the_floor_nothing_is_resized_and_two_idle_criticals_unload() -> None:
    story = Story(*shared(130, *[1400] * 4), window=4096)
    assert story.tell(START, END) == [(NONE, None)] * 2
    assert story.tell(IDLE, IDLE) == [(NONE, None), (UNLOAD, 0)]


def test_forced_warning_end_to_end() -> None:
    story = Story(*shared(*[90] * 5), forced="vram-warning")
    assert story.tell(END, IDLE) == [(NONE, None), (RESPAWN, 30_720)]
    assert story.child.healthy == spill.healthy_bytes(30_720, flash=True)
    assert story.tell(IDLE) == [(NONE, None)]


def test_forced_critical_end_to_end() -> None:
    story = Story(*shared(*[90] * 20), forced="vram-critical")
    assert story.tell(END) == [(RESPAWN, 20_480)]
    assert story.tell(END) == [(RESPAWN, 10_240)]
    assert story.tell(IDLE, IDLE) == [(NONE, None), (UNLOAD, 0)]


def test_a_calm_gauge_lets_the_window_grow_again() -> None:
    story = Story(*shared(130, 1400, *[120] * 6))
    assert story.tell(END) == [(RESPAWN, 20_480)]
    assert story.tell(*[IDLE] * 5)[-1] == (Action.GROW, 25_600)
