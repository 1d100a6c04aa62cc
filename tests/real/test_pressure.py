"""Real shortage of memory on Linux: processes in a limited cgroup, a swap file, and what the sensor makes of it.

Needs root; where the machine permits no cgroup or no swap file, the test is skipped with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.memory.pressure import Level, Paging, Reading, Sensor, for_this_system
from tests.fixtures.cgroup import MemoryGroup, memory_group, swap_file
from tests.fixtures.running import ROOT
from tests.fixtures.waiting import until

pytestmark = [
    pytest.mark.pressure,
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="needs PSI and cgroups, which only Linux has"),
]

MIB = 1 << 20
LIMIT = 200 * MIB
CALM_SECONDS = 60
"""An earlier test's pressure takes up to half a minute to leave the 10 s average."""
SHORT_SECONDS = 25
"""How soon each level is reached; 4 to 8 s seen."""
HOGS, HOG = 4, 150 * MIB
"""Several, so that while one waits for its pages the others do too, whatever else runs on the machine."""
HOLD = """
import select, sys
size, step = int(sys.argv[1]), 1 << 24
block = bytearray(size)
while not select.select([sys.stdin], [], [], 0)[0]:
    for start in range(0, size, step):
        end = min(start + step, size)
        block[start:end:4096] = b"x" * len(range(start, end, 4096))
"""
"""Writes to every page of its memory again and again, until the end of its stdin."""
WORK = """
import select, sys
while not select.select([sys.stdin], [], [], 0)[0]:
    sum(range(100_000))
"""
"""Keeps one processor busy."""
INSIDE = """
import json, sys
from dataclasses import asdict
from engines.memory.pressure import for_this_system
sensor, held = for_this_system(), []
for line in sys.stdin:
    what, _, much = line.strip().partition(" ")
    if what == "hold":
        held.append(b"x" * int(much))
    if what == "cache":
        with open(much, "rb", buffering=0) as file:
            while file.read(1 << 20): pass
    print(json.dumps(asdict(sensor.read())), flush=True)
"""
"""A process that reads the sensor from the inside, after it took memory or read a file."""


class Inside:
    """A Python in the group that does as it is told and answers with its reading."""

    def __init__(self, group: MemoryGroup) -> None:
        self.process = subprocess.Popen(
            group.wrap(sys.executable, "-c", INSIDE),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, order: str) -> Reading:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return Reading(**{**found, "level": Level(found["level"])})

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def inside(group: MemoryGroup) -> Iterator[Inside]:
    process = Inside(group)
    try:
        yield process
    finally:
        process.close()


@contextmanager
def running(*commands: tuple[str, ...]) -> Iterator[None]:
    """Processes that end with the block, or with us: at the end of their stdin."""
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def first_other_than(levels: set[Level], sensor: Sensor) -> Reading:
    """The first reading with another level, in bounded time."""
    end = time.monotonic() + SHORT_SECONDS
    while (now := sensor.read()).level in levels:
        assert time.monotonic() < end, now
        time.sleep(0.1)  # the kernel makes a new average every 2 s
    return now


@pytest.fixture(autouse=True)
async def calm() -> None:
    """Every story begins without pressure."""
    sensor = for_this_system()
    await until(lambda: sensor.read().level is Level.CALM, CALM_SECONDS)


def test_a_limited_process_sees_its_own_limit_and_its_level_follows() -> None:
    with memory_group(LIMIT) as group, inside(group) as process:
        begin = process.tell("look")
        assert (begin.level, begin.total_bytes) == (Level.CALM, LIMIT)
        assert begin.available_bytes is not None
        assert LIMIT / 2 < begin.available_bytes < LIMIT

        tight = process.tell(f"hold {begin.available_bytes - int(0.06 * LIMIT)}")
        assert tight.level is Level.WARNING, tight
        assert tight.available_bytes is not None
        assert 0.04 * LIMIT <= tight.available_bytes < 0.08 * LIMIT

        tighter = process.tell(f"hold {tight.available_bytes - int(0.02 * LIMIT)}")
        assert tighter.level is Level.CRITICAL, tighter
    outside = for_this_system().read()
    assert outside.total_bytes is not None
    assert outside.total_bytes > LIMIT


def test_a_group_full_of_file_pages_is_not_short(tmp_path: Path) -> None:
    """A model's file is read through the page cache, which the kernel takes back when it is needed."""
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(2 * LIMIT)
    with memory_group(LIMIT) as group, inside(group) as process:
        read = process.tell(f"cache {model}")
        assert group.usage_bytes() > 0.9 * LIMIT
        assert read.available_bytes is not None
        assert read.available_bytes > 0.5 * LIMIT
        assert read.level is Level.CALM, read


def test_real_paging_drives_the_level_up_and_is_evidence() -> None:
    """While other work goes on beside the waiting ones it is a warning; when nothing gets on any more, critical."""
    sensor = for_this_system()
    with swap_file(512 * MIB), memory_group(LIMIT, swap=True) as group:
        hog = group.wrap(sys.executable, "-c", HOLD, str(HOG))
        work = (sys.executable, "-c", WORK)
        before = sensor.read()
        with running(*[hog] * HOGS):
            with running(*[work] * (os.cpu_count() or 1)):
                warned = first_other_than({Level.CALM}, sensor)
            assert warned.level is Level.WARNING, warned
            short = first_other_than({Level.CALM, Level.WARNING}, sensor)
            assert short.level is Level.CRITICAL, short
        paging = Paging(before.paged_out_bytes, short.paged_out_bytes)
        assert paging.evidence is True, paging
