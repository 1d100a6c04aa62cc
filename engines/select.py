"""Which engine this machine deserves, and why: a table from facts to a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engines.llama_cpp.device_list import hardware
from engines.machine import Machine


class EngineName(StrEnum):
    """The engines there are."""

    MLX = "mlx"
    CUDA = "cuda"
    CPU = "cpu"
    VULKAN = "vulkan"


NO_CUDA = "no llama-server with CUDA code: name one (setting llama_server)"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine and the sentence that says why it is this one."""

    engine: EngineName
    reason: str
    lesser: bool = False
    """The machine deserves another engine, which cannot run: the user is told."""


def select(machine: Machine, *, preference: str = "auto", force_cpu: bool = False) -> Choice:
    """Choose the engine.

    ``force_cpu`` (PLIMSOLL_FORCE_CPU=1) wins over everything, ``preference`` (the setting ``engine``) over what was
    found on the machine.
    """
    if force_cpu:
        return Choice(EngineName.CPU, "PLIMSOLL_FORCE_CPU=1 is set")
    if preference != "auto":
        return Choice(EngineName(preference), f'the setting engine = "{preference}"')
    if machine.system == "Darwin":
        if machine.architecture == "arm64" and machine.mlx is False:
            return Choice(EngineName.CPU, "Apple Silicon, but mlx-vlm is not installed", lesser=True)
        if machine.architecture == "arm64":
            return Choice(EngineName.MLX, "Apple Silicon")
        return Choice(EngineName.CPU, "this Mac has no Apple Silicon")
    if machine.nvidia_gpus:
        count = "1 NVIDIA GPU" if machine.nvidia_gpus == 1 else f"{machine.nvidia_gpus} NVIDIA GPUs"
        if machine.llama_server is not None and machine.llama_server.flavour != "cuda":
            return Choice(EngineName.CPU, f"{count} found, but {NO_CUDA}", lesser=True)
        return Choice(EngineName.CUDA, f"{count} found")
    cards = hardware(machine.other_gpus)
    if cards:
        names = ", ".join(cards)
        return Choice(EngineName.CPU, f'no NVIDIA GPU found; {names} can be tried with engine = "vulkan"')
    return Choice(EngineName.CPU, "no NVIDIA GPU found")
