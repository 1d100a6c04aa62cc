"""From a choice to an engine that runs here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engines.by_format import ByFormat
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.engine import Engine
from engines.llama_cpp.cpu import CpuEngine
from engines.llama_cpp.cuda import CudaEngine
from engines.llama_cpp.server import Launcher
from engines.llama_cpp.vulkan import VulkanEngine
from engines.mlx.engine import MlxEngine
from engines.nvidia.nvml import Nvml
from engines.nvidia.spill_sensor import SpillSensor
from engines.select import Choice, EngineName


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


def open_engine(choice: Choice, parts: Parts) -> Engine:
    """Make the engine of a choice. On a machine with MLX a llama-server runs the GGUF files beside it."""
    if choice.engine is not EngineName.MLX:
        engine = _llama(choice.engine, parts)
        return ByFormat(engine, {"gguf": engine})
    mlx = MlxEngine(parts.ledger, parts.config_folder, load_seconds=parts.load_seconds)
    beside = {} if parts.missing_server is not None else {"gguf": _llama(EngineName.CPU, parts)}
    return ByFormat(mlx, {"mlx": mlx, **beside})


def _llama(name: EngineName, parts: Parts) -> Engine:
    launcher = Launcher(parts.ledger, for_this_system(), load_seconds=parts.load_seconds)
    if name is EngineName.CUDA:
        return CudaEngine(launcher, parts.config_folder, parts.missing_server, parts.nvml, parts.spill)
    if name is EngineName.VULKAN:
        return VulkanEngine(launcher, parts.config_folder, parts.missing_server)
    return CpuEngine(launcher, parts.config_folder, parts.missing_server)
