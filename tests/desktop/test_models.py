"""Models chosen, cancelled, pinned and looked for in the real application's menu, with real servers."""

from __future__ import annotations

import asyncio
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QImage

from tests.desktop.real_tray import (
    ICON,
    LEFT,
    LOAD_SECONDS,
    QUIT_SECONDS,
    ended,
    held_answer,
    held_still,
    in_tray,
    load,
    loading,
    served,
)
from tests.fixtures.running import Running, chat, gemma
from tests.fixtures.tray_watcher import MenuNode, StatusNotifierWatcher, watching
from tests.fixtures.waiting import is_gone, until
from tests.fixtures.xvfb import Box, Desktop

pytestmark = [pytest.mark.desktop, pytest.mark.real]

GEMMA, GEMMA_NAME = "gemma-3-270m-q4_k_m", "Gemma 3 270m"

ROW, RULE = 22, 2
"""Pixels of a line of a menu and of what separates two groups, in these tests' only font (measured)."""

TOKENS = 2000
"""Of an answer that is held still after its first: far more than the server is ahead by then."""


def row(menu: Box, lines: int, rules: int, at: int) -> tuple[int, int]:
    """The middle of line ``at`` of the first group of a menu that has so many lines and rules."""
    assert menu.height == lines * ROW + rules * RULE
    return menu.x + menu.width // 2, menu.y + at * ROW + ROW // 2


async def model(host: StatusNotifierWatcher, name: str) -> MenuNode:
    """The entry of a model."""
    return await host.entry(f"{name} · ", within="Models")


async def lines(host: StatusNotifierWatcher, submenu: str = "Models") -> list[str]:
    """What the submenu says."""
    found = (await host.menu()).find(submenu)
    return [] if found is None else [node.label for node in found.children if node.label]


async def test_choosing_a_model_loads_it_in_place_of_the_other(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        old = await load(app, "hello")
        entry = await model(host, "hello")
        assert entry.label.endswith(" · 4,096 tokens")
        assert (entry.toggle, entry.checked) == ("radio", True)
        entry = await model(host, "endless")
        assert entry.label.endswith(" · 131,072 tokens")
        assert (entry.toggle, entry.checked) == ("radio", False)
        await host.choose(entry)
        await host.menu_with("endless · 131,072 tokens")
        assert served(app) == ["endless"]
        assert is_gone(old)
        assert (await model(host, "endless")).checked


async def test_the_same_with_the_mouse(start: Any, panel: Desktop, tiny_models: Path, tmp_path: Path) -> None:
    app = in_tray(start, panel, models=(tiny_models, gemma()))
    old = await load(app, "hello")

    async def models() -> Box:
        panel.click(*ICON, LEFT)
        await until(lambda: panel.menus("plimsoll"))
        (outer,) = panel.menus("plimsoll")
        panel.click(*row(outer, lines=8, rules=3, at=1))
        await until(lambda: len(panel.menus("plimsoll")) == 2)
        return panel.menus("plimsoll")[1]

    def shot(name: str) -> QImage:
        return QImage(str(panel.screenshot(tmp_path / f"real-{name}.png")))

    inner = await models()
    panel.move(*row(inner, lines=7, rules=2, at=1))
    before = shot("before")
    panel.click(*row(inner, lines=7, rules=2, at=1))
    await loading(app)
    with held_still(app):
        await until(lambda: not panel.menus("plimsoll"))
        await models()
        during = shot("loading")
        assert [child["state"] for child in app.status()["children"]] == ["loading"]
    await until(lambda: served(app) == [GEMMA], LOAD_SECONDS)
    await until(lambda: shot("after") not in (before, during))  # the open menu follows
    assert is_gone(old)
    await ended(app)


async def test_a_load_is_given_up(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare, models=(gemma(),))
        await host.choose(await model(host, GEMMA_NAME))
        await loading(app)
        with held_still(app) as child:
            await host.entry(f"Loading {GEMMA_NAME}…")
            assert " · loading…" in (await model(host, GEMMA_NAME)).label
            await host.click(f"Stop loading {GEMMA_NAME}")
            await host.menu_with(f"Unloading {GEMMA_NAME}…")
        await until(lambda: is_gone(child.pid))
        await host.menu_with("No model loaded")
        assert await lines(host, "Recent") == []  # the user knows
        await ended(app)


async def test_a_choice_waits_for_the_answer_of_another_model(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        answer = await held_answer(app, TOKENS)
        await host.choose(await model(host, "hello"))
        await host.menu_with("Next: hello, after this answer")
        assert (await model(host, "hello")).label.endswith(" · after this answer")
        assert not is_gone(answer.child.pid)
        answer.child.resume()
        events = await asyncio.wait_for(answer.task, LOAD_SECONDS)
        assert len(events) >= TOKENS
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        await host.menu_with("hello · 4,096 tokens")
        assert served(app) == ["hello"]
        assert is_gone(answer.child.pid)


async def test_a_choice_is_taken_back_by_another_and_by_hand(start: Any, bare: Desktop, tiny_models: Path) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare, models=(tiny_models, gemma()))
        answer = await held_answer(app, TOKENS)
        await host.choose(await model(host, "hello"))
        await host.menu_with("Next: hello, after this answer")
        await host.choose(await model(host, GEMMA_NAME))
        menu = await host.menu_with(f"Next: {GEMMA_NAME}, after this answer")
        assert not [label for label in menu.labels() if label.startswith("Next: hello")]
        await host.click(f"Do not load {GEMMA_NAME}")
        await until_not(host, "Next: ")
        answer.child.resume()
        await asyncio.wait_for(answer.task, LOAD_SECONDS)
        assert served(app) == ["endless"]
        await ended(app)


async def until_not(host: StatusNotifierWatcher, begin: str) -> None:
    """Return once no entry begins so."""
    async with asyncio.timeout(QUIT_SECONDS):
        while any(label.startswith(begin) for label in (await host.menu()).labels()):
            pass


async def test_a_pin_holds_keeps_others_out_and_survives_a_restart(start: Any, bare: Desktop) -> None:
    def pinned(app: Running) -> list[bool]:
        return [child["pinned"] for child in app.status()["children"]]

    def written(app: Running) -> Any:
        return tomllib.loads((app.home / "settings.toml").read_text()).get("pinned")

    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        await load(app, "hello")
        await host.click("Keep hello loaded")
        await until(lambda: pinned(app) == [True])
        assert written(app) == ["hello"]
        await host.choose(await model(host, "endless"))
        refused = await until_lines(host, "Recent")
        assert "hello is pinned and there is no room beside it" in refused[0]
        assert served(app) == ["hello"]
        await ended(app)
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        assert (await model(host, "hello")).label.endswith(" · 4,096 tokens · pinned")
        await load(app, "hello")
        assert pinned(app) == [True]
        assert (await host.entry("Keep hello loaded")).checked
        await host.click("Keep hello loaded")
        await until(lambda: pinned(app) == [False])
        assert written(app) is None
        await host.choose(await model(host, "endless"))
        await until(lambda: served(app) == ["endless"])


async def until_lines(host: StatusNotifierWatcher, submenu: str) -> list[str]:
    """What a submenu says, once it says anything."""
    async with asyncio.timeout(QUIT_SECONDS):
        while not (found := await lines(host, submenu)):
            pass
    return found


async def test_broken_models_are_listed_and_new_ones_found(start: Any, bare: Desktop, tiny_models: Path) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare, models=())
        await host.menu_with("No models here yet")
        shutil.copy(tiny_models / "hello.gguf", app.home / "models" / "hello.gguf")
        whole = (tiny_models / "hello.gguf").read_bytes()
        (app.home / "models" / "cut.gguf").write_bytes(whole[: len(whole) // 2])
        await host.click("Look for models again")
        broken = await host.entry("✕ ")
        assert broken.label.startswith("✕ cut.gguf is incomplete: it has ")
        assert not broken.enabled
        await host.choose(await model(host, "hello"))
        await until(lambda: served(app) == ["hello"])


async def test_a_model_that_keeps_crashing_is_tried_again_by_a_click(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        for _ in range(3):
            await load_by_request(app)
            (child,) = app.children()
            child.kill()
            await until(lambda: served(app) == [])
        async with app.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat("hello"))).status_code == 503
        entry = await model(host, "hello")
        assert entry.label.endswith(" · keeps crashing, try again")
        await host.choose(entry)
        await until(lambda: served(app) == ["hello"])
        assert (await model(host, "hello")).label.endswith(" · 4,096 tokens")


async def load_by_request(app: Running) -> None:
    """As an editor does: the user's own loads forgive crashes."""
    async with app.client() as client:
        (await client.post("/v1/chat/completions", json=chat("hello"))).raise_for_status()
