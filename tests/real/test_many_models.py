"""Many requests and several models on one machine: everybody is served, nobody is thrown out in mid-answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures import tiny_gguf
from tests.fixtures.natures import NATURES, Nature
from tests.fixtures.running import JSON, Running, chat
from tests.fixtures.waiting import is_gone, until

pytestmark = pytest.mark.real

ROTATION_SECONDS = float(os.environ.get("PLIMSOLL_ROTATION_SECONDS", "6"))
"""How long six clients rotate three models; the issue's five minutes are run by hand."""

THREE = ("one", "two", "three")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    for name in THREE:
        tiny_gguf.make(folder / f"{name}.gguf", say=f"I am model {name}.", ctx=4096, name=name)
    return folder


async def say(client: httpx.AsyncClient, model: str, *, stream: bool = False, **more: Any) -> str:
    answer = await client.post("/v1/chat/completions", json=chat(model, stream=stream, **more))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plimsoll-model"] == model
    return answer.text if stream else str(answer.json()["choices"][0]["message"]["content"]).strip()


def loads(app: Running) -> int:
    return app.log().count(" serves on port ")


@pytest.mark.parametrize("nature", NATURES)
async def test_two_models_with_room_for_one_and_three_requests_each(start: Any, tmp_path: Path, nature: Nature) -> None:
    app: Running = start(models=(nature.models(tmp_path / "two", "one", "two"),), settings=nature.settings)
    async with app.client() as client:
        says = {model: await say(client, model) for model in ("two", "one")}
        assert says == {model: f"I am model {model}." for model in ("two", "one")}
        for round_ in range(nature.rounds):
            before = loads(app)
            other, same = ("two", "one") if round_ % 2 == 0 else ("one", "two")
            asked = (same, other, same, other, same, other)
            answers = await asyncio.gather(*(say(client, model) for model in asked))
            assert answers == [says[model] for model in asked]
            assert loads(app) - before <= 2  # each model is loaded once at most, whichever came first
    assert app.notices() == []


async def test_cold_requests_for_two_models_make_two_loads(start: Any, models: Path) -> None:
    app: Running = start(models=(models,))
    async with app.client() as client:
        await asyncio.gather(*(say(client, m, stream=i > 2) for i, m in enumerate(["one", "two"] * 3)))
    assert loads(app) == 2


@pytest.mark.parametrize("nature", NATURES)
async def test_eight_cold_requests_make_one_child(start: Any, tmp_path: Path, nature: Nature) -> None:
    app: Running = start(models=(nature.models(tmp_path / "one", "one"),), settings=nature.settings)
    async with app.client() as client:
        await asyncio.gather(*(say(client, "one") for _ in range(8)))
    assert loads(app) == 1


@pytest.mark.parametrize("nature", NATURES)
async def test_a_pinned_model_stays_and_the_other_is_told_which(start: Any, tmp_path: Path, nature: Nature) -> None:
    settings = f'{nature.settings}pinned = ["one"]\nidle_seconds = 1\n'
    app: Running = start(models=(nature.models(tmp_path / "two", "one", "two"),), settings=settings)
    async with app.client() as client:
        first = await say(client, "one")
        for stream in (False, True):
            refused = await client.post("/v1/chat/completions", json=chat("two", stream=stream))
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "model_pinned"
            assert "one is pinned" in refused.json()["error"]["message"]
        assert await say(client, "one") == first
    assert loads(app) == 1


async def test_evict_pinned_gives_a_pinned_model_up(start: Any, models: Path) -> None:
    app: Running = start(models=(models,), settings='pinned = ["one"]\nevict_pinned = true\n')
    async with app.client() as client:
        assert await say(client, "one") == "I am model one."
        assert await say(client, "two") == "I am model two."


async def test_with_room_for_two_both_stay(start: Any, models: Path) -> None:
    app: Running = start(models=(models,), settings="max_models = 2\n")
    async with app.client() as client:
        await asyncio.gather(*(say(client, m) for m in ("one", "two") * 3))
        assert loads(app) == 2
        assert {c["model"] for c in app.status()["children"]} == {"one", "two"}
        await say(client, "one")
        await say(client, "three")
        assert {c["model"] for c in app.status()["children"]} == {"one", "three"}


@pytest.mark.parametrize("nature", NATURES)
async def test_three_models_rotated_by_six_clients(start: Any, tmp_path: Path, nature: Nature) -> None:
    app: Running = start(models=(nature.models(tmp_path / "three", *THREE),), settings=nature.settings)
    loop = asyncio.get_running_loop()
    end = loop.time() + ROTATION_SECONDS
    waits: list[int] = []

    async def rotate(first: int) -> None:
        turn = first
        async with app.client() as client:
            while loop.time() < end:
                model = THREE[turn % 3]
                asked = chat(model, stream=bool(turn % 2))
                answer = await client.post("/v1/chat/completions", json=asked)
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-plimsoll-model"] == model
                waits.append(int(answer.headers.get("x-plimsoll-queue-ms", "0")))
                turn += 1

    await asyncio.gather(*(rotate(i) for i in range(6)))
    assert len(waits) > 6
    assert max(waits) < 600_000
    assert app.notices() == []
    assert "Traceback" not in app.log()


async def test_an_unused_model_is_reaped_and_its_reload_says_so(start: Any, models: Path) -> None:
    app: Running = start(models=(models,), settings="idle_seconds = 1\n")
    async with app.client() as client:
        await say(client, "one")
        (child,) = app.children()
        await until(lambda: is_gone(child.pid), 20)
        await until(lambda: app.status()["children"] == [])
        assert app.notices() == []
        answer = await client.post("/v1/chat/completions", json=chat("one"))
        assert answer.headers["x-plimsoll-notice"] == "reload"
        (notice,) = app.notices()
        assert notice["numbers"]["reason"] == "idle"
        again = await client.post("/v1/chat/completions", json=chat("one"))
        assert "x-plimsoll-notice" not in again.headers


async def test_a_child_that_crashes_on_every_load_is_given_up_until_the_user_tries_again(
    start: Any, models: Path, tmp_path: Path
) -> None:
    program = tmp_path / "llama-server"
    broken = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'version: 1' && exit\nexit 3\n"
    program.write_text(broken)
    program.chmod(0o755)
    app: Running = start(models=(models,), settings=f'llama_server = "{program}"\n')
    async with app.client() as client:
        codes = []
        for _ in range(5):
            answer = await client.post("/v1/chat/completions", json=chat("one"))
            codes.append(answer.json()["error"]["code"])
        assert codes == ["exited"] * 3 + ["model_keeps_crashing"] * 2
        kinds = [notice["kind"] for notice in app.notices()]
        assert kinds == ["load_failed"] * 3 + ["model_keeps_crashing"]
        real = Path(__file__).parents[2] / "artifacts/llama-cpp/cpu/bin/llama-server"
        program.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
        assert (await client.post("/v1/chat/completions", json=chat("one"))).status_code == 503
        assert (await client.post("/api/models/one/load", headers=JSON)).status_code == 200
        assert await say(client, "one") == "I am model one."
