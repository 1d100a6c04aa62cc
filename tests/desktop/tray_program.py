"""The real tray with a made-up status, for the desktop tests: run as a program.

Standard input takes one command a line; standard output gives JSON lines, ``{"intent": …}`` for what the user
chose and ``{"answer": …}`` for ``look``. End of input ends the program.

    scene NAME    show another view
    notify        show a bubble
    bring_up      do what a second start of the program asks for
    look          where things are on the screen
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, replace
from datetime import UTC
from typing import Any

from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QMenu, QMessageBox, QSystemTrayIcon, QWidget

from app.host.notices import EngineDoubted
from app.host.status import (
    ChildState,
    ChildStatus,
    EngineStatus,
    MemoryStatus,
    NoticeStatus,
    Status,
    WaitingStatus,
    WindowStatus,
)
from app.ui.entries import Intent
from app.ui.loop import run
from app.ui.no_tray import NoTrayWindow
from app.ui.tray import Tray
from app.ui.view import ModelView, TrayView

QWEN = ChildStatus(
    model="qwen3-4b",
    pid=4711,
    port=41000,
    state=ChildState.READY,
    slots=1,
    busy=0,
    progress=None,
    window=WindowStatus(131_072, 32_768, 32_768, 32_768, "memory", "memory holds no more"),
    memory=MemoryStatus(None, None),
)
NOTICES = (
    NoticeStatus("bound", 1_760_000_000.0, "Qwen3-4B: memory holds 32,768 of 131,072 tokens.", {}, "qwen3-4b"),
    NoticeStatus(
        "acted",
        1_760_000_240.0,
        "Window reduced to 24,576 tokens: the system is short of memory.",
        {"window": 24_576},
        "qwen3-4b",
    ),
)
OLD_DRIVER = EngineDoubted(
    "The NVIDIA driver runs CUDA 11.4; NVIDIA RTX 3060 needs 12.0 or more. Update the driver, or use the CPU engine"
    " instead.",
    "CUDA_DRIVER_TOO_OLD",
    "cpu",
)
DOUBT = NoticeStatus(OLD_DRIVER.kind, 1_760_000_300.0, OLD_DRIVER.sentence, OLD_DRIVER.numbers, None)
MODELS = (
    ModelView("qwen3-4b", "Qwen3-4B", 4_200_000_000, 131_072),
    ModelView("gemma-3-270m", "Gemma-3-270M", 253_113_024, 32_768),
    ModelView("broken", "broken", 5000, None, problem="broken.gguf is damaged: no sense. Download it again."),
)
READY = TrayView(
    Status(EngineStatus("CPU", "no NVIDIA GPU found"), (QWEN,), (), NOTICES),
    "http://127.0.0.1:27182/v1",
    {model.id: model.name for model in MODELS},
    MODELS,
    autostart=True,
    zone=UTC,
)


def _with(*children: ChildStatus, notices: tuple[NoticeStatus, ...] = ()) -> TrayView:
    return replace(READY, status=replace(READY.status, children=children, notices=notices))


def _many() -> TrayView:
    """Many models, with names as they are on a hub; one is pinned, one keeps crashing, several are broken."""
    families = [
        "DeepSeek-R1-Distill-Qwen-7B",
        "Gemma-3-12B-It",
        "Granite-3.3-8B-Instruct",
        "Llama-3.1-8B-Instruct",
        "Mistral-Small-3.2-24B-Instruct-2506",
        "Phi-4-Mini-Instruct",
        "Qwen3-30B-A3B-Thinking-2507-Unsloth-Dynamic-Distilled",
        "SmolLM3-3B",
    ]
    whole = [
        ModelView(name, name, (4 + at) * 10**9, 131_072, pinned=name == "SmolLM3-3B-Q8_0")
        for at, family in enumerate(families)
        for name in (f"{family}-{quant}" for quant in ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"))
    ]
    broken = [replace(MODELS[2], id=f"broken{n}") for n in range(4)]
    models = (*MODELS, *whole, *broken)
    status = replace(READY.status, given_up=("Gemma-3-12B-It-Q4_K_M",))
    return replace(READY, models=models, names={model.id: model.name for model in models}, status=status)


SCENES = {
    "ready": READY,
    "answering": _with(replace(QWEN, busy=1), notices=NOTICES),
    "loading": _with(replace(QWEN, model="gemma-3-270m", state=ChildState.LOADING, progress=0.42), notices=NOTICES[:1]),
    "reduced": _with(
        replace(QWEN, window=replace(QWEN.window, allocated=24_576, working=24_576, bound_by="brake")),
        notices=NOTICES,
    ),
    "empty": _with(),
    "choice": replace(
        READY,
        status=replace(
            READY.status,
            children=(replace(QWEN, busy=1),),
            waiting=(WaitingStatus(7, "gemma-3-270m", 1.0, "queued", by_user=True),),
        ),
    ),
    "many": _many(),
    "doubted": replace(READY, status=Status(EngineStatus("cuda", "1 NVIDIA GPU found", "cpu"), (), (), (DOUBT,))),
    "problem": replace(READY, problem="Port 27182 is taken by another program. Choose another in the settings."),
}


def look(tray: Tray) -> dict[str, Any]:
    """What is on the screen: the icon's box, the middles of what can be clicked, titles of windows."""
    icon = tray.findChild(QSystemTrayIcon)
    menu = QApplication.activePopupWidget()
    shown = [widget for widget in QApplication.topLevelWidgets() if widget.isVisible()]
    return {
        "icon": _box(icon.geometry()) if icon is not None else None,
        "tooltip": icon.toolTip() if icon is not None else None,
        "menu": _rows(menu) if isinstance(menu, QMenu) else None,
        "active": type(QApplication.activeWindow()).__name__,
        "window": next((_buttons(it) for it in shown if isinstance(it, NoTrayWindow)), None),
        "lines": [
            it.text() for window in shown if isinstance(window, NoTrayWindow) for it in window.findChildren(QLabel)
        ],
        "minimised": any(it.isMinimized() for it in shown if isinstance(it, NoTrayWindow)),
        "hint": next((_buttons(it) for it in shown if isinstance(it, QMessageBox)), None),
        "bubble": [label.text() for bubble in shown if is_bubble(bubble) for label in bubble.findChildren(QLabel)],
        "clipboard": QApplication.clipboard().text(),
    }


def _box(rect: QRect) -> list[int]:
    return [rect.x(), rect.y(), rect.width(), rect.height()]


def is_bubble(widget: QWidget) -> bool:
    """Qt's own bubble, for panels without notifications."""
    return widget.metaObject().className() == "QBalloonTip"


def _rows(menu: QMenu) -> dict[str, list[int]]:
    return {row.text(): _middle(menu, menu.actionGeometry(row).center()) for row in menu.actions() if row.text()}


def _buttons(window: QWidget) -> dict[str, list[int]]:
    return {button.text(): _middle(button, button.rect().center()) for button in window.findChildren(QAbstractButton)}


def _middle(widget: QWidget, place: QPoint) -> list[int]:
    point = widget.mapToGlobal(place)
    return [point.x(), point.y()]


async def main(app: QApplication, first: str, patience_ms: int) -> int:
    """Show the tray until standard input ends."""
    scene = first

    def act(intent: Intent) -> None:
        say({"intent": {"kind": type(intent).__name__, **asdict(intent)}})

    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    tray = Tray(lambda: SCENES[scene], act, app, poll_ms=100, patience_ms=patience_ms)
    tray.show()
    while line := (await lines.readline()).decode():
        match line.split():
            case ["scene", name]:
                scene = name
                tray.refresh()
            case ["notify"]:
                tray.notify("Plimsoll", NOTICES[1].text)
            case ["bring_up"]:
                tray.bring_up()
            case ["look"]:
                say({"answer": look(tray)})
            case _:
                raise ValueError(f"no such command: {line!r}")
    tray.close()
    return 0


def say(value: dict[str, Any]) -> None:
    """One line of JSON, at once."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(run(lambda app: main(app, first=sys.argv[1], patience_ms=int(sys.argv[2]))))
