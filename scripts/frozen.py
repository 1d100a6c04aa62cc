"""Freeze the application with PyInstaller and see that it serves: ``python3 scripts/dev.py frozen``.

A frozen program has no Python to start: its MLX child is the program itself, started again. So it is run with an MLX
model, asked for an answer, killed, and its child must be gone.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import app_process
from app_process import AppProcess, Ready
from environment import Venv
from layout import ARTIFACTS, ROOT, VENV
from steps import SetupError, run_step, say

FROZEN = ARTIFACTS / "frozen"
SPEC = ROOT / "installer" / "plimsoll.spec"
READY_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 180
"""A first answer compiles MLX's kernels."""
GONE_S = 2.0
"""How long a child may outlive the application (design: no orphan, ever)."""
POLL_S = 0.05


def freeze() -> Path:
    """Build the program; return its path. Some minutes."""
    started = time.monotonic()
    command: list[str | Path] = [Venv(VENV).program("pyinstaller"), "--noconfirm", "--log-level", "ERROR"]
    command += ["--distpath", FROZEN / "dist", "--workpath", FROZEN / "work", SPEC]
    run_step(command, "freeze", "Freezing the application", ROOT)
    program = FROZEN / "dist" / "plimsoll" / ("plimsoll.exe" if os.name == "nt" else "plimsoll")
    size = sum(file.stat().st_size for file in program.parent.rglob("*") if file.is_file() and not file.is_symlink())
    say(f"frozen: {size / 1e6:,.0f} MB after {time.monotonic() - started:.0f} s")
    return program


def check(program: Path) -> None:
    """Run it as a user does, and kill it. Raises ``SetupError``."""
    if sys.platform == "win32":
        raise SetupError("frozen", "MLX does not run on Windows, so there is nothing to check here.")
    with tempfile.TemporaryDirectory(prefix="plimsoll-frozen-") as scratch:
        home, models = Path(scratch) / "home", Path(scratch) / "models"
        home.mkdir(mode=0o700)
        (home / "settings.toml").write_text('engine = "mlx"\n', encoding="utf-8")
        maker: list[str | Path] = [Venv(VENV).python, "-m", "tests.fixtures.tiny_mlx", models / "tiny"]
        run_step(maker, "fixtures", "Making an MLX model", ROOT)
        app = AppProcess([str(program), "serve", "--home", str(home), "--models", str(models)])
        try:
            ready = app.wait_ready(READY_TIMEOUT_S)
            answer = ask(ready)
            require(bool(answer["choices"][0]["message"]["content"]), f"it answered {answer}")
            (child,) = get(ready, "/api/status")["children"]
            say(f"frozen: answered through its child {child['pid']} with a window of {child['window']['allocated']}")
            if sys.platform == "linux":
                own = Path(f"/proc/{child['pid']}/exe").resolve()
                require(own == program.resolve(), f"the child is {own}, not the program itself")
            os.kill(ready.pid, signal.SIGKILL)
            require(gone(int(child["pid"])), f"the child {child['pid']} outlived the application")
            say("frozen: the application was killed, and its child went with it")
        finally:
            app.stop()


def ask(ready: Ready) -> Any:
    """One short chat."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    return call(ready, "POST", "/v1/chat/completions", json.dumps(body))


def get(ready: Ready, path: str) -> Any:
    """A JSON answer."""
    return call(ready, "GET", path, None)


def call(ready: Ready, method: str, path: str, body: str | None) -> Any:
    """One request to the endpoint."""
    connection = http.client.HTTPConnection("127.0.0.1", ready.port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        require(answer.status == http.HTTPStatus.OK, f"{path} answered {answer.status}: {text}")
        return json.loads(text)
    finally:
        connection.close()


def gone(pid: int) -> bool:
    """Whether a process ends within the time that it may outlive us."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(POLL_S)
    return False


def require(holds: bool, otherwise: str) -> None:
    """Raise ``SetupError`` where it does not hold."""
    if not holds:
        raise SetupError("frozen", f"The frozen application does not work: {otherwise}.")


def run_frozen() -> int:
    """Freeze and check; return 0. Raises ``SetupError``."""
    app_process.end_on_sigterm()
    check(freeze())
    say("frozen: passed")
    return 0
