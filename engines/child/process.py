"""One server process: started tied to us, drained, watched, and stopped with all its descendants."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import psutil

from engines.child.output import OutputTail, drain
from engines.child.parent_death import ParentDeath

log = logging.getLogger(__name__)

LIFELINE_SECONDS = 1.0
"""The end of stdin stops a llama-server in 16 ms, even with a request in flight (measured): a second is ample."""
KILL_SECONDS = 5.0
"""From the beginning of a stop to SIGKILL."""
HURRIED_KILL_SECONDS = 2.5
"""The same when the application quits, which it does within 5 s."""
REAP_SECONDS = 2.0
"""How long the system may take to bury what was killed."""


class Closable(Protocol):
    """Our end of a lifeline."""

    def close(self) -> None:
        """Let the child go. Safe to call twice."""


class Started(Protocol):
    """What is asked of a process: ``subprocess.Popen`` has it."""

    pid: int

    @property
    def stdin(self) -> Closable | None:
        """The lifeline: the child ends when this is closed."""

    def wait(self) -> int:
        """Block until it has ended; its exit code, negative for a signal."""


class ChildProcess:
    """A started process. Make one with ``spawn`` on the main thread; use it on the loop it was made on."""

    def __init__(self, process: Started, readers: Sequence[threading.Thread], tail: OutputTail) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Task[None] | None = None
        self.tail = tail
        self.pid = process.pid
        self.create_time = _create_time(process.pid)
        self.died: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._wait, args=(readers,), name="child-wait", daemon=True).start()

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        parent_death: ParentDeath,
        on_line: Callable[[str], None] | None = None,
    ) -> ChildProcess:
        """Start ``argv`` with exactly ``env``. ``on_line`` is called on a reader's thread. Raises ``OSError``.

        stdin is a pipe that stays open while we live: the lifeline.
        """
        tail = OutputTail()
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **parent_death.popen_options(),
        )
        try:
            parent_death.adopt(process.pid)

            def keep(line: str) -> None:
                tail.add(line)
                if on_line is not None:
                    on_line(line)

            assert process.stdout is not None
            assert process.stderr is not None
            readers = [drain(process.stdout, keep), drain(process.stderr, keep)]
            return cls(process, readers, tail)
        except BaseException:
            process.kill()
            process.wait()
            raise

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return not self.died.done()

    def _wait(self, readers: Sequence[threading.Thread]) -> None:
        code = self._process.wait()
        for reader in readers:  # its last words belong to the tail; a grandchild may hold the pipe open
            reader.join(timeout=1.0)
        try:
            self._loop.call_soon_threadsafe(self._ended, code)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            log.debug("child %d ended with %d after the loop", self.pid, code)

    def _ended(self, code: int) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self.died.done():
            self.died.set_result(code)

    async def stop(self, *, lifeline: bool, hurry: bool = False) -> None:
        """Stop the process and its descendants, and wait until they are gone.

        First the lifeline, then SIGTERM, then SIGKILL. A stop goes on when its caller is cancelled, and a second
        call waits for the first.
        """
        if self._stop is None:
            seconds = HURRIED_KILL_SECONDS if hurry else KILL_SECONDS
            self._stop = asyncio.create_task(self._do_stop(lifeline=lifeline, kill_seconds=seconds))
        await asyncio.shield(self._stop)

    async def _do_stop(self, *, lifeline: bool, kill_seconds: float) -> None:
        tree = await asyncio.to_thread(self._descendants)
        if self._process.stdin is not None:
            self._process.stdin.close()
        waited = LIFELINE_SECONDS if lifeline else 0.0
        if not await self._gone(waited):
            _signal(tree, psutil.Process.terminate)
            if not await self._gone(kill_seconds - waited):
                log.warning("child %d did not end in %.1f s: killing it", self.pid, kill_seconds)
        survivors = [process for process in tree if process.is_running()]
        _signal(survivors, psutil.Process.kill)
        # Never wait for the child itself here: psutil would take its exit status away from the waiting thread.
        others = [process for process in survivors if process.pid != self.pid]
        _, left = await asyncio.to_thread(psutil.wait_procs, others, REAP_SECONDS)
        for process in left:
            log.warning("process %d of child %d cannot be killed", process.pid, self.pid)
        await self._gone(REAP_SECONDS)

    def _descendants(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.pid)
            if root.create_time() != self.create_time:
                return []
            return [*root.children(recursive=True), root]
        except psutil.NoSuchProcess:
            return []

    async def _gone(self, seconds: float) -> bool:
        if not self.died.done():
            await asyncio.wait([self.died], timeout=seconds)
        return self.died.done()


def _create_time(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:  # on Windows a process that ended at once is gone already
        return time.time()


def _signal(processes: Sequence[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        try:
            send(process)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            log.warning("process %d belongs to somebody else and was not signalled", process.pid)
