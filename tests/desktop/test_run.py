"""The real application in a real tray, with a real model: seen, clicked, quit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PySide6.QtGui import QImage

from tests.fixtures.running import Running, chat
from tests.fixtures.tray_watcher import watching
from tests.fixtures.waiting import is_gone, until
from tests.fixtures.xvfb import Desktop, desktop

pytestmark = [pytest.mark.desktop, pytest.mark.real]

QUIT_SECONDS = 5
LEFT, RIGHT = 1, 3


@pytest.fixture
def bare() -> Iterator[Desktop]:
    with desktop(tray=False) as made:
        yield made


@pytest.fixture
def panel() -> Iterator[Desktop]:
    with desktop(tray=True) as made:
        yield made


def in_tray(start: Any, where: Desktop, **more: Any) -> Running:
    app: Running = start(command="run", environ=where.environment, whole_environment=True, **more)
    return app


async def load(app: Running, model: str) -> int:
    """Load a model; returns its child's pid."""
    async with app.client() as client:
        (await client.post(f"/api/models/{model}/load", json={})).raise_for_status()
    (child,) = app.children()
    return child.pid


async def generating(app: Running) -> asyncio.Task[None]:
    async def read() -> None:
        async with app.client() as client:
            async with client.stream("POST", "/v1/chat/completions", json=chat("endless", stream=True)) as response:
                async for _ in response.aiter_lines():
                    pass

    task = asyncio.create_task(read())
    await until(lambda: [c["busy"] for c in app.status()["children"]] == [1])
    return task


async def test_the_menu_shows_the_model_and_unloads_it(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        await host.menu_with("No model loaded")
        child = await load(app, "hello")
        menu = await host.menu_with("hello · 4,096 tokens")
        assert menu.find(app.base_url) is not None
        assert menu.find("Engine: CPU — no NVIDIA GPU found") is not None
        await host.click("Unload hello")
        await until(lambda: is_gone(child))
        await host.menu_with("No model loaded")


async def test_quit_while_generating_leaves_no_process(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        reading = await generating(app)
        (child,) = app.children()
        await host.click("Quit")
        assert await asyncio.to_thread(app.process.wait, QUIT_SECONDS) == 0
        assert is_gone(child.pid)
        await asyncio.wait_for(reading, QUIT_SECONDS)
    assert "Traceback" not in app.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_generating_leaves_no_process(start: Any, bare: Desktop, number: int) -> None:
    app = in_tray(start, bare)
    reading = await generating(app)
    (child,) = app.children()
    app.process.send_signal(number)
    assert await asyncio.to_thread(app.process.wait, QUIT_SECONDS) == 0
    assert is_gone(child.pid)
    await asyncio.wait_for(reading, QUIT_SECONDS)


async def test_the_real_menu_is_photographed(start: Any, panel: Desktop, tmp_path: Path) -> None:
    app = in_tray(start, panel)
    await load(app, "endless")
    reading = await generating(app)
    width = 800
    shot = tmp_path / "real-tray.png"

    def picture() -> QImage:
        return QImage(str(panel.screenshot(shot))).copy(0, 30, width, 570)

    before = picture()
    panel.click(width - 14, 14, LEFT)
    await until(lambda: picture() != before)
    menu = picture()
    assert menu.width() == width
    app.process.send_signal(signal.SIGTERM)
    await asyncio.wait({reading})
    assert app.process.wait(QUIT_SECONDS) == 0


async def test_streams_go_on_smoothly_while_the_menu_is_open(start: Any, panel: Desktop, tmp_path: Path) -> None:
    app = in_tray(start, panel)
    reading = await generating(app)
    before = QImage(str(panel.screenshot(tmp_path / "a.png")))
    panel.click(786, 14, RIGHT)
    await until(lambda: QImage(str(panel.screenshot(tmp_path / "b.png"))) != before)
    async with app.client() as client:
        assert (await client.get("/health")).status_code == 200
    assert not reading.done()
    reading.cancel()
    await asyncio.wait({reading})


def test_without_a_display_it_serves_and_says_so(start: Any) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"}}
    app: Running = start(command="run", environ=kept, whole_environment=True)
    assert httpx.get(app.root_url + "/health", trust_env=False).json() == {"status": "ok"}
    app.process.send_signal(signal.SIGTERM)
    _, said = app.process.communicate(timeout=QUIT_SECONDS)
    assert said.strip() == "There is no display: serving without a tray."
    assert app.process.returncode == 0
