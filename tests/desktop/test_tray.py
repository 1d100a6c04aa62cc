"""The real tray on a real desktop: through an X11 panel, through D-Bus, late, and without any tray."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QImage

from tests.fixtures.tray_watcher import watching
from tests.fixtures.xvfb import PATIENCE, POLL, Desktop

pytestmark = pytest.mark.desktop

ROOT = Path(__file__).resolve().parents[2]

LEFT, RIGHT = 1, 3
"""Buttons of the mouse."""

ELSEWHERE = (100, 500)
"""A place on the screen with nothing on it."""

LABELS = [
    "Qwen3-4B · 32,768 tokens",
    "Memory holds 32,768 of 131,072",
    "Models",
    "http://127.0.0.1:27182/v1",
    "Copy address",
    "Engine: CPU — no NVIDIA GPU found",
    "Recent",
    "Open log",
    "Start with the system",
    "Quit",
]
"""The menu of the scene ``ready``."""

MODELS = [
    "Gemma-3-270M · 253 MB · 32,768 tokens",
    "Qwen3-4B · 4.2 GB · 32,768 tokens",
    "✕ broken.gguf is damaged: no sense. Download it again.",
    "Unload Qwen3-4B",
    "Keep Qwen3-4B loaded",
    "Look for models again",
    "Open models folder",
]
"""Its submenu."""

RECENT = [
    "08:57 Window reduced to 24,576 tokens: the system is short of memory.",
    "08:53 Qwen3-4B: memory holds 32,768 of 131,072 tokens.",
]

NEVER_MS = 3_600_000
"""Milliseconds of patience for a tray in tests where no window shall stand in."""


class Program:
    """The tray program as its test sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()

    async def intent(self) -> dict[str, Any]:
        intent: dict[str, Any] = (await self._line())["intent"]
        return intent

    async def look(self) -> dict[str, Any]:
        await self.tell("look")
        answer: dict[str, Any] = (await self._line())["answer"]
        return answer

    async def look_until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(seen := await self.look()):
                    await asyncio.sleep(POLL)
        except TimeoutError:
            raise TimeoutError(f"waited in vain for {what}; saw {seen}") from None
        return seen

    async def end(self) -> tuple[int, str]:
        """Close its input; its exit code and what it wrote to standard error."""
        async with asyncio.timeout(PATIENCE):
            _, errors = await self._process.communicate(b"")
        assert self._process.returncode is not None
        return self._process.returncode, errors.decode()

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, f"the program ended: {await self.end()}"
        value: dict[str, Any] = json.loads(line)
        return value


@asynccontextmanager
async def started(where: Desktop, scene: str, patience_ms: int = NEVER_MS) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-W", "error"),
        *("-m", "tests.desktop.tray_program", scene, str(patience_ms)),
        cwd=ROOT,
        env=where.environment,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    program = Program(process)
    try:
        yield program
        assert await program.end() == (0, "")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def active(program: Program, window: str) -> dict[str, Any]:
    """What is on the screen once a window of this class has the focus: its place is final by then."""
    return await program.look_until(lambda it: it["active"] == window, f"{window} to have the focus")


def middle(box: list[int]) -> tuple[int, int]:
    x, y, width, height = box
    return x + width // 2, y + height // 2


async def open_menu(program: Program, where: Desktop, button: int) -> dict[str, list[int]]:
    """Click on the icon and return the place of each entry of the menu that opens."""
    where.click(*middle(await embedded(program)), button)
    menu: dict[str, list[int]] = (await program.look_until(lambda it: bool(it["menu"]), "the menu"))["menu"]
    return menu


async def open_submenu(program: Program, where: Desktop, menu: dict[str, list[int]], text: str) -> dict[str, list[int]]:
    """Click on an entry and return the place of each entry of the menu that opens beside it."""
    where.click(*menu[text])
    inner: dict[str, list[int]] = (await program.look_until(lambda it: it["menu"] != menu, "the submenu"))["menu"]
    where.move(*next(iter(inner.values())))
    return inner


async def embedded(program: Program) -> list[int]:
    """Box of the icon, once it sits at the right end of the panel."""
    seen = await program.look_until(lambda it: it["icon"] and it["icon"][0] > 0, "the icon in the panel")
    box: list[int] = seen["icon"]
    return box


async def test_right_click_opens_the_menu_and_quit_is_forwarded(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "ready") as program:
        menu = await open_menu(program, panel, RIGHT)
        panel.screenshot(tmp_path / "tray-menu-right-click.png")
        assert list(menu) == LABELS
        panel.click(*menu["Quit"])
        assert await program.intent() == {"kind": "Quit"}


async def test_left_click_opens_the_same_menu_beside_the_icon(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "ready") as program:
        menu = await open_menu(program, panel, LEFT)
        assert list(menu) == LABELS
        _, top, _, height = (await program.look())["icon"]
        assert min(y for _, y in menu.values()) > top + height
        recent = await open_submenu(program, panel, menu, "Recent")
        panel.screenshot(tmp_path / "tray-menu.png")
        assert list(recent) == RECENT


async def test_a_model_is_chosen_with_the_mouse(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "ready") as program:
        models = await open_submenu(program, panel, await open_menu(program, panel, LEFT), "Models")
        panel.screenshot(tmp_path / "tray-models.png")
        assert list(models) == MODELS
        panel.click(*models[MODELS[2]])  # broken: nothing to choose
        panel.click(*models[MODELS[0]])
        assert await program.intent() == {"kind": "LoadModel", "model": "gemma-3-270m"}
        await program.tell("scene choice")
        models = await open_submenu(program, panel, await open_menu(program, panel, LEFT), "Models")
        panel.screenshot(tmp_path / "tray-models-after-this-answer.png")
        panel.click(*models["Do not load Gemma-3-270M"])
        assert await program.intent() == {"kind": "Unload", "model": "gemma-3-270m"}


async def test_a_doubted_engine_is_one_click_from_the_cpu(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "doubted") as program:
        menu = await open_menu(program, panel, LEFT)
        recent = await open_submenu(program, panel, menu, "Recent")
        panel.screenshot(tmp_path / "tray-doubted.png")
        assert "needs 12.0 or more" in next(iter(recent))
        panel.click(*ELSEWHERE)
        panel.click(*(await open_menu(program, panel, LEFT))["Use the CPU engine instead"])
        assert await program.intent() == {"kind": "UseCpu"}


async def test_a_long_list_fits_the_screen_part_by_part(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "many") as program:
        models = await open_submenu(program, panel, await open_menu(program, panel, LEFT), "Models")
        parts = [text for text in models if " – " in text]
        panel.screenshot(tmp_path / "tray-models-many.png")
        assert len(parts) == 3
        part = await open_submenu(program, panel, models, parts[1])
        panel.screenshot(tmp_path / "tray-models-many-part.png")
        assert all(0 <= x < 800 and 0 <= y < 600 for x, y in part.values())
        model = "Llama-3.1-8B-Instruct-Q4_K_M"
        panel.click(*part[f"{model} · 7.0 GB · 131,072 tokens"])
        assert await program.intent() == {"kind": "LoadModel", "model": model}


async def test_a_second_start_opens_the_menu_and_the_bubble_waits_for_it_to_close(
    panel: Desktop, tmp_path: Path
) -> None:
    async with started(panel, "ready") as program:
        await embedded(program)
        await program.tell("bring_up")
        await program.tell("notify")
        seen = await program.look_until(lambda it: bool(it["menu"]), "the menu")
        panel.screenshot(tmp_path / "tray-second-start.png")
        assert list(seen["menu"]) == LABELS
        assert not seen["bubble"]
        panel.click(*ELSEWHERE)
        await program.look_until(lambda it: not it["menu"] and bool(it["bubble"]), "the bubble")


async def test_the_address_is_on_the_clipboard_when_its_intent_comes(panel: Desktop) -> None:
    async with started(panel, "ready") as program:
        panel.click(*(await open_menu(program, panel, RIGHT))["Copy address"])
        assert await program.intent() == {"kind": "CopyAddress", "url": "http://127.0.0.1:27182/v1"}
        assert (await program.look())["clipboard"] == "http://127.0.0.1:27182/v1"


async def test_an_open_menu_follows_the_state_and_takes_another_shape_once_it_is_closed(panel: Desktop) -> None:
    async with started(panel, "ready") as program:
        await open_menu(program, panel, RIGHT)
        await program.tell("scene answering")
        await program.look_until(lambda it: "Qwen3-4B · 32,768 tokens · answering" in it["menu"], "the new text")
        await program.tell("scene problem")
        seen = await program.look_until(lambda it: "Port 27182" in it["tooltip"], "the view to be shown")
        assert list(seen["menu"]) == ["Qwen3-4B · 32,768 tokens · answering", *LABELS[1:]]
        panel.click(*ELSEWHERE)
        await program.look_until(lambda it: it["menu"] is None, "the menu to close")
        menu = await open_menu(program, panel, RIGHT)
        assert next(iter(menu)).startswith("Port 27182 is taken")


async def test_a_notice_is_a_bubble(panel: Desktop, tmp_path: Path) -> None:
    async with started(panel, "reduced") as program:
        await embedded(program)
        await program.tell("notify")
        seen = await program.look_until(lambda it: bool(it["bubble"]), "the bubble")
        panel.screenshot(tmp_path / "tray-notice.png")
        assert "Window reduced to 24,576 tokens: the system is short of memory." in seen["bubble"]


async def test_the_icon_in_the_panel_follows_the_state(panel: Desktop, tmp_path: Path) -> None:
    def picture(scene: str) -> QImage:
        return QImage(str(panel.screenshot(tmp_path / f"tray-icon-{scene}.png"))).copy(box)

    async with started(panel, "empty") as program:
        box = QRect(*await embedded(program))
        shown: list[QImage] = []
        for scene in ("empty", "loading", "ready", "reduced", "problem"):
            await program.tell(f"scene {scene}")
            async with asyncio.timeout(PATIENCE):
                while (seen := picture(scene)) in shown or not is_drawn(seen):
                    await asyncio.sleep(POLL)
            shown.append(seen)


def is_drawn(picture: QImage) -> bool:
    """Whether anything but the even panel is there."""
    places = [QPoint(x, y) for x in range(picture.width()) for y in range(picture.height())]
    return len({picture.pixel(place) for place in places}) > 4


async def test_hosts_read_the_menu_and_click_through_dbus(bare: Desktop) -> None:
    async with watching(bare.bus) as host, started(bare, "ready") as program:
        menu = await host.menu_with("Quit")
        assert [node.label for node in menu.children if not node.separator] == LABELS
        models = menu.find("Models")
        assert models is not None
        assert [node.label for node in models.children if not node.separator] == MODELS
        toggles = [(node.toggle, node.checked) for node in models.children if node.toggle]
        assert toggles == [("radio", False), ("radio", True), ("checkmark", False)]
        recent = menu.find("Recent")
        assert recent is not None
        assert [node.label for node in recent.children] == RECENT
        assert [node.label for node in menu.walk() if node.has_icon] == ["Memory holds 32,768 of 131,072"]
        assert [node.label for node in menu.children if node.label and not node.enabled] == [
            "Qwen3-4B · 32,768 tokens",
            "Memory holds 32,768 of 131,072",
            "http://127.0.0.1:27182/v1",
            "Engine: CPU — no NVIDIA GPU found",
        ]
        await host.click("Unload Qwen3-4B")
        assert await program.intent() == {"kind": "Unload", "model": "qwen3-4b"}
        await host.click("Start with the system")
        assert await program.intent() == {"kind": "StartWithSystem", "on": False}
        await host.click(MODELS[0])
        assert await program.intent() == {"kind": "LoadModel", "model": "gemma-3-270m"}
        after = (await host.menu()).find("Models")
        assert after is not None
        assert [(node.toggle, node.checked) for node in after.children if node.toggle] == toggles
        tooltip = (await host.property("ToolTip"))[2]
        assert tooltip == "Plimsoll\nQwen3-4B · 32,768 tokens\nMemory holds 32,768 of 131,072"


async def test_hosts_see_changes_and_entries_that_stay_keep_their_ids(bare: Desktop) -> None:
    async with watching(bare.bus) as host, started(bare, "ready") as program:
        before = await host.menu_with("Qwen3-4B · 32,768 tokens")
        await program.tell("scene answering")
        after = await host.menu_with("Qwen3-4B · 32,768 tokens · answering")
        assert [node.id for node in after.walk()] == [node.id for node in before.walk()]
        await program.tell("scene loading")
        loading = await host.menu_with("Loading Gemma-3-270M… 42 %")
        assert loading.find("Stop loading Gemma-3-270M") is not None
        await host.click("Stop loading Gemma-3-270M")
        assert await program.intent() == {"kind": "Unload", "model": "gemma-3-270m"}


async def test_left_click_through_dbus_opens_the_menu_at_the_mouse(bare: Desktop) -> None:
    async with watching(bare.bus) as host, started(bare, "ready") as program:
        await host.menu_with("Quit")
        bare.move(100, 100)
        await host.activate(100, 100)
        menu = (await program.look_until(lambda it: bool(it["menu"]), "the menu"))["menu"]
        bare.click(*menu["Quit"])
        assert await program.intent() == {"kind": "Quit"}


async def test_a_host_that_comes_late_gets_the_icon_and_the_window_makes_room(bare: Desktop) -> None:
    async with started(bare, "ready", patience_ms=0) as program:
        await program.look_until(lambda it: bool(it["window"]), "the window that stands in")
        async with watching(bare.bus) as host:
            await host.click("Quit")
            assert await program.intent() == {"kind": "Quit"}
            assert (await program.look())["window"] is None


async def test_a_panel_that_comes_late_gets_the_icon(bare: Desktop) -> None:
    async with started(bare, "ready") as program:
        assert (await program.look())["icon"] is None
        bare.start_panel()
        menu = await open_menu(program, bare, RIGHT)
        assert list(menu) == LABELS


async def test_without_a_tray_a_window_shows_the_same_entries(bare: Desktop, tmp_path: Path) -> None:
    async with started(bare, "ready", patience_ms=0) as program:
        buttons = (await active(program, "NoTrayWindow"))["window"]
        assert list(buttons) == ["Models", "Copy address", "Open log", "Start with the system", "Quit"]
        bare.screenshot(tmp_path / "no-tray.png")
        models = await open_submenu(program, bare, buttons, "Models")
        bare.screenshot(tmp_path / "no-tray-models.png")
        assert list(models) == MODELS
        await program.tell("scene choice")  # another body, under the open menu
        models = (await program.look_until(lambda it: "Next" in str(it["lines"]), "the new lines"))["menu"]
        bare.click(*models[MODELS[0]])
        assert await program.intent() == {"kind": "LoadModel", "model": "gemma-3-270m"}
        bare.click(*(await active(program, "NoTrayWindow"))["window"]["Start with the system"])
        assert await program.intent() == {"kind": "StartWithSystem", "on": False}


async def test_a_press_that_lasts_while_the_state_changes_still_counts(bare: Desktop) -> None:
    async with started(bare, "ready", patience_ms=0) as program:
        buttons = (await active(program, "NoTrayWindow"))["window"]
        bare.press(*buttons["Open log"])
        await program.tell("scene answering")
        await program.look_until(lambda it: "answering" in str(it["lines"]), "the new text")
        bare.release()
        assert await program.intent() == {"kind": "OpenLog"}


async def test_a_second_start_brings_the_window_up(bare: Desktop) -> None:
    async with started(bare, "ready", patience_ms=0) as program:
        await active(program, "NoTrayWindow")
        bare.minimise()
        await program.look_until(lambda it: it["minimised"], "the window to be minimised")
        await program.tell("bring_up")
        await active(program, "NoTrayWindow")


async def test_a_second_start_need_not_wait_for_the_window(bare: Desktop) -> None:
    async with started(bare, "ready") as program:
        await program.tell("bring_up")
        await active(program, "NoTrayWindow")


async def test_closing_the_window_minimises_it_and_says_so_once(bare: Desktop, tmp_path: Path) -> None:
    async with started(bare, "ready", patience_ms=0) as program:
        await active(program, "NoTrayWindow")
        window = bare.active_window()
        bare.key("alt+F4")
        seen = await active(program, "QMessageBox")
        bare.screenshot(tmp_path / "no-tray-hint.png")
        bare.click(*seen["hint"]["OK"])
        await program.look_until(lambda it: it["minimised"], "the window to be minimised")
        bare.restore(window)
        await active(program, "NoTrayWindow")
        bare.key("alt+F4")
        seen = await program.look_until(lambda it: it["minimised"], "the window to be minimised again")
        assert seen["hint"] is None
