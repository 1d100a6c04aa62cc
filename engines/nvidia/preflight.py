"""Can this card run the server at all? Asked before a load; a verdict proposes the CPU engine, never switches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engines.errors import DriverTooOld, GpuTooOld
from engines.nvidia.gpu import Gpu

LEAST_CAPABILITY = (5, 0)
"""Compute capability under which llama.cpp's CUDA code does not run (Maxwell)."""
NATIVE = frozenset({(8, 6), (8, 9), (12, 0)})
"""Compute capabilities that the build has machine code for."""
NATIVE_CUDA = (12, 0)
"""The driver's CUDA version that machine code needs."""
PTX_CUDA = (12, 8)
"""The driver's CUDA version that compiles the build's PTX for any other card."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the card will likely not run a model, with what to do instead."""

    code: str
    """Of the error that the load would end with: ``CUDA_COMPUTE_CAPABILITY_TOO_LOW``, ``CUDA_DRIVER_TOO_OLD``."""
    sentence: str
    proposed_engine: str = "cpu"


def preflight(gpus: Iterable[Gpu], driver_cuda: tuple[int, int] | None) -> Verdict | None:
    """The verdict over the cards that a child would see; None where all will do, or cannot be read."""
    for gpu in gpus:
        verdict = _of_one(gpu, driver_cuda)
        if verdict is not None:
            return verdict
    return None


def _of_one(gpu: Gpu, driver_cuda: tuple[int, int] | None) -> Verdict | None:
    capability = gpu.compute_capability
    if capability is None:
        return None
    if capability < LEAST_CAPABILITY:
        return Verdict(
            GpuTooOld.code,
            f"{gpu.name} has compute capability {_dotted(capability)}; models need {_dotted(LEAST_CAPABILITY)} or"
            " more. Use the CPU engine instead.",
        )
    needed = NATIVE_CUDA if capability in NATIVE else PTX_CUDA
    if driver_cuda is not None and driver_cuda < needed:
        return Verdict(
            DriverTooOld.code,
            f"The NVIDIA driver runs CUDA {_dotted(driver_cuda)}; {gpu.name} needs {_dotted(needed)} or more. Update"
            " the driver, or use the CPU engine instead.",
        )
    return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
