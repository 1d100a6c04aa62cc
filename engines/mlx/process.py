"""An MLX child as a process: spawned by multiprocessing, which works in a frozen program too."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

from engines.child.output import OutputTail, drain
from engines.child.process import ChildProcess
from engines.mlx.main import Launch, run

REAPED_SECONDS = 0.01
"""Between two looks at an exit code that another thread has fetched and not yet stored."""


class Lifeline:
    """Our end of the pipe whose other end the child watches."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Let the child go. Safe to call twice."""
        if self._close is not None:
            self._close()
            self._close = None


class Spawned:
    """A multiprocessing process with the face that ``ChildProcess`` asks for."""

    def __init__(self, process: multiprocessing.process.BaseProcess, lifeline: Lifeline) -> None:
        assert process.pid is not None
        self._process = process
        self.pid: int = process.pid
        self.stdin = lifeline

    def wait(self) -> int:
        """Block until it has ended; its exit code, negative for a signal."""
        self._process.join()
        while (code := self._process.exitcode) is None:  # another start reaps it too, and is about to say so
            time.sleep(REAPED_SECONDS)
        return code


def executable() -> str:
    """The program of a child, as the system will name it: this Python, or the frozen program."""
    return str(psutil.Process().exe())


def spawn(environment: Mapping[str, str], port: int, on_line: Callable[[str], None]) -> ChildProcess:
    """Start a server. ``on_line`` is called on a reader's thread. Call it on the main thread. Raises ``OSError``."""
    context = multiprocessing.get_context("spawn")
    from_child, output = context.Pipe(duplex=False)
    lifeline, held = context.Pipe(duplex=False)
    launch = Launch(os.getpid(), environment, port, output, lifeline)
    process = context.Process(target=run, args=(launch,), name="mlx-server", daemon=True)
    try:
        process.start()
    except BaseException:
        from_child.close()
        held.close()
        raise
    finally:  # the child has its own
        output.close()
        lifeline.close()
    tail = OutputTail()

    def keep(line: str) -> None:
        tail.add(line)
        on_line(line)

    reader = drain(os.fdopen(os.dup(from_child.fileno()), "rb"), keep)
    from_child.close()
    running = ChildProcess(Spawned(process, Lifeline(held.close)), [reader], tail)
    running.died.add_done_callback(lambda _: let_tracker_go())
    return running


def let_tracker_go() -> None:
    """End the helper process that multiprocessing starts beside a spawn, once nobody holds it any more.

    It would stay as long as we do. Children that still run keep it until they end; the next spawn starts another. Call
    it on the thread that spawns.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    with tracker._lock:
        descriptor, pid = tracker._fd, tracker._pid
        tracker._fd = tracker._pid = None
    if descriptor is not None:
        os.close(descriptor)
    if pid is not None:
        threading.Thread(target=_bury, args=(pid,), name="tracker-wait", daemon=True).start()


def _bury(pid: int) -> None:
    with suppress(ChildProcessError):  # multiprocessing did it
        os.waitpid(pid, 0)
