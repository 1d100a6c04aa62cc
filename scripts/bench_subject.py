"""What is measured: a running Plimsoll, a llama-server beside it, and one streamed request to either."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from layout import ENGINES, ROOT

KEY_VARIABLE = "LLAMA_API_KEY"
START_SECONDS = 60.0
SSE = b"data: {"
FAST_MODEL = "fast"
"""A model of this name is served by ``bench_upstream.py``."""


@dataclass(frozen=True)
class Target:
    """Where a request goes, with the key it needs."""

    port: int
    key: str = "none"


@dataclass(frozen=True)
class Streamed:
    """One streamed answer: seconds to its first event and to its end, and how many events it had."""

    first: float
    total: float
    events: int


def stream(target: Target, model: str, tokens: int, prompt: str = "Tell me a story.") -> Streamed:
    """Ask for a streamed answer and read it to its end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    connection = HTTPConnection("127.0.0.1", target.port, timeout=300)
    try:
        began = time.perf_counter()
        headers = {"content-type": "application/json", "authorization": f"Bearer {target.key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
        first, events = 0.0, 0
        while block := response.read1(1 << 16):
            found = block.count(SSE)
            if found and not events:
                first = time.perf_counter() - began
            events += found
        return Streamed(first, time.perf_counter() - began, events)
    finally:
        connection.close()


class Plimsoll:
    """``python -m app serve`` (or ``run``) with a home of its own; a context manager that leaves nothing."""

    def __init__(self, models: Path, settings: str = "", command: str = "serve") -> None:
        self._models, self._settings, self._command = models, settings, command

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="plimsoll-bench-"))
        if self._settings:
            (self.home / "settings.toml").write_text(self._settings, encoding="utf-8")
        command = (sys.executable, "-m", "app", self._command, "--home", self.home, "--models", self._models)
        began = time.perf_counter()
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.start_seconds = time.perf_counter() - began
        if not line:
            raise RuntimeError("the app did not start")
        self.facts: dict[str, Any] = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it in order."""
        self.process.terminate()
        self.process.communicate(timeout=START_SECONDS)
        shutil.rmtree(self.home)

    @property
    def target(self) -> Target:
        """Its endpoint."""
        return Target(int(self.facts["port"]))

    def call(self, method: str, path: str) -> Any:
        """A management call; returns the JSON answer."""
        connection = HTTPConnection("127.0.0.1", self.target.port, timeout=300)
        try:
            connection.request(method, path, "{}", {"content-type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(str(answer))
            return answer
        finally:
            connection.close()

    def child(self, model: str) -> tuple[Target, list[str], dict[str, str]]:
        """A model's child: where it listens, its command line, its environment."""
        (row,) = (row for row in self.call("GET", "/api/status")["children"] if row["model"] == model)
        process = psutil.Process(row["pid"])
        environment = process.environ()
        return Target(row["port"], environment[KEY_VARIABLE]), process.cmdline(), environment


def load_directly(argv: list[str], environment: dict[str, str]) -> float:
    """Start a llama-server as the app does and return the seconds until it has answered one token."""
    port = 27199
    environment = {**environment, "LLAMA_ARG_PORT": str(port)}
    began = time.perf_counter()
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not _healthy(port):
                if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                    raise RuntimeError("llama-server did not start")
                time.sleep(0.01)
            stream(Target(port, environment[KEY_VARIABLE]), "x", 1)
            return time.perf_counter() - began
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


@contextmanager
def router(argv: list[str], environment: dict[str, str], models: Path) -> Iterator[Target]:
    """llama.cpp's own router over the same models and with the same options: the peer that relays in C++."""
    port = 27198
    program, *options = argv
    for paired in ("-m", "--alias"):
        at = options.index(paired)
        del options[at : at + 2]
    command = [program, "--models-dir", str(models), *options]
    with subprocess.Popen(
        command,
        env={**environment, "LLAMA_ARG_PORT": str(port)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            began = time.perf_counter()
            while not _healthy(port):
                if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                    raise RuntimeError("llama.cpp's router did not start")
                time.sleep(0.01)
            yield Target(port, environment[KEY_VARIABLE])
        finally:
            process.terminate()


def _healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def cores_setting() -> str:
    """One thread for the child where the machine has two cores: else the two measure each other's waiting."""
    return "threads = 1\n" if (os.cpu_count() or 1) <= 2 else ""


def fast_or_real(folder: Path) -> Path:
    """A program that takes llama-server's place: the fast upstream for the fast model, the real one for others."""
    real = next(ENGINES.glob("*/bin/llama-server"))
    program = folder / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{FAST_MODEL}*) exec {sys.executable} {ROOT / "scripts" / "bench_upstream.py"} "$@";; esac\n'
        f'exec {real} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program
