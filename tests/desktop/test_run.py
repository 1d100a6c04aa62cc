"""The real application in a real tray, with a real model: seen, clicked, quit."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from PySide6.QtGui import QImage

from engines.child.probe import TRUSTS_NOBODY
from tests.desktop.real_tray import ICON, LEFT, QUIT_SECONDS, RIGHT, generating, in_tray, load
from tests.fixtures.running import Running
from tests.fixtures.tray_watcher import watching
from tests.fixtures.waiting import is_gone, until
from tests.fixtures.xvfb import Desktop

pytestmark = [pytest.mark.desktop, pytest.mark.real]


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


async def test_quit_while_generating_with_another_model_chosen_leaves_no_process(start: Any, bare: Desktop) -> None:
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        reading = await generating(app)
        (child,) = app.children()
        await host.choose(await host.entry("hello · ", within="Models"))
        await host.menu_with("Next: hello, after this answer")
        await host.click("Quit")
        assert await asyncio.to_thread(app.process.wait, QUIT_SECONDS) == 0
        assert is_gone(child.pid)
        await asyncio.wait_for(reading.task, QUIT_SECONDS)
    assert "Traceback" not in app.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_generating_leaves_no_process(start: Any, bare: Desktop, number: int) -> None:
    app = in_tray(start, bare)
    reading = await generating(app)
    (child,) = app.children()
    app.process.send_signal(number)
    assert await asyncio.to_thread(app.process.wait, QUIT_SECONDS) == 0
    assert is_gone(child.pid)
    await asyncio.wait_for(reading.task, QUIT_SECONDS)


async def test_the_real_menu_is_photographed(start: Any, panel: Desktop, tmp_path: Path) -> None:
    app = in_tray(start, panel)
    await load(app, "endless")
    reading = await generating(app)
    width = 800
    shot = tmp_path / "real-tray.png"

    def picture() -> QImage:
        return QImage(str(panel.screenshot(shot))).copy(0, 30, width, 570)

    before = picture()
    panel.click(*ICON, LEFT)
    await until(lambda: picture() != before)
    menu = picture()
    assert menu.width() == width
    app.process.send_signal(signal.SIGTERM)
    await asyncio.wait({reading.task})
    assert app.process.wait(QUIT_SECONDS) == 0


async def test_streams_go_on_smoothly_while_the_menu_is_open(start: Any, panel: Desktop, tmp_path: Path) -> None:
    app = in_tray(start, panel)
    reading = await generating(app)
    before = QImage(str(panel.screenshot(tmp_path / "a.png")))
    panel.click(*ICON, RIGHT)
    await until(lambda: QImage(str(panel.screenshot(tmp_path / "b.png"))) != before)
    async with app.client() as client:
        assert (await client.get("/health")).status_code == 200
    assert not reading.task.done()
    reading.task.cancel()
    await asyncio.wait({reading.task})


def test_without_a_display_it_serves_and_says_so(start: Any) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"}}
    app: Running = start(command="run", environ=kept, whole_environment=True)
    assert httpx.get(app.root_url + "/health", trust_env=False, verify=TRUSTS_NOBODY).json() == {"status": "ok"}
    app.process.send_signal(signal.SIGTERM)
    _, said = app.process.communicate(timeout=QUIT_SECONDS)
    assert said.strip() == "There is no display: serving without a tray."
    assert app.process.returncode == 0
