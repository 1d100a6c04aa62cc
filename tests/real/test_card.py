"""The CUDA engine's brake end to end: a fake card and fake gauges, and real children that really are started again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from app import settings
from app.application import Application
from app.host.model import Model
from app.survey import Options
from engines.llama_cpp.binary import find_server
from tests.fixtures import tiny_gguf
from tests.fixtures.running import Running, Starter, chat
from tests.fixtures.waiting import is_gone, until
from tests.real.fake_card import engine_of, with_card

pytestmark = pytest.mark.real
TRAINED = 32768
HEALTHY_MIB = 100
"""Shared memory of a child without a spill."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carded")
    tiny_gguf.make(
        folder / "big.gguf", arch="qwen3", say="lorem ipsum", loop=True, ctx=TRAINED, layers=4, head_dim=64, kv_heads=2
    )
    return folder


class FakeCard:
    """The file that the fake gauges read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tell(shared=HEALTHY_MIB)

    def tell(self, *, shared: int | None, **more: Any) -> None:
        wanted = self.path.with_suffix(".new")
        wanted.write_text(json.dumps({"shared": shared, "dedicated": 1024, **more}))
        wanted.replace(self.path)


@pytest.fixture
def card(tmp_path: Path) -> FakeCard:
    return FakeCard(tmp_path / "card.json")


def begin(start: Starter, models: Path, card: FakeCard, pressure: str = "", **more: Any) -> Running:
    environ = {"FAKE_CARD": str(card.path), "PLIMSOLL_FORCE_MEMORY_PRESSURE": pressure}
    return start(models=(models,), module="tests.real.fake_card", environ=environ, **more)


async def ask(app: Running) -> dict[str, str]:
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("big", max_tokens=4))
    assert answer.status_code == 200, answer.text
    return dict(answer.headers)


def kinds(app: Running) -> list[str]:
    return [notice["kind"] for notice in app.status()["notices"]]


def passed(child: psutil.Process) -> tuple[str, str]:
    """The window and the layers on its command line."""
    argv = child.cmdline()
    return argv[argv.index("-c") + 1], argv[argv.index("-ngl") + 1]


async def until_window(app: Running, window: int) -> psutil.Process:
    def reached() -> bool:
        children = [c for c in app.status()["children"] if c["state"] == "ready" and not c["busy"]]
        return len(children) == 1 and children[0]["window"]["allocated"] == window

    await until(reached, 30)
    (child,) = app.children()
    return child


async def test_a_critical_spill_halves_the_window_and_keeps_all_layers(
    start: Starter, models: Path, card: FakeCard
) -> None:
    app = begin(start, models, card, "vram-critical")
    await ask(app)
    first = await until_window(app, TRAINED // 2)
    assert passed(first) == (str(TRAINED // 2), "-2")
    headers = await ask(app)
    assert headers["x-plimsoll-notice"] == "acted, reload"
    second = await until_window(app, TRAINED // 4)
    assert passed(second) == (str(TRAINED // 4), "-2")
    assert is_gone(first.pid)
    await until(lambda: is_gone(second.pid), 20)  # nobody asks: two critical idle samples unload it
    assert (await ask(app))["x-plimsoll-window"] == str(TRAINED // 4)
    (reloaded,) = app.children()
    assert passed(reloaded) == (str(TRAINED // 4), "-1")  # a load, not a respawn: the server places the layers
    assert "worker_crashed" not in kinds(app)


async def test_a_spill_that_warns_waits_for_the_idle_moment(start: Starter, models: Path, card: FakeCard) -> None:
    app = begin(start, models, card, "vram-warning")
    await ask(app)
    child = await until_window(app, TRAINED * 3 // 4)
    assert passed(child) == (str(TRAINED * 3 // 4), "-2")
    assert "point=idle level=warning action=shrink+respawn window=32768->24576" in app.log()


async def test_the_spill_alone_decides_and_a_blind_gauge_does_nothing(
    start: Starter, models: Path, card: FakeCard
) -> None:
    app = begin(start, models, card)
    await ask(app)
    (child,) = app.children()
    card.tell(shared=HEALTHY_MIB + 200)  # spilled, but too little to be evidence
    await ask(app)
    card.tell(shared=None)
    await until(lambda: app.log().count("GPU spill gauge unreadable") == 1)
    await ask(app)
    card.tell(shared=HEALTHY_MIB)
    await ask(app)
    assert app.log().count("GPU spill gauge unreadable") == 1
    assert "Memory brake" not in app.log()
    assert app.children()[0].pid == child.pid
    card.tell(shared=HEALTHY_MIB + 1500)
    again = await until_window(app, TRAINED // 2)
    assert passed(again) == (str(TRAINED // 2), "-2")


async def test_pressure_on_ram_drives_nothing_on_a_card(start: Starter, models: Path, card: FakeCard) -> None:
    app = begin(start, models, card, "critical")
    await ask(app)
    (child,) = app.children()
    before = app.status()["children"][0]["brake"]
    await ask(app)
    assert app.status()["children"][0]["brake"] == before == {"level": "calm", "cap": None, "episode": 0}
    assert app.children()[0].pid == child.pid


async def test_a_driver_that_is_too_old_is_said_and_the_cpu_is_proposed(
    start: Starter, models: Path, card: FakeCard
) -> None:
    card.tell(shared=HEALTHY_MIB, driver=11_040)
    app = begin(start, models, card)
    status = app.status()
    assert status["engine"]["name"] == "cuda"  # proposed, never switched by itself
    assert status["engine"]["proposed"] == "cpu"
    (notice,) = [n for n in status["notices"] if n["kind"] == "engine"]
    assert notice["numbers"] == {"code": "CUDA_DRIVER_TOO_OLD", "proposed": "cpu"}
    assert "The NVIDIA driver runs CUDA 11.4" in notice["text"]


async def test_one_click_has_models_run_on_the_processor_now_and_after_a_restart(
    models: Path, card: FakeCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CARD", str(card.path))
    card.tell(shared=HEALTHY_MIB, driver=11_040)
    options = Options(tmp_path / "home", (models,))
    async with await Application.open(options, with_card(options), engine_of) as app:
        record = app.library.resolve("big", loaded=(), default=None)
        assert record.facts is not None
        model = Model(record.id, record.name, record.facts)
        async with app.host.turn(model) as turn:
            assert turn.child.plan.engine == "cuda"
            await app.use_cpu()
            old = turn.child
            assert not old.died.done()  # its answer comes first
        async with app.host.turn(model) as turn:
            assert turn.child.plan.engine == "cpu"
        status = app.host.status()
        assert old.died.done()
        assert (status.engine.name, status.engine.proposed) == ("cpu", None)
        assert settings.load(app.surroundings.home.settings).engine == "cpu"


CUDA_WORDS = {
    "CUDA_COMPUTE_CAPABILITY_TOO_LOW": "ggml_cuda_compute_forward: CUDA error: no kernel image is available for "
    "execution on the device",
    "CUDA_DRIVER_TOO_OLD": "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    "CUDA_ERROR": "CUDA error: an illegal memory access was encountered",
}


def crashing(path: Path, words: str, *, after_load: bool) -> str:
    """The setting for a server that says ``words`` and dies: at its load, or of its second chat."""
    real = find_server(setting=None, flavour="cpu").path
    path.write_text(CRASHES.format(python=sys.executable, real=real, words=words, after_load=after_load))
    path.chmod(0o755)
    return f'llama_server = "{path}"\n'


CRASHES = """#!{python}
import os, subprocess, sys, threading
if sys.argv[1] in ("--version", "--list-devices"):
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
if not {after_load}:
    print({words!r}, file=sys.stderr, flush=True)
    os.abort()
server = subprocess.Popen([{real!r}, *sys.argv[1:]], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
chats = 0
for line in server.stderr:
    print(line, end="", file=sys.stderr, flush=True)
    chats += "processing task" in line
    if chats == 2:
        print({words!r}, file=sys.stderr, flush=True)
        server.kill()
        os.abort()
"""


@pytest.mark.parametrize("code", CUDA_WORDS)
async def test_a_crash_past_the_preflight_is_its_class_with_the_raw_words(
    start: Starter, models: Path, card: FakeCard, tmp_path: Path, code: str
) -> None:
    setting = crashing(tmp_path / "server", CUDA_WORDS[code], after_load=False)
    app = begin(start, models, card, settings=setting)
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("big"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert CUDA_WORDS[code] in answer.json()["error"]["tail"]
    (notice,) = [n for n in app.status()["notices"] if n["kind"] == "load_failed"]
    assert notice["numbers"]["code"] == code
    assert CUDA_WORDS[code] in notice["numbers"]["tail"]


async def test_a_card_that_fails_in_the_middle_of_an_answer_is_named(
    start: Starter, models: Path, card: FakeCard, tmp_path: Path
) -> None:
    setting = crashing(tmp_path / "server", CUDA_WORDS["CUDA_ERROR"], after_load=True)
    app = begin(start, models, card, settings=setting)
    async with app.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat("big", max_tokens=2000))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (502, "worker_crashed")
    assert "(CUDA_ERROR)" in error["message"]
    assert CUDA_WORDS["CUDA_ERROR"] in error["tail"]
    (notice,) = [n for n in app.status()["notices"] if n["kind"] == "worker_crashed"]
    assert notice["numbers"]["cause"] == "CUDA_ERROR"
