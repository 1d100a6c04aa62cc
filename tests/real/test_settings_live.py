"""Settings that are changed while the application runs act as each key promises."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.settings import Settings
from app.settings_watch import AT_THE_NEXT_START, acting
from engines.child.probe import TRUSTS_NOBODY
from tests.fixtures.running import Running, chat
from tests.fixtures.waiting import until

pytestmark = pytest.mark.real

KEY = "a-key-of-sixteen-letters"


def write(app: Running, text: str) -> None:
    (app.home / "settings.toml").write_text(text)


def test_what_acts_at_the_next_start_keeps_its_value() -> None:
    before = Settings(port=27190, engine="cpu")
    after = Settings(port=27191, engine="mlx", window=8192, idle_seconds=5)
    assert acting(before, after) == Settings(port=27190, engine="cpu", window=8192, idle_seconds=5)
    assert {"engine", "gpu_working_set_gib", "host", "port", "llama_server", "load_seconds"} == AT_THE_NEXT_START


async def test_a_key_holds_at_once_and_a_window_at_the_next_load(start: Any) -> None:
    app: Running = start()
    async with app.client() as client:
        first = await client.post("/v1/chat/completions", json=chat("hello", max_tokens=1))
        assert first.headers["x-plimsoll-window"] == "4096"
        write(app, f'api_key = "{KEY}"\nwindow = 1024\nport = 27199\n')

        def locked() -> bool:
            return httpx.get(f"{app.base_url}/models", trust_env=False, verify=TRUSTS_NOBODY).status_code == 401

        await until(locked)
        headers = {"authorization": f"Bearer {KEY}"}
        same = await client.post("/v1/chat/completions", json=chat("hello", max_tokens=1), headers=headers)
        assert same.headers["x-plimsoll-window"] == "4096"  # the child that runs keeps its window
        await client.post("/api/models/endless/load", json={}, headers=headers)
        after = await client.post("/v1/chat/completions", json=chat("hello", max_tokens=1), headers=headers)
        assert after.headers["x-plimsoll-window"] == "1024"
    assert KEY not in app.log()


async def test_a_mistake_is_said_and_the_former_settings_hold(start: Any) -> None:
    app: Running = start(settings='pinned = ["hello"]\n')
    async with app.client() as client:
        await client.post("/v1/chat/completions", json=chat("hello", max_tokens=1))
        write(app, "windwo = 1\n")
        await until(lambda: [n["kind"] for n in app.notices()] == ["settings_refused"])
        (notice,) = app.notices()
        assert "window" in notice["text"]
        assert "former settings hold" in notice["text"]
        refused = await client.post("/v1/chat/completions", json=chat("endless", max_tokens=1))
        assert refused.status_code == 409
        write(app, "pinned = []\n")
        await until(lambda: not app.status()["children"][0]["pinned"])
        assert (await client.post("/v1/chat/completions", json=chat("endless", max_tokens=1))).status_code == 200
