"""What runs in an MLX child. Imports nothing heavy at module level: everything has its order."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
GRACEFUL_SECONDS = 1
"""How long a SIGTERM waits for open streams; without a bound 24 s were seen."""
PARENT_GONE = 0
"""Exit code of a child whose parent ended, or let it go."""
NO_CACHE_LIMIT = "WARNING: mlx.core has no set_cache_limit: MLX keeps freed buffers, and its memory is not predicted"


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a child is given; it travels through multiprocessing's pipe, where nobody else reads it."""

    parent: int
    environment: Mapping[str, str]
    """The whole environment of the server, its key included."""
    port: int
    output: Connection
    """Where both outputs go."""
    lifeline: Connection
    """Ends when the parent does."""


def run(launch: Launch) -> None:
    """Serve until the lifeline ends. The order is part of the contract."""
    os.dup2(launch.output.fileno(), 1)
    os.dup2(launch.output.fileno(), 2)
    launch.output.close()
    _tie(launch)
    os.environ.clear()
    os.environ.update(launch.environment)  # before the import: the server reads it there
    import mlx.core as mx

    if hasattr(mx, "set_cache_limit"):
        mx.set_cache_limit(0)
    else:
        print(NO_CACHE_LIMIT, flush=True)  # noqa: T201 - its output is our log
    import uvicorn
    from mlx_vlm.server.app import app

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=launch.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )


def _tie(launch: Launch) -> None:
    """Let nothing of this process outlive its parent, and no Ctrl-C of the terminal reach it."""
    if sys.platform != "win32":
        os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launch.parent:
        os._exit(PARENT_GONE)

    def watch() -> None:
        with suppress(EOFError, OSError):  # what it is there for
            launch.lifeline.recv()
        os._exit(PARENT_GONE)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
