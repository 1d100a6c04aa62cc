"""From a choice to an engine that runs here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engines.by_format import ByFormat
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.engine import Engine
from engines.errors import EngineNotBuilt
from engines.llama_cpp.cpu import CpuEngine
from engines.llama_cpp.cuda import CudaEngine
from engines.llama_cpp.server import Launcher
from engines.llama_cpp.vulkan import VulkanEngine
from engines.nvidia.nvml import Nvml
from engines.nvidia.spill_sensor import SpillSensor
from engines.select import Choice, EngineName

BUILT = frozenset({EngineName.CPU, EngineName.CUDA, EngineName.VULKAN})
"""The engines that this version has."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of besides the choice."""

    ledger: Ledger
    config_folder: Path
    """An empty folder that children take for the user's configuration."""
    load_seconds: float
    missing_server: str | None = None
    """Why there is no llama-server, where there is none."""
    nvml: Nvml | None = None
    """What the CUDA engine asks about the card; None: the library of this system."""
    spill: SpillSensor | None = None
    """What the CUDA engine's brake goes by; None where nothing spills (``spill_sensor.for_this_system``)."""


def usable(choice: Choice, *, asked_for: bool) -> Choice:
    """The engine that really runs for a choice; the reason says where it differs.

    Raises ``EngineNotBuilt`` for an engine that the user ``asked_for``: that is never replaced behind their back.
    """
    if choice.engine in BUILT:
        return choice
    label = choice.engine.upper()
    if asked_for:
        raise EngineNotBuilt(
            f'The {label} engine is not built yet in this version. Set engine = "cpu" or engine = "auto".'
        )
    return Choice(EngineName.CPU, f"{choice.reason}, but the {label} engine is not built yet in this version")


def open_engine(choice: Choice, parts: Parts) -> Engine:
    """Make the engine of a usable choice."""
    engine = _llama(choice, parts)
    return ByFormat(engine, {"gguf": engine})


def _llama(choice: Choice, parts: Parts) -> Engine:
    launcher = Launcher(parts.ledger, for_this_system(), load_seconds=parts.load_seconds)
    if choice.engine is EngineName.CUDA:
        return CudaEngine(launcher, parts.config_folder, parts.missing_server, parts.nvml, parts.spill)
    if choice.engine is EngineName.VULKAN:
        return VulkanEngine(launcher, parts.config_folder, parts.missing_server)
    return CpuEngine(launcher, parts.config_folder, parts.missing_server)
