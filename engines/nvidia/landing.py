"""What a CUDA child came to right after its load: where its layers went, what it holds, and what to say. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engines.artifact.facts import ModelFacts
from engines.llama_cpp.output import ServerOutput
from engines.nvidia.placement import Placement, by_gauges, by_nvml, partial_sentence, placed, surplus
from engines.nvidia.spill import ChildVram, load_sentence


@dataclass(frozen=True, slots=True)
class Landing:
    """The verdict on one child."""

    placement: Placement
    """The brake may act only on a full one."""
    says: tuple[tuple[int, str], ...]
    """Lines for the log, each with its level."""


def landing(
    model: str,
    facts: ModelFacts,
    output: ServerOutput,
    window: int | None,
    *,
    vram: ChildVram | None = None,
    nvml_bytes: int | None = None,
    respawned: bool = False,
) -> Landing:
    """Judge a child by what it printed and by what it holds.

    ``window`` is the allocated one in tokens; ``vram`` the stamp of the spill sensor (Windows), ``nvml_bytes`` the
    process's memory by NVML (elsewhere); ``respawned``: the brake started it.
    """
    on_card = by_nvml(nvml_bytes) if vram is None else by_gauges(vram.loaded, vram.healthy)
    placement = placed(output, facts, window, on_card)
    says: list[tuple[int, str]] = []
    if not placement.full:
        says.append((logging.INFO, partial_sentence(model, placement)))
    elif (too_much := surplus(model, facts, output, window, on_card)) is not None:
        says.append((logging.WARNING, too_much))
    if vram is not None and (spills := load_sentence(model, vram)) is not None:
        says.append((logging.INFO if respawned else logging.WARNING, spills))
    return Landing(placement, tuple(says))
