"""A real MLX child for tests: mlx_vlm's server over a tiny model, in the environment that the engine gives it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.host.model import Model
from engines.child.probe import TRUSTS_NOBODY
from engines.engine import ChildFacts
from tests.app.endpoint.mlx.child import KeepingChild
from tests.fixtures.facts import facts

START_SECONDS = 90
SERVE = """
import sys, uvicorn
from mlx_vlm.server import app
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=1)
"""


@dataclass(frozen=True)
class MlxServer:
    """One that serves."""

    model: Model
    port: int
    key: str
    window: int

    def child(self) -> KeepingChild:
        """What a relay uses of it."""
        return KeepingChild(self.port, self.key, ChildFacts(self.window, 1))

    def get(self, path: str) -> httpx.Response:
        """Ask it directly."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.get(
            f"http://127.0.0.1:{self.port}{path}", headers=headers, trust_env=False, verify=TRUSTS_NOBODY, timeout=5
        )


@contextmanager
def serving_mlx(folder: Path, port: int, window: int) -> Iterator[MlxServer]:
    """Serve the model in ``folder`` with this window; nothing of it is left afterwards."""
    key = secrets.token_hex(8)
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "MLX_VLM_PRELOAD_MODEL": str(folder),
        "MAX_KV_SIZE": str(window),
        "MLX_VLM_SERVER_API_KEY": key,
        "MLX_VLM_MAX_NUM_SEQS": "1",
        "MLX_VLM_LOG_PROGRESS_INTERVAL": "0",
        "APC_ENABLED": "1",
        "APC_DISK_ENABLED": "0",
    }
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(port)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    model = Model("tiny", "Tiny", facts(format="mlx", files=(folder / "model.safetensors",), trained_window=window))
    server = MlxServer(model, port, key, window)
    try:
        _wait(server, process, log)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait(server: MlxServer, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        try:
            if server.get("/health").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(f"it does not serve: {log.read_text()}")
