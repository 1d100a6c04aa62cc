"""What runs in an MLX child. Imports nothing heavy at module level: everything has its order."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
GRACEFUL_SECONDS = 1
"""How long a SIGTERM waits for open streams; without a bound 24 s were seen."""
PARENT_GONE = 0
"""Exit code of a child whose parent ended, or let it go."""
KEEP_ALIVE_SECONDS = 75
"""Longer than any client of ours keeps an idle connection: none may send on one that is just being closed."""
NOT_LOADED = 3
"""Exit code of a server whose model does not load (uvicorn's own)."""
TOLD = "plimsoll: "
"""Begins a line that the application's log repeats as a warning."""
PORT_TAKEN = "address already in use"
NO_CACHE_LIMIT = f"{TOLD}mlx.core has no set_cache_limit: MLX keeps freed buffers, and its memory is not predicted"


class Pipe(Protocol):
    """One end of a pipe of multiprocessing, whose class differs from system to system."""

    def fileno(self) -> int:
        """Its descriptor."""

    def recv(self) -> Any:
        """Block until something comes. Raises ``EOFError`` at its end."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a child is given; it travels through multiprocessing's pipe, where nobody else reads it."""

    parent: int
    environment: Mapping[str, str]
    """The whole environment of the server, its key included."""
    port: int
    output: Pipe
    """Where both outputs go."""
    lifeline: Pipe
    """Ends when the parent does."""


def run(launch: Launch) -> None:
    """Serve until the lifeline ends. The order is part of the contract."""
    os.dup2(launch.output.fileno(), 1)
    os.dup2(launch.output.fileno(), 2)
    launch.output.close()
    _tie(launch)
    os.environ.clear()
    os.environ.update(launch.environment)  # before the import: the server reads it there
    listening = _listen(launch.port)
    import mlx.core as mx

    if hasattr(mx, "set_cache_limit"):
        mx.set_cache_limit(0)
    else:
        print(NO_CACHE_LIMIT, flush=True)  # noqa: T201 - its output is our log
    _serve(listening)


def _listen(port: int) -> socket.socket:
    """Take the port before the model is loaded: a port that is taken costs no load, and nobody takes it meanwhile."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError as error:
        sys.exit(f"{PORT_TAKEN}: 127.0.0.1:{port} ({error.strerror})")
    return listening


def _serve(listening: socket.socket) -> None:
    import uvicorn
    from mlx_vlm.server.app import app

    class Server(uvicorn.Server):
        """A Ctrl-C is the parent's affair."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if sig != signal.SIGINT:
                super().handle_exit(sig, frame)

    server = Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )
    )
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(NOT_LOADED)


def _tie(launch: Launch) -> None:
    """Let nothing of this process outlive its parent, and no Ctrl-C of the terminal reach it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
