"""The real application in a tray, for the tests: started, loaded, answering, held still, found on the screen."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from tests.fixtures.running import ROOT, Running, chat
from tests.fixtures.waiting import until
from tests.fixtures.xvfb import Desktop

ICON = (786, 14)
"""The middle of the only icon in the panel of an 800-pixel screen."""

QUIT_SECONDS = 5
LOAD_SECONDS = 30
"""For any of the tests' models, from a cold disk."""

LEFT, RIGHT = 1, 3
"""Buttons of the mouse."""


def in_tray(start: Any, where: Desktop, **more: Any) -> Running:
    """Start it on a desktop. What it writes for the desktop, the autostart entry, goes to the test's folder."""
    app: Running = start(command="run", environ=where.environment, whole_environment=True, **more)
    return app


def again(app: Running, where: Desktop) -> subprocess.CompletedProcess[str]:
    """Start it a second time with the same home, and wait for that one to end."""
    return subprocess.run(
        [sys.executable, "-m", "app", "run", "--home", str(app.home)],
        cwd=ROOT,
        env=where.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def ended(app: Running) -> None:
    """End it as the end of a session does; nothing went wrong inside it, whatever was clicked."""
    app.process.send_signal(signal.SIGTERM)
    _, said = await asyncio.to_thread(app.process.communicate, timeout=QUIT_SECONDS)
    assert (app.process.returncode, said) == (0, "")
    assert "Traceback" not in app.log()


async def load(app: Running, model: str) -> int:
    """Load a model; returns its child's pid."""
    async with app.client() as client:
        (await client.post(f"/api/models/{model}/load", json={})).raise_for_status()
    (child,) = app.children()
    return child.pid


@dataclass
class Answer:
    """An answer on its way."""

    task: asyncio.Task[list[Any]]
    """The client that reads it; returns its events."""
    child: psutil.Process
    """The server that gives it."""


async def generating(app: Running) -> Answer:
    """A client that reads an answer without end. It has begun."""
    return await _begun(app, {}, hold=False)


async def held_answer(app: Running, max_tokens: int) -> Answer:
    """The same, with the server standing still since the first event: it cannot be over before the test is ready.

    ``child.resume()`` has it go on.
    """
    return await _begun(app, {"max_tokens": max_tokens}, hold=True)


async def _begun(app: Running, more: dict[str, Any], *, hold: bool) -> Answer:
    begun = asyncio.Event()

    async def read() -> list[Any]:
        events: list[Any] = []
        async with app.client() as client:
            body = chat("endless", stream=True, **more)
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        if hold and not events:
                            app.children()[0].suspend()
                        events.append(json.loads(line.removeprefix("data: ")))
                        begun.set()
        return events

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), LOAD_SECONDS)
    await until(lambda: [c["busy"] for c in app.status()["children"]] == [1])
    (child,) = app.children()
    return Answer(task, child)


@contextmanager
def held_still(app: Running) -> Iterator[psutil.Process]:
    """The one child stands still meanwhile, so that its load goes on as long as the test wants."""
    (child,) = app.children()
    child.suspend()
    try:
        yield child
    finally:
        if child.is_running():
            child.resume()


async def loading(app: Running) -> None:
    """Return once the application has started to load a model."""
    await until(lambda: [c["state"] for c in app.status()["children"]] == ["loading"] and app.children())


def served(app: Running) -> list[str]:
    """Ids of the models that are loaded."""
    return [child["model"] for child in app.status()["children"] if child["state"] == "ready"]
