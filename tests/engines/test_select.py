"""Which engine a machine deserves: the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import select_engine
from engines.artifact.facts import ModelFacts
from engines.child.ledger import Ledger
from engines.errors import EngineUnavailable
from engines.machine import Machine, ServerProgram
from engines.plan import LaunchSettings
from engines.select import Choice, EngineName
from engines.workshop import Parts, open_engine
from tests.fixtures.facts import facts


def machine(
    system: str,
    architecture: str,
    gpus: int | None = None,
    others: tuple[str, ...] = (),
    *,
    flavour: str | None = None,
    mlx: bool | None = None,
) -> Machine:
    server = None if flavour is None else ServerProgram("llama-server", "1", flavour, "bundled")
    return Machine(system, architecture, 16 << 30, 8, nvidia_gpus=gpus, other_gpus=others, llama_server=server, mlx=mlx)


GGUF, MLX = facts(), facts(format="mlx")
CPU_BUILD = machine("Linux", "x86_64", 1, flavour="cpu")
NO_MLX = machine("Darwin", "arm64", mlx=False)


@pytest.mark.parametrize(
    ("where", "preference", "force_cpu", "engine", "reason"),
    [
        (machine("Darwin", "arm64"), "auto", False, "mlx", "Apple Silicon"),
        (machine("Darwin", "x86_64"), "auto", False, "cpu", "this Mac has no Apple Silicon"),
        (machine("Linux", "x86_64", 1), "auto", False, "cuda", "1 NVIDIA GPU found"),
        (machine("Windows", "AMD64", 2), "auto", False, "cuda", "2 NVIDIA GPUs found"),
        (machine("Linux", "x86_64", 0), "auto", False, "cpu", "no NVIDIA GPU found"),
        (machine("Linux", "aarch64", None), "auto", False, "cpu", "no NVIDIA GPU found"),
        (
            machine("Linux", "x86_64", 0, ("AMD Radeon",)),
            "auto",
            False,
            "cpu",
            'no NVIDIA GPU found; AMD Radeon can be tried with engine = "vulkan"',
        ),
        (machine("Linux", "x86_64", 1, flavour="cuda"), "auto", False, "cuda", "1 NVIDIA GPU found"),
        (CPU_BUILD, "cuda", False, "cuda", 'the setting engine = "cuda"'),
        (machine("Linux", "x86_64", 1), "cpu", False, "cpu", 'the setting engine = "cpu"'),
        (machine("Linux", "x86_64", 0), "mlx", False, "mlx", 'the setting engine = "mlx"'),
        (machine("Linux", "x86_64", 0), "vulkan", False, "vulkan", 'the setting engine = "vulkan"'),
        (machine("Darwin", "arm64"), "cuda", False, "cuda", 'the setting engine = "cuda"'),
        (machine("Linux", "x86_64", 1), "cuda", True, "cpu", "PLIMSOLL_FORCE_CPU=1 is set"),
        (machine("Darwin", "arm64"), "auto", True, "cpu", "PLIMSOLL_FORCE_CPU=1 is set"),
    ],
)
def test_the_engine_and_its_reason(where: Machine, preference: str, force_cpu: bool, engine: str, reason: str) -> None:
    assert select_engine(where, preference=preference, force_cpu=force_cpu) == Choice(EngineName(engine), reason)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (CPU_BUILD, "1 NVIDIA GPU found, but no llama-server with CUDA code: name one (setting llama_server)"),
        (NO_MLX, "Apple Silicon, but mlx-vlm is not installed"),
    ],
)
def test_a_machine_whose_engine_cannot_run_gets_the_cpu_and_is_told(where: Machine, reason: str) -> None:
    assert select_engine(where) == Choice(EngineName.CPU, reason, lesser=True)


@pytest.mark.parametrize("name", EngineName)
def test_a_choice_becomes_its_engine(name: EngineName, tmp_path: Path) -> None:
    parts = Parts(Ledger(tmp_path / "w.json"), tmp_path, 1.0)
    assert open_engine(Choice(name, "the setting"), parts).name == name.value


@pytest.mark.parametrize(
    ("name", "missing", "model", "engine"),
    [
        (EngineName.CPU, None, GGUF, "cpu"),
        (EngineName.CPU, None, MLX, 'The CPU engine does not run m. It is an MLX model: set engine = "mlx"'),
        (EngineName.MLX, None, MLX, "mlx"),
        (EngineName.MLX, None, GGUF, "cpu"),
        (EngineName.MLX, "no llama-server", GGUF, "The MLX engine does not run m. It is a GGUF file: name a llama-"),
    ],
)
def test_the_format_decides_which_engine_runs_a_model(
    name: EngineName, missing: str | None, model: ModelFacts, engine: str, tmp_path: Path
) -> None:
    opened = open_engine(Choice(name, ""), Parts(Ledger(tmp_path / "w.json"), tmp_path, 1.0, missing))
    machine = Machine("Linux", "x86_64", 16 << 30, 8, llama_server=ServerProgram("llama-server", "1", "cpu", "bundled"))
    try:
        said = opened.plan("m", model, machine, LaunchSettings()).engine
    except EngineUnavailable as error:
        said = error.sentence
    assert said.startswith(engine)
