"""Real clients against the running app: ``tests/clients/NAME/client.py``, each in an environment of its own.

A client is called with the base URL, a model's id and the engine's name, and passes when it ends with status 0. It is
run against each engine that runs here.
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

CPU, MLX = "cpu", "mlx"
"""The engines that clients are run against."""
TINY_MLX = "tiny"
"""The MLX model of the tests' fixtures."""
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


def run_client(client: Client, python: Path, ready: Ready, model: str, engine: str = CPU) -> bool:
    """Run one client against the app; return whether it passed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [python, client.program, ready.base_url, model, engine],
            cwd=client.program.parent,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        outcome = "passed" if done.returncode == 0 else f"FAILED with status {done.returncode}"
    except subprocess.TimeoutExpired:
        outcome = f"FAILED: not done after {CLIENT_TIMEOUT_S} s"
    say(f"{client.name}, {engine}: {outcome} ({time.monotonic() - started:.1f} s)")
    return outcome == "passed"


def make_tiny_models(folder: Path) -> None:
    """Write the scripted models into ``folder``, by the program of the tests' fixtures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in SCRIPTED.items():
        maker: list[str | Path] = [Venv(VENV).python, "-m", "tests.fixtures.tiny_gguf", folder / f"{name}.gguf"]
        run_step([*maker, "--say", words, "--name", name], "fixtures", f"Making the model {name}", ROOT)


def engines_here(python: Path) -> tuple[str, ...]:
    """Return the engines that can run on this machine; MLX where its package is installed."""
    looks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mlx_vlm') is None)"
    found = subprocess.run([python, "-c", looks], check=False)
    return (CPU, MLX) if found.returncode == 0 else (CPU,)


def run_clients(model: str, clients: Sequence[Client] | None = None) -> int:
    """Run every client against each engine; print ``clients: N passed, N failed`` last; return 1 if any failed."""
    clients = find_clients() if clients is None else clients
    pythons = [prepare(client) for client in clients]
    passed = wanted = 0
    if clients:
        end_on_sigterm()
        for engine in engines_here(Venv(VENV).python):
            wanted += len(clients)
            passed += run_against(engine, model, tuple(zip(clients, pythons, strict=True)))
    say(f"clients: {passed} passed, {wanted - passed} failed")
    return 0 if passed == wanted else 1


def run_against(engine: str, model: str, clients: Sequence[tuple[Client, Path]]) -> int:
    """Run clients, each with its Python, against one app; return how many passed."""
    passed = 0
    with tempfile.TemporaryDirectory(prefix="plimsoll-clients-") as scratch:
        home, tiny = Path(scratch) / "home", Path(scratch) / "models"
        folders: tuple[Path, ...] = (tiny,)
        if engine == MLX:
            model = TINY_MLX
            maker: list[str | Path] = [Venv(VENV).python, "-m", "tests.fixtures.tiny_mlx", tiny / TINY_MLX]
            run_step(maker, "fixtures", f"Making the model {TINY_MLX}", ROOT)
            home.mkdir(mode=0o700)
            (home / "settings.toml").write_text(f'engine = "{engine}"\n', "utf-8")
        else:
            folders = (MODELS, tiny)
            make_tiny_models(tiny)
        app = AppProcess(app_command(Venv(VENV).python, "serve", ["--home", str(home)], folders))
        try:
            ready = app.wait_ready(READY_TIMEOUT_S)
            for client, python in clients:
                passed += run_client(client, python, ready, model, engine)
        finally:
            status = app.stop()
        if status != 0:
            say(f"the app ended with status {status} after SIGTERM")
    return passed
