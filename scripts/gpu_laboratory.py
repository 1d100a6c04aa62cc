"""What a check of a card works with: the card, a server with CUDA code for it, models of a given size."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from build_llama_cpp import build
from steps import SetupError

from engines.artifact.facts import ModelFacts
from engines.artifact.gguf import read_facts
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.errors import ServerMissing
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.cuda import CudaEngine, devices_of
from engines.llama_cpp.server import Launcher
from engines.machine import INHERITED, Machine, ServerProgram, read_machine
from engines.nvidia.gpu import Gpu
from engines.nvidia.nvml import Nvml
from tests.fixtures import tiny_gguf
from tests.fixtures.fake_nvml import Card, FakeNvml

GIB = 1024**3
LOAD_SECONDS = 120.0
LIST_SECONDS = 60.0
DRY_CARD_BYTES = 8 * GIB
LAYER_BYTES = 2 * (2 * 2048 * 2048 + 2 * 1024 * 2048 + 3 * 2048 * 8192)
"""Of one layer of the main model: F16, embedding 2,048, feed-forward 8,192, 16 heads and 8 KV heads of 128."""


@dataclass(frozen=True)
class Laboratory:
    """A card, what runs on it, and the models."""

    engine: CudaEngine
    machine: Machine
    nvml: Nvml
    gpu: Gpu
    dry: bool
    main: ModelFacts
    """Flash Attention is proven for it."""
    plain: ModelFacts
    """Its heads have no Flash Attention kernel."""
    greedy: ModelFacts
    """A small file whose trained window takes 512 GiB of KV cache."""

    @property
    def server(self) -> ServerProgram:
        """What is measured."""
        assert self.machine.llama_server is not None
        return self.machine.llama_server

    def held(self, pid: int, free_before: int | None) -> int | None:
        """Bytes that a child holds on the card: NVML's word, or what has become less free since (in a container NVML
        counts by other process ids)."""
        own = self.nvml.process_bytes(self.gpu.uuid, pid).value
        if own is not None:
            return own
        free = self.free()
        return free_before - free if free is not None and free_before is not None else None

    def free(self) -> int | None:
        """Bytes free on the card."""
        memory = self.nvml.memory(self.gpu.uuid).value
        return memory.free if memory is not None else None


@asynccontextmanager
async def laboratory(*, dry: bool, gib: float) -> AsyncIterator[Laboratory]:
    """Set it up; the models go away with it. Raises ``SetupError`` and ``EngineError``."""
    nvml = dry_nvml() if dry else Nvml.of_this_system()
    machine = read_machine(look_for_gpus=True, nvml=nvml)
    gpu = devices_of(machine).gpu
    if gpu is None:
        why = machine.gpu_problem or devices_of(machine).problem or "NVML counts none"
        raise SetupError("no-card", f"There is no one card to check: {why}. Without a card: --dry.")
    server = replace(find_server(setting=None, flavour="cpu"), flavour="cuda") if dry else cuda_server(gpu)
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as name:
        folder = Path(name)
        config = folder / "config"
        config.mkdir()
        launcher = Launcher(Ledger(folder / "children.json"), for_this_system(), load_seconds=LOAD_SECONDS)
        yield Laboratory(
            engine=CudaEngine(launcher, config, nvml=nvml),
            machine=replace(machine, llama_server=server, physical_cores=1 if dry else machine.physical_cores),
            nvml=nvml,
            gpu=gpu,
            dry=dry,
            main=main_model(folder, gib),
            plain=read_facts(tiny_gguf.make(folder / "plain.gguf", arch="qwen3", head_dim=48, heads=16, kv_heads=8)),
            greedy=greedy_model(folder),
        )


def main_model(folder: Path, gib: float) -> ModelFacts:
    """A model of about ``gib`` GiB; under a quarter a tiny one."""
    layers = max(1, round(gib * GIB / LAYER_BYTES))
    sizes = {"layers": layers, "embd": 2048, "ff": 8192, "heads": 16, "kv_heads": 8, "head_dim": 128}
    if gib < 0.25:
        sizes = {"layers": 4, "embd": 256, "ff": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
    return read_facts(tiny_gguf.make(folder / "main.gguf", arch="qwen3", ctx=1 << 20, **sizes))  # type: ignore[arg-type]


def greedy_model(folder: Path) -> ModelFacts:
    """32 layers of 32 KV heads: 512 KiB of KV cache a token, 67 MB of weights."""
    path = folder / "greedy.gguf"
    return read_facts(
        tiny_gguf.make(path, arch="qwen3", ctx=1 << 20, layers=32, heads=32, kv_heads=32, head_dim=128, ff=64)
    )


def cuda_server(gpu: Gpu) -> ServerProgram:
    """The llama-server of this machine that has CUDA code; built for this card where there is none."""
    try:
        found = find_server(setting=None, flavour="cuda")
        if sees_cuda(found.path):
            return found
    except ServerMissing:
        pass  # built below
    if gpu.compute_capability is None:
        raise SetupError("no-capability", "The card does not say its compute capability: build a llama-server by hand.")
    major, minor = gpu.compute_capability
    build("cuda", (f"-DCMAKE_CUDA_ARCHITECTURES={major}{minor}",))
    found = find_server(setting=None, flavour="cuda")
    if not sees_cuda(found.path):
        raise SetupError("no-cuda", f"{found.path} was built, but lists no CUDA device. Look at the NVIDIA driver.")
    return found


def sees_cuda(path: str) -> bool:
    """Whether a llama-server lists a CUDA device."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        done = subprocess.run(
            (path, "--list-devices"), capture_output=True, text=True, timeout=LIST_SECONDS, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "CUDA" in done.stdout


def dry_nvml() -> Nvml:
    """A card of 8 GiB that our own children hold as much of as they hold RAM."""

    def held() -> dict[int, int | None]:
        return {child.pid: child.memory_info().rss for child in psutil.Process().children()}

    card = Card(uuid="GPU-00000000-dry", name="no card (dry run)", total=DRY_CARD_BYTES, held=held)
    return Nvml(FakeNvml([card]))


FAILING_SERVER = (
    sys.executable,
    "-c",
    "import sys; print('cudaMalloc failed: out of memory', file=sys.stderr); sys.exit(1)",
)
"""A dry run's child whose card is full: 512 GiB of real memory might be granted, and then used."""
