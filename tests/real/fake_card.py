"""``python -m tests.real.fake_card serve …``: the application on a machine with an NVIDIA card that is not there.

NVML and Windows' gauges are faked at their calls; everything else, the llama-server above all, is real. The file named
by ``FAKE_CARD`` (JSON) says what they tell: ``shared`` and ``dedicated`` MiB of every process (null: unreadable), and
at the start ``driver`` (12080 is CUDA 12.8).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.application import Application, on_signals
from app.cli import parser
from app.commands import say_ready
from app.survey import Options, Surroundings, survey
from engines import Choice, Engine, EngineName, Parts, open_engine
from engines.child.ledger import Ledger
from engines.nvidia.nvml import Nvml
from engines.nvidia.spill import GpuUsage
from engines.nvidia.spill_sensor import SpillSensor
from tests.fixtures.fake_nvml import Card, FakeNvml
from tests.real.quick_brake import QUICK

MIB = 1 << 20


def told() -> dict[str, Any]:
    """What the file says now."""
    found: dict[str, Any] = json.loads(Path(os.environ["FAKE_CARD"]).read_text())
    return found


class FileGauges:
    """Windows' gauges, as the file has them."""

    why = "the file says so"

    def usage(self, pid: int) -> GpuUsage | None:
        """See ``Gauges``."""
        now = told()
        return None if now["shared"] is None else GpuUsage(now["dedicated"] * MIB, now["shared"] * MIB)


def with_card(options: Options) -> Surroundings:
    """The survey of this machine, with a card."""
    found = survey(options)
    cards = nvml().cards()
    server = found.machine.llama_server
    assert server is not None
    machine = replace(
        found.machine,
        nvidia_gpus=cards.count,
        gpus=cards.gpus,
        driver_cuda=cards.driver_cuda,
        llama_server=replace(server, flavour="cuda"),
    )
    choice = Choice(EngineName.CUDA, "1 NVIDIA GPU found")
    return replace(found, machine=machine, choice=choice)


def nvml() -> Nvml:
    """A library with one card."""
    return Nvml(FakeNvml([Card()], driver=told().get("driver", 12_080)))


def engine_of(found: Surroundings, ledger: Ledger) -> Engine:
    """The chosen engine over the fakes."""
    sensor = SpillSensor(FileGauges(), found.overrides.force_memory_pressure)
    parts = Parts(ledger, found.home.child_config, found.settings.load_seconds, nvml=nvml(), spill=sensor)
    return open_engine(found.choice, parts)


async def serve(options: Options) -> int:
    """Serve until a signal comes."""
    async with await Application.open(options, with_card(options), engine_of) as app:
        on_signals(asyncio.get_running_loop(), app.stop)
        say_ready(app)
        await app.stopping.wait()
    return 0


if __name__ == "__main__":
    given = parser().parse_args(sys.argv[1:])
    sys.exit(asyncio.run(serve(Options(given.home, tuple(given.models), periods=QUICK))))
