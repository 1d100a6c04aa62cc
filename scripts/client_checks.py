"""Real clients against the running app: ``tests/clients/NAME/client.py``, each in an environment of its own.

A client is called with the base URL and a model's id, and passes when it ends with status 0.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import stamps
from app_process import AppProcess, Ready, app_command, end_on_sigterm
from environment import Venv
from layout import CLIENT_VENVS, CLIENTS, MODELS, ROOT, VENV
from steps import SetupError, run_step, say

READY_TIMEOUT_S = 60
"""The app is ready in about 1 s; a cold disk and two cores under load take far longer."""

CLIENT_TIMEOUT_S = 300
"""For one client's whole run, a model's load included."""

SCRIPTED = {
    "hello": "Hello there, I am a very small model.",
    "thinker": "<think>\\nLet me see.\\n</think>\\n\\nForty-two.",
    "caller": '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Hamburg"}}\\n</tool_call>',
}
"""Models that a client may use beside the one it is given: each always says exactly this (backslash-n: a new line)."""


@dataclass(frozen=True)
class Client:
    """One directory under ``tests/clients``."""

    name: str
    program: Path
    lock: Path


def find_clients(folder: Path = CLIENTS) -> list[Client]:
    """Return the clients by name.

    Raises:
        SetupError: ``client``, for a ``client.py`` without a lock.
    """
    found = []
    for program in sorted(folder.glob("*/client.py")):
        lock = program.with_name("requirements.lock")
        if not lock.is_file():
            raise SetupError(
                "client", f"{program.parent} has no requirements.lock; write requirements.in, then run lock.py."
            )
        found.append(Client(program.parent.name, program, lock))
    return found


def prepare(client: Client, venvs: Path = CLIENT_VENVS) -> Path:
    """Make the client's environment where it is missing or out of date; return its Python."""
    venv = Venv(venvs / client.name)
    facts: stamps.Facts = {"lock": stamps.sha256_of(client.lock), "python": venv.make()}
    if stamps.read(venv.stamp) != facts:
        say(f"{client.name}: installing {client.lock.relative_to(client.lock.parents[2])}")
        venv.install(client.lock, facts)
    return venv.python


def run_client(client: Client, python: Path, ready: Ready, model: str) -> bool:
    """Run one client against the app; return whether it passed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [python, client.program, ready.base_url, model],
            cwd=client.program.parent,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        outcome = "passed" if done.returncode == 0 else f"FAILED with status {done.returncode}"
    except subprocess.TimeoutExpired:
        outcome = f"FAILED: not done after {CLIENT_TIMEOUT_S} s"
    say(f"{client.name}: {outcome} ({time.monotonic() - started:.1f} s)")
    return outcome == "passed"


def make_tiny_models(folder: Path) -> None:
    """Write the scripted models into ``folder``, by the program of the tests' fixtures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in SCRIPTED.items():
        maker: list[str | Path] = [Venv(VENV).python, "-m", "tests.fixtures.tiny_gguf", folder / f"{name}.gguf"]
        run_step([*maker, "--say", words, "--name", name], "fixtures", f"Making the model {name}", ROOT)


def run_clients(model: str, clients: Sequence[Client] | None = None) -> int:
    """Run every client against one app; print ``clients: N passed, N failed`` last; return 1 if any failed."""
    clients = find_clients() if clients is None else clients
    pythons = [prepare(client) for client in clients]
    passed = 0
    if clients:
        end_on_sigterm()
        with tempfile.TemporaryDirectory(prefix="plimsoll-clients-") as scratch:
            home, tiny = Path(scratch) / "home", Path(scratch) / "models"
            make_tiny_models(tiny)
            app = AppProcess(app_command(Venv(VENV).python, "serve", ["--home", str(home)], (MODELS, tiny)))
            try:
                ready = app.wait_ready(READY_TIMEOUT_S)
                for client, python in zip(clients, pythons, strict=True):
                    passed += run_client(client, python, ready, model)
            finally:
                status = app.stop()
            if status != 0:
                say(f"the app ended with status {status} after SIGTERM")
    say(f"clients: {passed} passed, {len(clients) - passed} failed")
    return 0 if passed == len(clients) else 1
