"""The machine as one value: what a plan depends on, and nothing that changes from one second to the next."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import psutil

from engines.memory.limit import memory_limit
from engines.memory.processor import read_features
from engines.nvidia.gpu import Gpu, version_of
from engines.nvidia.nvml import Cards, Nvml

INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TEMP",
    "TMP",
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "WINDIR",
    "USERPROFILE",
    "LOCALAPPDATA",
    "PROGRAMDATA",
    "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_PATH",
    "GGML_VK_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
)
"""All that a child inherits. Proxy variables, ``LLAMA_*`` and the like change or kill a server."""


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A llama-server on this machine, and what its ``--version`` says."""

    path: str
    version: str
    flavour: str
    """``cpu`` or ``cuda``."""
    source: str
    """Where it was found: ``setting``, ``environment``, ``bundled``, ``package`` or ``PATH``."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A snapshot. ``nvidia_gpus`` and ``mlx`` are None when they were not looked for."""

    system: str
    """As ``platform.system()`` says it: ``Linux``, ``Darwin``, ``Windows``."""
    architecture: str
    ram_bytes: int
    physical_cores: int
    nvidia_gpus: int | None = None
    other_gpus: tuple[str, ...] = ()
    """Devices that a Vulkan llama-server lists."""
    mlx: bool | None = None
    llama_server: ServerProgram | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """The part of the environment that a child inherits."""
    memory_limit_bytes: int | None = None
    """The limit of our own cgroup; None where there is none."""
    cpu_features: tuple[str, ...] = ()
    """What of the processor decides which weights llama.cpp copies (engines/memory/processor.py); empty: unknown."""
    gpus: tuple[Gpu, ...] = ()
    """The NVIDIA cards that could be read."""
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA version that the NVIDIA driver runs; None: unknown."""
    gpu_problem: str = ""
    """Why something of the cards could not be read."""
    gpu_working_set_bytes: int | None = None
    """What Metal recommends as the most that all its programs use; None: not a Mac, or not told."""

    @property
    def usable_bytes(self) -> int:
        """Physical RAM, bounded by our own cgroup's limit."""
        return min(self.ram_bytes, self.memory_limit_bytes or self.ram_bytes)

    def with_server(self, server: ServerProgram | None) -> Machine:
        """The same machine with this llama-server."""
        return replace(self, llama_server=server)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for ``plan --json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Read what ``to_json`` wrote. Raises ``ValueError`` that names the key."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name, kind in (("system", str), ("architecture", str), ("ram_bytes", int), ("physical_cores", int)):
            if not isinstance(known.get(name), kind) or isinstance(known[name], bool):
                raise ValueError(f"machine.{name} must be {'a text' if kind is str else 'a whole number'}")
        limit = known.get("memory_limit_bytes")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit <= 0):
            raise ValueError("machine.memory_limit_bytes must be a whole number over 0, or nothing")
        working_set = known.get("gpu_working_set_bytes")
        if working_set is not None and (not isinstance(working_set, int) or isinstance(working_set, bool)):
            raise ValueError("machine.gpu_working_set_bytes must be a whole number, or nothing")
        features = known.get("cpu_features", ())
        if not isinstance(features, list | tuple) or not all(isinstance(feature, str) for feature in features):
            raise ValueError("machine.cpu_features must be a list of texts")
        unknown = sorted(set(data) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"machine.{unknown[0]} is not a key of a machine snapshot")
        server = known.get("llama_server")
        if server is not None:
            try:
                known["llama_server"] = ServerProgram(**server)
            except TypeError as error:
                raise ValueError(f"machine.llama_server: {error}") from None
        known["other_gpus"] = tuple(known.get("other_gpus", ()))
        known["cpu_features"] = tuple(features)
        try:
            known["gpus"] = tuple(Gpu.from_json(gpu) for gpu in known.get("gpus", ()))
            known["driver_cuda"] = version_of(known.get("driver_cuda"), "driver_cuda")
        except (TypeError, ValueError) as error:
            raise ValueError(f"machine.gpus: {error}") from None
        return cls(**known)


def read_machine(
    *, look_for_gpus: bool, environment: Mapping[str, str] | None = None, nvml: Nvml | None = None
) -> Machine:
    """Look at this machine. Blocking. Without ``look_for_gpus`` no GPU library is touched."""
    inherited = os.environ if environment is None else environment
    cards = (nvml or Nvml.of_this_system()).cards() if look_for_gpus else Cards(0)
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        ram_bytes=psutil.virtual_memory().total,
        physical_cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        nvidia_gpus=cards.count if look_for_gpus else None,
        mlx=find_spec("mlx_vlm") is not None if look_for_gpus else None,
        environment={name: inherited[name] for name in INHERITED if name in inherited},
        memory_limit_bytes=memory_limit(),
        cpu_features=read_features(),
        gpus=cards.gpus,
        driver_cuda=cards.driver_cuda,
        gpu_problem=cards.reason,
    )
