"""The app as a child of these scripts: start it, read its ready line, pass signals on, stop it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from layout import MODELS, ROOT
from steps import SetupError, say

SIGNAL_LATENCY_S = 0.5
"""How long Windows may take to hand us a Ctrl-C: its waits are not interrupted by one."""

STOP_TIMEOUT_S = 30
"""From the polite signal to the kill; the app gives its own children 6 s."""

KILLED_BY_SIGNAL = 128
"""Shells report a death by signal N as 128 + N."""


@dataclass(frozen=True)
class Ready:
    """What the app says when it serves."""

    base_url: str
    port: int
    pid: int


def parse_ready(line: str) -> Ready | None:
    """Read ``{"event": "ready", "base_url": ..., "port": ..., "pid": ...}``; None for any other line."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not (isinstance(found, dict) and found.get("event") == "ready"):
        return None
    try:
        return Ready(str(found["base_url"]), int(found["port"]), int(found["pid"]))
    except (KeyError, TypeError, ValueError):
        return None


def has_display(system: str, environment: Mapping[str, str]) -> bool:
    """Say whether a tray can be shown: always on Windows and macOS, elsewhere with X11 or Wayland."""
    return system in {"win32", "darwin"} or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def app_command(python: Path, command: str, extra: Sequence[str], models: Sequence[Path] = (MODELS,)) -> list[str]:
    """Return the command line of ``python -m app run|serve``; ``extra`` comes last."""
    folders = [part for folder in models for part in ("--models", str(folder))]
    return [str(python), "-m", "app", command, *folders, *extra]


def curl_line(base_url: str, model: str, system: str) -> str:
    """Return a line to paste into a shell (cmd.exe on Windows) that streams an answer."""
    body = json.dumps(
        {
            "model": model,
            "max_tokens": 64,
            "stream": True,
            "messages": [{"role": "user", "content": "Tell me about ships."}],
        }
    )
    quoted = '"' + body.replace('"', '\\"') + '"' if system == "win32" else f"'{body}'"
    header = '"Content-Type: application/json"'
    return f"curl -N {base_url}/chat/completions -H {header} -d {quoted}"


def end_on_sigterm() -> None:
    """Let SIGTERM end us like an exception does, so that the app is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(KILLED_BY_SIGNAL + signal.SIGTERM))


class AppProcess:
    """One run of the app. Its stdout is echoed line by line; its stderr is ours.

    It gets a process group of its own, so that a Ctrl-C in the terminal reaches it once, from us, and not twice.
    Should we be killed, it lives on: it is the user's app, and a second start finds it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        group = 0
        if sys.platform == "win32":
            group = subprocess.CREATE_NEW_PROCESS_GROUP
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=sys.platform != "win32",
            creationflags=group,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._ready: queue.SimpleQueue[Ready | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                say(line.rstrip("\n"))
                if ready := parse_ready(line):
                    self._ready.put(ready)
        self._ready.put(None)

    def poll_ready(self, timeout_s: float) -> Ready | None:
        """Return the ready line that came since the last call; None after ``timeout_s`` or when the output ended."""
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wait_ready(self, timeout_s: float) -> Ready:
        """Wait for the ready line.

        Raises:
            SetupError: ``app``, when the app ends or the time passes without one.
        """
        try:
            ready = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            self.stop()
            raise SetupError("app", f"The app printed no ready line within {timeout_s:g} s; stopped it.") from None
        if ready is None:
            raise SetupError("app", f"The app ended with status {self._process.wait()} before it was ready.")
        return ready

    def signal(self, number: int) -> None:
        """Pass a signal on. On Windows any becomes Ctrl-Break, the only one that reaches another group."""
        if sys.platform == "win32":
            number = signal.CTRL_BREAK_EVENT
        self._process.send_signal(number)  # does nothing once it has ended

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status as a shell would give it; None after ``timeout_s`` seconds without one."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 or sys.platform == "win32" else KILLED_BY_SIGNAL - status

    def join_output(self, timeout_s: float) -> bool:
        """Wait until its output has ended; return whether it has."""
        self._reader.join(timeout_s)
        return not self._reader.is_alive()

    def stop(self) -> int:
        """Ask it to stop, and kill it after `STOP_TIMEOUT_S`; return its exit status."""
        self.signal(signal.SIGTERM)
        status = self.wait(STOP_TIMEOUT_S)
        if status is None:
            say(f"the app did not stop within {STOP_TIMEOUT_S} s of SIGTERM; killing it")
            self._process.kill()
            status = self.wait()
        assert status is not None
        return status


def run_in_foreground(command: Sequence[str], model: str) -> int:
    """Run the app until it ends, passing on SIGINT, SIGTERM and SIGHUP; return its exit status."""
    asked: list[int] = []
    apps: list[AppProcess] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for app in apps:
            app.signal(signal.SIGTERM if number == getattr(signal, "SIGHUP", None) else number)

    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), pass_on)
    app = AppProcess(command)
    apps.append(app)
    if asked:  # it came between the handler and the start
        app.signal(asked[0])
    while True:
        if ready := app.poll_ready(SIGNAL_LATENCY_S):
            say(f"\nPlimsoll serves at {ready.base_url}   (Ctrl-C stops it). Try:")
            say(f"  {curl_line(ready.base_url, model, sys.platform)}\n")
        status = app.wait(SIGNAL_LATENCY_S if app.join_output(0) else 0)
        if status is not None:
            app.join_output(SIGNAL_LATENCY_S)
            return status
