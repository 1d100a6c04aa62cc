"""The real application started twice, started after a crash, and started with the system."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from app.ui.single_instance import server_name
from tests.desktop.real_tray import QUIT_SECONDS, again, ended, in_tray, load
from tests.fixtures.running import Running
from tests.fixtures.tray_watcher import watching
from tests.fixtures.waiting import is_gone, until
from tests.fixtures.xvfb import Desktop

pytestmark = [pytest.mark.desktop, pytest.mark.real]


async def test_a_second_start_opens_the_firsts_menu_and_ends(start: Any, panel: Desktop, tmp_path: Path) -> None:
    app = in_tray(start, panel)
    assert panel.menus("plimsoll") == []
    second = await asyncio.to_thread(again, app, panel)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == f"Plimsoll already runs with this home, at {app.base_url}.\n"
    await until(lambda: panel.menus("plimsoll"))
    panel.screenshot(tmp_path / "real-second-start.png")
    panel.key("Escape")
    await until(lambda: panel.menus("plimsoll") == [])
    await asyncio.to_thread(again, app, panel)
    await until(lambda: panel.menus("plimsoll"))
    assert app.process.poll() is None


async def test_where_there_is_no_tray_a_second_start_brings_up_the_window(start: Any, bare: Desktop) -> None:
    app = in_tray(start, bare)
    assert bare.windows("Plimsoll") == []  # it still hopes for a tray
    second = await asyncio.to_thread(again, app, bare)
    assert second.returncode == 0
    await until(lambda: bare.windows("Plimsoll"))
    await until(lambda: bare.active_window() in bare.windows("Plimsoll"))


async def test_a_first_without_a_desktop_cannot_be_brought_up(start: Any, bare: Desktop) -> None:
    app: Running = start()
    second = await asyncio.to_thread(again, app, bare)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == f"plimsoll: Plimsoll already runs with this home, at {app.base_url}.\n"


async def test_after_a_kill_the_next_start_works_and_is_found(start: Any, bare: Desktop) -> None:
    first = in_tray(start, bare)
    child = await load(first, "hello")
    socket = Path(tempfile.gettempdir()) / server_name(first.home)
    assert socket.exists()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(QUIT_SECONDS)
    assert socket.exists()
    app = in_tray(start, bare)
    await until(lambda: is_gone(child))
    second = await asyncio.to_thread(again, app, bare)
    assert second.returncode == 0
    await until(lambda: bare.windows("Plimsoll"))
    await ended(app)
    assert not socket.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the other systems keep such entries elsewhere")
async def test_it_starts_with_the_system_once_told_to(start: Any, bare: Desktop) -> None:
    entry = bare.config / "autostart" / "plimsoll.desktop"
    async with watching(bare.bus) as host:
        app = in_tray(start, bare)
        assert not (await host.menu_with("Start with the system")).find("Start with the system").checked  # type: ignore[union-attr]
        await host.click("Start with the system")
        await until(entry.exists)
        assert f"app run --home {app.home} --models" in entry.read_text()
        async with asyncio.timeout(QUIT_SECONDS):
            while not (await host.entry("Start with the system")).checked:
                pass
        if shutil.which("gio") is not None:
            await starts_what_it_says(entry, bare)
        await host.click("Start with the system")
        await until(lambda: not entry.exists())
        await ended(app)


async def starts_what_it_says(entry: Path, where: Desktop) -> None:
    """A desktop's own launcher starts the entry: a second start, which brings up the menu."""
    subprocess.run(["gio", "launch", str(entry)], env=where.environment, cwd="/", check=True, capture_output=True)
    await until(lambda: where.menus("plimsoll"), 30)
    where.key("Escape")
    await until(lambda: where.menus("plimsoll") == [])
