"""What is made of a CUDA child right after its load, and what is said of it."""

from __future__ import annotations

import logging

import pytest

from engines.llama_cpp.output import read_output
from engines.nvidia.landing import landing
from engines.nvidia.spill import ChildVram, GpuUsage, stamped
from tests.fixtures.facts import facts

MIB = 1 << 20
GIB = 1 << 30
WINDOW = 8192
HEALTHY = 136 * MIB
MODEL = facts(weights_bytes=4 * GIB, token_embedding_bytes=GIB, layers=32, heads=(32,) * 32, kv_heads=(8,) * 32)
"""At least 4 GiB on the card, 5.5 GiB by the sum that its window was sized with."""
ALL = "load_tensors: offloaded 33/33 layers to GPU"
SOME = "load_tensors: offloaded 20/33 layers to GPU"


def windows(dedicated: int | None, shared: int) -> ChildVram:
    return stamped(7, HEALTHY, GpuUsage(dedicated, shared))


@pytest.mark.parametrize(
    ("printed", "vram", "nvml", "full", "levels"),
    [
        (ALL, None, 5 * GIB, True, []),
        (ALL, None, None, True, []),
        (ALL, None, 8 * GIB, True, [logging.WARNING]),
        (ALL, None, GIB, False, [logging.INFO]),
        (SOME, None, 8 * GIB, False, [logging.INFO]),
        (SOME, None, None, False, [logging.INFO]),
        (ALL, windows(5 * GIB, 90 * MIB), None, True, []),
        (ALL, windows(GIB, 90 * MIB), None, False, [logging.INFO]),
        (ALL, windows(4 * GIB, HEALTHY + GIB), None, True, [logging.WARNING]),
        (ALL, windows(8 * GIB, HEALTHY + GIB), None, True, [logging.WARNING, logging.WARNING]),
        (ALL, windows(None, HEALTHY + GIB), None, True, [logging.WARNING]),
        (ALL, stamped(7, HEALTHY, None), 1, True, []),
    ],
    ids=[
        "NVML: full",
        "no signal",
        "NVML: too much",
        "NVML: partial",
        "the line: partial, and nothing is said of too much",
        "the line alone",
        "gauges: full",
        "gauges: partial",
        "gauges: a spill at load is not partial",
        "gauges: too much and a spill",
        "gauges: only the shared part",
        "gauges unreadable: NVML is not asked under Windows",
    ],
)
def test_a_landing(printed: str, vram: ChildVram | None, nvml: int | None, full: bool, levels: list[int]) -> None:
    found = landing("big", MODEL, read_output(printed), WINDOW, vram=vram, nvml_bytes=nvml)
    assert found.placement.full is full
    assert [level for level, _ in found.says] == levels


def test_a_spill_after_a_respawn_is_information() -> None:
    vram = windows(4 * GIB, HEALTHY + GIB)
    found = landing("big", MODEL, read_output(ALL), WINDOW, vram=vram, respawned=True)
    assert [level for level, _ in found.says] == [logging.INFO]
