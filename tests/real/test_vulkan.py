"""A real llama-server on a real Vulkan device: on a machine without a card, Mesa's software one (llvmpipe).

The first load ever compiles the shaders (28 to 75 s on 2 cores with llvmpipe); the driver keeps them, then it is 0.5 s.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from engines.artifact.gguf import read_facts
from engines.child.ledger import Ledger
from engines.child.parent_death import for_this_system
from engines.child.probe import TRUSTS_NOBODY
from engines.engine import Child
from engines.errors import EngineUnavailable
from engines.llama_cpp.binary import find_server
from engines.llama_cpp.device_list import VISIBLE, hardware, list_devices, vulkan
from engines.llama_cpp.output import read_output
from engines.llama_cpp.server import Launcher
from engines.llama_cpp.vulkan import VulkanEngine
from engines.machine import Machine, read_machine
from engines.plan import LaunchSettings
from tests.fixtures.running import HELLO, chat

pytestmark = pytest.mark.real

FIRST = {VISIBLE: "0"}
"""Makes the backend take its first device, even a software one, which it otherwise passes over."""


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine with the first Vulkan device of its llama-server."""
    found = read_machine(look_for_gpus=False).with_server(find_server(setting=None, flavour="cpu"))
    found = replace(found, environment={**found.environment, **FIRST})
    assert found.llama_server is not None
    devices = vulkan(list_devices(found.llama_server.path, found.environment))
    if not devices:
        pytest.skip(
            f"{found.llama_server.path} names no Vulkan device; Debian's mesa-vulkan-drivers has a software one"
        )
    return replace(found, other_gpus=devices)


@asynccontextmanager
async def serving(
    folder: Path, machine: Machine, model: Path, settings: LaunchSettings | None = None
) -> AsyncIterator[Child]:
    config = folder / "config"
    config.mkdir()
    engine = VulkanEngine(Launcher(Ledger(folder / "workers.json"), for_this_system()), config)
    child = await engine.start(
        engine.plan(model.stem, read_facts(model), machine, settings or LaunchSettings()), lambda _: None
    )
    try:
        yield child
    finally:
        await child.stop()
    assert not psutil.pid_exists(child.pid)


async def test_a_model_is_loaded_onto_the_device_and_answers(
    machine: Machine, tiny_models: Path, tmp_path: Path
) -> None:
    async with serving(tmp_path, machine, tiny_models / "hello.gguf") as child:
        output = read_output(child.tail)
        assert "-c" not in child.plan.argv
        assert child.plan.window.planned is None
        assert child.facts.allocated_window == child.plan.window.trained == 4096
        assert output.offloaded == (3, 3)
        assert any(buffer.device == "Vulkan0" and buffer.kind == "KV" for buffer in output.buffers)
        assert output.flash_attention is True
        async with httpx.AsyncClient(trust_env=False, verify=TRUSTS_NOBODY, timeout=60) as client:
            answer = await client.post(
                f"http://127.0.0.1:{child.port}/v1/chat/completions",
                json=chat("hello"),
                headers={"authorization": f"Bearer {child.key}"},
            )
        assert answer.json()["choices"][0]["message"]["content"] == HELLO


async def test_a_window_that_the_user_set_is_kept(machine: Machine, tiny_models: Path, tmp_path: Path) -> None:
    async with serving(tmp_path, machine, tiny_models / "endless.gguf", LaunchSettings(window=8000)) as child:
        assert child.facts.allocated_window == 8192


def test_a_software_device_is_named_only_when_it_is_asked_for_and_never_hinted_at(machine: Machine) -> None:
    if hardware(machine.other_gpus):
        pytest.skip("this machine has a real card")
    assert machine.llama_server is not None
    unasked = {name: value for name, value in os.environ.items() if name != VISIBLE}
    assert list_devices(machine.llama_server.path, unasked) == ()


def test_a_server_without_a_device_is_said_honestly(machine: Machine, tiny_models: Path, tmp_path: Path) -> None:
    engine = VulkanEngine(Launcher(Ledger(tmp_path / "workers.json"), for_this_system()), tmp_path)
    with pytest.raises(EngineUnavailable, match="names no Vulkan device"):
        engine.plan("hello", read_facts(tiny_models / "hello.gguf"), replace(machine, other_gpus=()), LaunchSettings())
