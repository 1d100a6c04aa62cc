"""The Vulkan engine's plan, and what ``--list-devices`` says."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.facts import ModelFacts, ModelKind
from engines.child.ledger import Ledger
from engines.child.parent_death.posix import LifelineOnly
from engines.errors import EngineUnavailable, ServerMissing
from engines.llama_cpp import device_list
from engines.llama_cpp.device_list import VISIBLE, ListedDevice, hardware, list_devices, parse, vulkan
from engines.llama_cpp.server import Launcher
from engines.llama_cpp.vulkan import VulkanEngine
from engines.machine import Machine, ServerProgram
from engines.plan import LaunchSettings, Window
from tests.fixtures.facts import facts

MIB = 1 << 20
RADEON = "AMD Radeon RX 7600 (RADV NAVI33)"
LLVMPIPE = "llvmpipe (LLVM 15.0.6, 256 bits)"
MACHINE = Machine(
    "Linux",
    "x86_64",
    16 << 30,
    8,
    other_gpus=(RADEON,),
    llama_server=ServerProgram("/opt/llama-server", "1", "cpu", "bundled"),
    environment={"PATH": "/bin"},
)
LISTED = f"""\
ggml_vulkan: Found 2 Vulkan devices:
Available devices:
  Vulkan0: {RADEON} (8176 MiB, 8000 MiB free)
  Vulkan1: Intel(R) Arc(tm) A380 Graphics (DG2) (6064 MiB, 5457 MiB free)
  CUDA0: NVIDIA GeForce RTX 3060 (12044 MiB, 11000 MiB free)
  RPC0[127.0.0.1:50052]: RPC (1 MiB, 1 MiB free)
"""
NONE = "Available devices:\n  (none)\n"


@pytest.fixture
def engine(tmp_path: Path) -> VulkanEngine:
    return VulkanEngine(Launcher(Ledger(tmp_path / "w.json"), LifelineOnly()), Path("/empty"))


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_whole_command_line_of_a_chat_model(engine: VulkanEngine) -> None:
    plan = engine.plan("tiny", facts(), MACHINE, LaunchSettings())
    assert " ".join(plan.argv) == (
        "/opt/llama-server --sleep-idle-seconds -1 -m /models/tiny.gguf -ngl -1 -fitt 1024 -t 7 -b 512 "
        "-np 1 --cache-ram 0 --no-cache-idle-slots --no-slots --no-webui --cache-reuse 256 "
        "--host 127.0.0.1 --alias tiny --jinja -lv 4"
    )
    assert plan.engine == "vulkan"
    assert plan.brake is False
    assert plan.memory.predicted is None
    assert plan.window.reason == f"the server sizes the window itself to {RADEON}"
    assert plan == engine.plan("tiny", facts(), MACHINE, LaunchSettings())


@pytest.mark.parametrize(
    ("model", "settings", "window"),
    [
        (facts(), LaunchSettings(), (None, 40960, "model")),
        (facts(trained_window=None), LaunchSettings(), (None, None, "model")),
        (facts(), LaunchSettings(cap=8192, respawn=True), (None, 40960, "model")),
        (facts(), LaunchSettings(available_bytes=1), (None, 40960, "model")),
        (facts(), LaunchSettings(window=8000), (8000, 40960, "user")),
        (facts(trained_window=None), LaunchSettings(window=8000), (8000, None, "user")),
        (facts(), LaunchSettings(window=100_000), (40960, 40960, "model")),
        (facts(kind=ModelKind.EMBEDDING), LaunchSettings(), (8192, 40960, "model")),
        (facts(kind=ModelKind.RERANK, trained_window=512), LaunchSettings(), (512, 512, "model")),
        (facts(kind=ModelKind.EMBEDDING, trained_window=None), LaunchSettings(), (None, None, "model")),
    ],
    ids=[
        "chat",
        "chat, trained window unknown",
        "no cap",
        "free memory does not count",
        "set",
        "set, trained window unknown",
        "set too large",
        "embedder",
        "small reranker",
        "embedder, trained window unknown",
    ],
)
def test_only_a_window_that_was_set_or_that_a_worker_needs_is_passed(
    engine: VulkanEngine, model: ModelFacts, settings: LaunchSettings, window: tuple[int | None, int | None, str]
) -> None:
    plan = engine.plan("tiny", model, MACHINE, settings)
    found: Window = plan.window
    assert (found.planned, found.trained, found.bound_by) == window
    passed = plan.argv[plan.argv.index("-c") + 1] if "-c" in plan.argv else None
    assert passed == (None if found.planned is None else str(found.planned))
    if model.kind is not ModelKind.CHAT and found.planned is not None:
        assert f"-b {found.planned} -ub {found.planned}" in " ".join(plan.argv)


def test_a_projector_goes_along(engine: VulkanEngine) -> None:
    plan = engine.plan("tiny", facts(projector=Path("/models/mmproj.gguf")), MACHINE, LaunchSettings())
    assert plan.argv[plan.argv.index("--mmproj") + 1] == "/models/mmproj.gguf"


def test_a_child_gets_the_allow_list_and_its_empty_config_folder(engine: VulkanEngine) -> None:
    env = engine.plan("tiny", facts(), MACHINE, LaunchSettings()).env
    assert (env["PATH"], env["XDG_CONFIG_HOME"]) == ("/bin", "/empty")


def test_a_software_device_is_used_when_the_server_names_it(engine: VulkanEngine) -> None:
    plan = engine.plan("tiny", facts(), replace(MACHINE, other_gpus=(LLVMPIPE,)), LaunchSettings())
    assert "llvmpipe" in plan.window.reason


def test_without_a_device_it_says_so_and_what_to_do(engine: VulkanEngine) -> None:
    with pytest.raises(EngineUnavailable) as raised:
        engine.plan("tiny", facts(), replace(MACHINE, other_gpus=()), LaunchSettings())
    assert raised.value.sentence == (
        "/opt/llama-server names no Vulkan device. Install the Vulkan driver of your graphics card (Debian and Ubuntu:"
        ' mesa-vulkan-drivers), name a llama-server built with Vulkan (setting llama_server), or set engine = "cpu".'
    )


def test_without_a_server_there_is_no_plan(engine: VulkanEngine) -> None:
    with pytest.raises(ServerMissing):
        engine.plan("tiny", facts(), MACHINE.with_server(None), LaunchSettings())


# --- the list of devices ----------------------------------------------------------------------------------------------


def test_the_devices_of_a_list() -> None:
    assert parse(LISTED) == (
        ListedDevice("Vulkan0", RADEON, 8176 * MIB, 8000 * MIB),
        ListedDevice("Vulkan1", "Intel(R) Arc(tm) A380 Graphics (DG2)", 6064 * MIB, 5457 * MIB),
        ListedDevice("CUDA0", "NVIDIA GeForce RTX 3060", 12044 * MIB, 11000 * MIB),
        ListedDevice("RPC0[127.0.0.1:50052]", "RPC", MIB, MIB),
    )
    assert vulkan(parse(LISTED)) == (RADEON, "Intel(R) Arc(tm) A380 Graphics (DG2)")


@pytest.mark.parametrize("text", ["", NONE, "Available devices:\n", "error: invalid argument: --list-devices"])
def test_no_device(text: str) -> None:
    assert parse(text) == ()


@given(st.text())
def test_no_output_breaks_it(text: str) -> None:
    parse(text)


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), st.integers(0, 1 << 30))
def test_any_name_comes_back(name: str, mib: int) -> None:
    assert parse(f"Available devices:\n  Vulkan0: {name} ({mib} MiB, 0 MiB free)\n") == (
        ListedDevice("Vulkan0", name, mib * MIB, 0),
    )


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (RADEON, True),
        ("Intel(R) UHD Graphics 620 (KBL GT2)", True),
        ("Apple M2", True),
        (LLVMPIPE, False),
        ("SwiftShader Device (LLVM 10.0.0)", False),
        ("Microsoft Basic Render Driver", False),
    ],
)
def test_a_software_device_is_not_worth_a_hint(name: str, kept: bool) -> None:
    assert hardware([name]) == ((name,) if kept else ())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program in the place of a llama-server; ``say`` fills it."""
    if sys.platform == "win32":
        pytest.skip("it is a shell script")
    return tmp_path / "llama-server"


def write(program: Path, script: str) -> Path:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_a_server_is_asked_with_what_a_child_inherits(program: Path) -> None:
    script = write(program, f'echo "  Vulkan0: $1 $PATH ${VISIBLE} $LLAMA_ARG_DEVICE$SECRET. (1 MiB, 1 MiB free)"')
    environment = {"PATH": "/bin", VISIBLE: "0", "LLAMA_ARG_DEVICE": "none", "SECRET": "s"}
    assert vulkan(list_devices(script, environment)) == ("--list-devices /bin 0 .",)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'error: invalid argument: --list-devices' >&2; exit 1", "invalid argument"),
        ("kill -SEGV $$", "exit code -11"),
        ("exec sleep 30", "timed out"),
    ],
    ids=["too old", "a driver that crashes", "a driver that hangs"],
)
def test_a_server_that_cannot_list_has_none_and_the_log_says_why(
    program: Path, script: str, says: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(device_list, "VERSION_SECONDS", 0.2)
    assert list_devices(write(program, script)) == ()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert says in record.getMessage()


def test_a_server_that_is_not_there_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list_devices(tmp_path / "nothing") == ()
    assert "cannot list the graphics cards" in caplog.text
