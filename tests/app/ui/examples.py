"""Views for the tests of the tray's words, each with only what matters given."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

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
from app.ui.entries import Action, Entry, Submenu
from app.ui.view import ModelView, TrayView

URL = "http://127.0.0.1:27182/v1"

QWEN = ModelView("qwen3-4b", "Qwen3-4B", 4_200_000_000, 131_072)
GEMMA = ModelView("gemma-3-270m", "Gemma-3-270M", 253_113_024, 32_768)
BROKEN = ModelView("broken", "broken", 5000, None, problem="broken.gguf is damaged: no sense. Download it again.")

CHILD = ChildStatus(
    model="qwen3-4b",
    pid=1,
    port=2,
    state=ChildState.READY,
    slots=2,
    busy=0,
    progress=None,
    window=WindowStatus(131_072, 32_768, 32_768, 32_768, "model", ""),
    memory=MemoryStatus(None, None),
)
SMALL = replace(CHILD, model="gemma-3-270m", window=WindowStatus(None, None, 8192, None, "model", ""))
LOADING = replace(SMALL, state=ChildState.LOADING)


def view(
    *children: ChildStatus,
    waiting: tuple[WaitingStatus, ...] = (),
    notices: tuple[NoticeStatus, ...] = (),
    given_up: tuple[str, ...] = (),
    **other: object,
) -> TrayView:
    made = TrayView(
        Status(EngineStatus("CPU", "no NVIDIA GPU found"), children, waiting, notices, given_up),
        URL,
        {"qwen3-4b": "Qwen3-4B", "gemma-3-270m": "Gemma-3-270M"},
        (QWEN, GEMMA),
        zone=UTC,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def choice(model: str = "gemma-3-270m", reason: str = "queued") -> WaitingStatus:
    """The user chose a model and waits for it."""
    return WaitingStatus(7, model, 1.0, reason, by_user=True)


def request(model: str = "qwen3-4b", reason: str = "queued") -> WaitingStatus:
    """A client waits for a model."""
    return WaitingStatus(8, model, 1.0, reason)


def notice(minute: int, kind: str = "acted", model: str | None = None) -> NoticeStatus:
    return NoticeStatus(kind, 60.0 * minute, f"notice {minute}", {}, model)


def many(count: int) -> tuple[ModelView, ...]:
    return tuple(ModelView(f"m{n:03}", f"Model-{n:03}", 10**9, 4096) for n in range(count))


def actions(entries: tuple[Entry, ...]) -> dict[str, Action]:
    """By text, with those of submenus."""
    found: dict[str, Action] = {}
    for entry in entries:
        if isinstance(entry, Action):
            found[entry.text] = entry
        elif isinstance(entry, Submenu):
            found |= actions(entry.entries)
    return found
