"""What is found before anything is started: the home, the settings, the machine, and the engine that follows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from app import paths, settings
from app.host.braking import Periods
from app.settings import Environment
from engines import Choice, LaunchSettings, Machine, ServerProgram, read_machine
from engines.errors import ServerMissing
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.cuda import devices_of
from engines.llama_cpp.device_list import has_cuda, list_devices, vulkan
from engines.memory.metal import working_set_bytes
from engines.nvidia.preflight import Verdict, preflight
from engines.select import EngineName, select

GIB = 1024**3
NAMED_BY_FLAVOUR = frozenset({"bundled"})
"""The sources of a llama-server that say themselves whether it has CUDA code; others are asked."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says of a run."""

    home: Path | None = None
    models: tuple[Path, ...] = ()
    """Folders besides the home's and the settings'."""
    console_log: bool = False
    periods: Periods = field(default_factory=Periods)
    """How often the brake looks."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found: the same for a run, a plan and the doctor."""

    home: paths.Home
    settings: settings.Settings
    machine: Machine
    choice: Choice
    """The engine, and why it is this one."""
    missing_server: str | None
    repaired: tuple[str, ...]
    overrides: Environment

    @property
    def launch(self) -> LaunchSettings:
        """What the user said about launches."""
        override = self.overrides.vram_override_gb
        return LaunchSettings(
            window=self.settings.window,
            threads=self.settings.threads,
            free_memory_rule=self.settings.size_to_free_memory,
            vram_override_bytes=int(override * GIB) if override is not None else None,
        )

    @property
    def doubt(self) -> Verdict | None:
        """Why the card will likely not run a model; None where it will, or where no card is used."""
        if self.choice.engine is not EngineName.CUDA:
            return None
        return preflight(devices_of(self.machine).gpus, self.machine.driver_cuda)


def survey(options: Options, environ: Mapping[str, str] = os.environ) -> Surroundings:
    """Look at the home, the settings and the machine. Blocking. Raises errors with a ``sentence``."""
    home = paths.home(options.home)
    repaired = paths.prepare(home)
    overrides = Environment.read(environ)
    chosen = overrides.over(settings.load(home.settings))
    looks = not overrides.force_cpu and chosen.engine != "cpu"
    machine = read_machine(look_for_gpus=looks, environment=environ)
    server, missing = _server(chosen, machine, environ)
    machine = machine.with_server(server)
    if server is not None and looks and not machine.nvidia_gpus and chosen.engine in {"auto", "vulkan"}:
        machine = replace(machine, other_gpus=vulkan(list_devices(server.path, machine.environment)))
    choice = select(machine, preference=chosen.engine, force_cpu=overrides.force_cpu)
    if choice.engine is EngineName.MLX:
        machine = replace(machine, gpu_working_set_bytes=_working_set(chosen))
    return Surroundings(home, chosen, machine, choice, missing, tuple(repaired), overrides)


def _working_set(chosen: settings.Settings) -> int | None:
    """What Metal recommends, or what the user says; None: nobody tells, and no bound of memory is applied."""
    if chosen.gpu_working_set_gib is not None:
        return int(chosen.gpu_working_set_gib * GIB)
    return working_set_bytes()


def _server(
    chosen: settings.Settings, machine: Machine, environ: Mapping[str, str]
) -> tuple[ServerProgram | None, str | None]:
    """The llama-server, with CUDA code where there are cards for it; None and why there is none."""
    flavour = "cuda" if machine.nvidia_gpus and chosen.engine in {"auto", "cuda"} else "cpu"
    try:
        found = find_server(setting=chosen.llama_server, flavour=flavour, environment=environ)
    except ServerMissing as error:
        return None, error.sentence
    if flavour == "cuda" and found.source not in NAMED_BY_FLAVOUR:
        able = has_cuda(list_devices(found.path, machine.environment))
        found = replace(found, flavour="cuda" if able else "cpu")
    return found, None
