"""The Windows sensor against fakes of kernel32, win32api and win32pdh, and the integral of a rate."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.memory.pressure.levels import Level
from engines.memory.pressure.windows import Integral, WindowsSensor

GIB = 1 << 30


class Kernel32:
    """The low-memory notification; ``low`` None is a query that fails."""

    def __init__(self, low: bool | None = False, handle: int | None = 44) -> None:
        self.low, self.handle = low, handle

    def CreateMemoryResourceNotification(self, kind: int) -> int | None:
        assert kind == 0
        return self.handle

    def QueryMemoryResourceNotification(self, handle: Any, state: Any) -> int:
        assert handle.value == self.handle
        if self.low is None:
            return 0
        state._obj.value = int(self.low)
        return 1


class Api:
    """``win32api``: 16 GiB of RAM, a commit limit of 20 GiB."""

    class error(Exception):
        pass

    def __init__(self, available: int = 8 * GIB, commit_left: int = 10 * GIB, works: bool = True) -> None:
        self.available, self.commit_left, self.works = available, commit_left, works

    def GlobalMemoryStatusEx(self) -> dict[str, int]:
        if not self.works:
            raise self.error(5, "GlobalMemoryStatusEx", "Access is denied.")
        return {
            "AvailPhys": self.available,
            "TotalPhys": 16 * GIB,
            "AvailPageFile": self.commit_left,
            "TotalPageFile": 20 * GIB,
            "MemoryLoad": 50,
        }


class Pdh:
    """``win32pdh``: a query with one counter; ``rates`` are pages a second, one for each look after the first."""

    PDH_FMT_DOUBLE = 512

    class error(Exception):
        pass

    class counter_status_error(Exception):
        pass

    def __init__(self, *rates: float | None, denies: str = "") -> None:
        self.rates, self.denies, self.looks = list(rates), denies, 0

    def OpenQuery(self) -> int:
        if self.denies == "OpenQuery":
            raise self.error(-1073738822, "OpenQuery", "Unable to open the query.")
        return 1

    def AddEnglishCounter(self, query: int, path: str) -> int:
        assert (query, path) == (1, r"\Memory\Pages Output/sec")
        if self.denies == "AddEnglishCounter":
            raise self.error(-1073738824, "AddEnglishCounter", "The specified object was not found.")
        return 2

    def CollectQueryData(self, query: int) -> None:
        self.looks += 1

    def GetFormattedCounterValue(self, counter: int, kind: int) -> tuple[int, float]:
        assert (counter, kind) == (2, self.PDH_FMT_DOUBLE)
        assert self.looks >= 2, "a rate needs two looks"
        rate = self.rates.pop(0)
        if rate is None:
            raise self.counter_status_error("The counter has no data.")
        return 272696320, rate


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sensor(
    kernel: Kernel32 | None = None, api: Api | None = None, pdh: Pdh | None = None, clock: Clock | None = None
) -> WindowsSensor:
    return WindowsSensor(kernel or Kernel32(), api or Api(), pdh or Pdh(*[0.0] * 9), clock or Clock())


@pytest.mark.parametrize(
    ("kernel", "api", "level"),
    [
        (Kernel32(), Api(), Level.CALM),
        (Kernel32(low=True), Api(), Level.WARNING),
        (Kernel32(), Api(available=GIB), Level.WARNING),
        (Kernel32(), Api(available=GIB // 2), Level.CRITICAL),
        (Kernel32(), Api(commit_left=GIB - 1), Level.CRITICAL),
        (Kernel32(low=None), Api(), Level.CALM),
        (Kernel32(handle=None), Api(), Level.CALM),
        (Kernel32(low=True), Api(works=False), Level.WARNING),
        (Kernel32(), Api(works=False), None),
        (Kernel32(low=None), Api(works=False), None),
    ],
)
def test_a_level(kernel: Kernel32, api: Api, level: Level | None) -> None:
    found = sensor(kernel, api).read()
    assert found.level == level
    expected = (api.available, 16 * GIB) if api.works else (None, None)
    assert (found.available_bytes, found.total_bytes) == expected


def test_the_detail_has_the_raw_values_or_names_what_is_unreadable() -> None:
    good = sensor().read().detail
    assert good == (
        "low-memory notification False; 8,192 of 16,384 MiB available; 10,240 MiB may still be committed; 0 bytes out"
    )
    bad = sensor(Kernel32(handle=None), Api(works=False), Pdh(denies="OpenQuery")).read().detail
    assert bad.startswith(
        "the low-memory notification is unreadable; available RAM is unreadable; paging is unreadable"
    )
    assert "Unable to open the query" in bad


def test_the_rate_is_added_up_to_bytes() -> None:
    clock = Clock()
    looked = sensor(pdh=Pdh(0.0, 100.0, 50.0), clock=clock)
    bytes_out = []
    for seconds in (5, 10, 2):
        clock.now += seconds
        bytes_out.append(looked.read().paged_out_bytes)
    assert bytes_out == [0, 1000 * mmap.PAGESIZE, 1100 * mmap.PAGESIZE]


def test_an_interval_without_a_rate_is_unknown_and_the_count_goes_on() -> None:
    clock = Clock()
    looked = sensor(pdh=Pdh(10.0, None, 10.0), clock=clock)
    bytes_out = []
    for _ in range(3):
        clock.now += 1
        bytes_out.append(looked.read().paged_out_bytes)
    assert bytes_out == [10 * mmap.PAGESIZE, None, 20 * mmap.PAGESIZE]


@pytest.mark.parametrize("call", ["OpenQuery", "AddEnglishCounter"])
def test_a_denied_query_leaves_the_level(call: str) -> None:
    found = sensor(Kernel32(low=True), pdh=Pdh(denies=call)).read()
    assert (found.level, found.paged_out_bytes) == (Level.WARNING, None)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e4))))
def test_an_integral_never_falls(steps: list[tuple[float, float]]) -> None:
    integral, now = Integral(5.0), 5.0
    for rate, seconds in steps:
        before, now = integral.total, now + seconds
        integral = integral.add(rate, now)
        assert integral.total >= before
        assert integral.at == now
    assert Integral(9.0, 4.0).add(7.0, 3.0).total == 4.0
