"""What the memory brake costs: from the sample that decides to the memory given back, and to the smaller child."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from bench_subject import Target, stream
from layout import MODELS, ROOT

SMALL_RAM = 1 << 30
"""The machine that is played: the demo model's KV cache is over a tenth of it, so that the brake acts."""
PRESSURE = "PLIMSOLL_FORCE_MEMORY_PRESSURE"
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Respawn:
    """One respawn; seconds, and bytes of the child's anonymous memory before and after."""

    freed: float
    ready: float
    load: float
    plain_load: float
    before: int
    after: int


async def measure(model: str) -> Respawn:
    """Load the model, let a turn end under critical pressure, and watch the child give way to a smaller one."""
    sys.path.insert(0, str(ROOT))
    from app.application import Application
    from app.survey import Options, survey

    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder) / "home", (MODELS,))
        found = survey(options, {**os.environ, PRESSURE: "critical"})
        found = replace(found, machine=replace(found.machine, ram_bytes=SMALL_RAM))
        async with await Application.open(options, found) as app:
            target = Target(int(str(app.ready_facts()["port"])))
            await asyncio.to_thread(stream, target, model, 1)
            began = time.perf_counter()  # the turn is over: the sample is taken now
            (first,) = app.host.status().children
            while first.pid is not None and psutil.pid_exists(first.pid):
                await asyncio.sleep(POLL_SECONDS)
            freed = time.perf_counter() - began
            while not (ready_ones := [c for c in app.host.status().children if c.pid not in {None, first.pid}]):
                await asyncio.sleep(POLL_SECONDS)
            (second,) = ready_ones
            ready = time.perf_counter() - began
    return Respawn(
        freed,
        ready,
        second.load_seconds or 0.0,
        first.load_seconds or 0.0,
        first.memory.measured or 0,
        second.memory.measured or 0,
    )
