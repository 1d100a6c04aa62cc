"""From raw readings to levels, and what is made of two readings: tables."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.memory.pressure import EVIDENCE_BYTES, Level, Paging, Reading, SayOnce
from engines.memory.pressure.forced import ForcedSensor, forced_level
from engines.memory.pressure.levels import (
    Stall,
    WindowsMemory,
    level_from_available,
    level_from_stall,
    level_from_sysctl,
    level_from_windows,
    stall_of,
    worst,
)

MIB = 1 << 20
CALM, WARNING, CRITICAL = Level
READING = Reading(CALM, 5 * MIB, 900, 1000, "as it is")
LEVELS = st.one_of(st.none(), st.sampled_from(list(Level)))


def psi(some: str, full: str) -> str:
    return f"some avg10={some} avg60=1.00 avg300=0.00 total=12\nfull avg10={full} avg60=0.50 avg300=0.00 total=8\n"


def test_the_levels_are_exactly_these_three() -> None:
    assert [level.value for level in Level] == ["calm", "warning", "critical"]


@pytest.mark.parametrize(
    ("text", "stall"),
    [
        (psi("0.00", "0.00"), Stall(0, 0)),
        (psi("100.00", "99.99"), Stall(100, 99.99)),
        (psi("7.5", "0.1"), Stall(7.5, 0.1)),
        ("some avg10=1.00 avg60=0.00 avg300=0.00 total=0\n", None),
        ("", None),
        (None, None),
        (psi("nan", "1.00"), None),
    ],
)
def test_a_psi_file(text: str | None, stall: Stall | None) -> None:
    assert stall_of(text) == stall


@given(st.text())
def test_any_text_is_a_psi_file_or_none(text: str) -> None:
    assert stall_of(text) is None or level_from_stall(stall_of(text)) is not None


@pytest.mark.parametrize(
    ("stall", "level"),
    [
        (None, None),
        (Stall(0, 0), CALM),
        (Stall(9.99, 9.99), CALM),
        (Stall(10, 0), WARNING),
        (Stall(95, 9.99), WARNING),
        (Stall(10, 10), CRITICAL),
        (Stall(100, 100), CRITICAL),
    ],
)
def test_waiting_for_memory(stall: Stall | None, level: Level | None) -> None:
    assert level_from_stall(stall) == level


@pytest.mark.parametrize(
    ("available", "level"),
    [(1000, CALM), (80, CALM), (79, WARNING), (40, WARNING), (39, CRITICAL), (0, CRITICAL), (None, None)],
)
def test_available_ram_of_a_thousand(available: int | None, level: Level | None) -> None:
    assert level_from_available(available, 1000) == level


def test_available_ram_of_an_unknown_total_says_nothing() -> None:
    assert level_from_available(5, None) is None
    assert level_from_available(5, 0) is None


@pytest.mark.parametrize(
    ("value", "level"), [(1, CALM), (2, WARNING), (4, CRITICAL), (0, None), (3, None), (8, None), (None, None)]
)
def test_the_level_of_macos(value: int | None, level: Level | None) -> None:
    assert level_from_sysctl(value) == level


def windows(available: int = 500, commit_left: int = 500) -> WindowsMemory:
    return WindowsMemory(available, 1000, commit_left, 1000)


@pytest.mark.parametrize(
    ("low", "memory", "level"),
    [
        (False, windows(), CALM),
        (True, windows(), WARNING),
        (None, windows(), CALM),
        (False, windows(available=79), WARNING),
        (False, windows(available=39), CRITICAL),
        (True, windows(available=39), CRITICAL),
        (False, windows(commit_left=50), CALM),
        (False, windows(commit_left=49), CRITICAL),
        (True, None, WARNING),
        (False, None, None),
        (None, None, None),
    ],
)
def test_the_level_of_windows(low: bool | None, memory: WindowsMemory | None, level: Level | None) -> None:
    assert level_from_windows(low, memory) == level


@given(st.lists(LEVELS))
def test_the_worst_known_level_counts(levels: list[Level | None]) -> None:
    known = [level for level in levels if level is not None]
    found = worst(levels)
    assert (found is None) == (not known)
    assert found is None or all(list(Level).index(level) <= list(Level).index(found) for level in known)


@pytest.mark.parametrize(
    ("start", "end", "paged", "evidence"),
    [
        (0, 0, 0, False),
        (MIB, 65 * MIB - 1, 64 * MIB - 1, False),
        (MIB, 65 * MIB, 64 * MIB, True),
        (5, 4, None, None),
        (None, 4, None, None),
        (4, None, None, None),
    ],
)
def test_paging_between_two_readings(
    start: int | None, end: int | None, paged: int | None, evidence: bool | None
) -> None:
    assert Paging(start, end).bytes == paged
    assert Paging(start, end).evidence is evidence


@pytest.mark.parametrize(
    ("once", "readable", "spoken"),
    [
        (SayOnce(), [True, False, False, True, False], [False, True, False, False, False]),
        (SayOnce(rearms=True), [False, False, True, False, False], [True, False, False, True, False]),
    ],
    ids=["once per process", "once per episode of a gauge"],
)
def test_what_cannot_be_read_is_said_once(once: SayOnce, readable: list[bool], spoken: list[bool]) -> None:
    said = []
    for good in readable:
        speak, once = once.after(good)
        said.append(speak)
    assert said == spoken


class Steady:
    def read(self) -> Reading:
        return READING


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("warning", WARNING),
        ("critical", CRITICAL),
        ("vram-warning", None),
        ("vram-critical", None),
        ("calm", None),
        ("", None),
        (None, None),
    ],
)
def test_only_the_two_values_about_ram_force_a_level(value: str | None, level: Level | None) -> None:
    assert forced_level(value) == level


def test_every_forced_reading_has_the_level_and_evidence_since_the_last_one() -> None:
    sensor = ForcedSensor(CRITICAL, Steady())
    readings = [sensor.read() for _ in range(3)]
    assert {reading.level for reading in readings} == {CRITICAL}
    assert {(reading.available_bytes, reading.total_bytes) for reading in readings} == {(900, 1000)}
    for before, after in pairwise(readings):
        assert Paging(before.paged_out_bytes, after.paged_out_bytes).evidence is True
    assert EVIDENCE_BYTES == 64 * MIB
