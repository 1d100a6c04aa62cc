"""What a child prints: a bounded tail, and each line handed on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import IO

TAIL_LINES = 400
"""Lines kept: a llama-server's load at -lv 4 prints about 235."""
LINE_BYTES = 4096
"""A longer line is cut: nothing a child prints may grow without bound."""


class OutputTail:
    """The last lines of a child. Written by reader threads, read anywhere."""

    def __init__(self, lines: int = TAIL_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Keep a line."""
        with self._lock:
            self._lines.append(line)

    def text(self) -> str:
        """All that is kept, oldest first."""
        with self._lock:
            return "\n".join(self._lines)


def drain(stream: IO[bytes], on_line: Callable[[str], None]) -> threading.Thread:
    """Read a pipe to its end in a thread of its own, a bounded line at a time."""

    def read() -> None:
        with stream:
            while raw := stream.readline(LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                if line:
                    on_line(line)

    thread = threading.Thread(target=read, name="child-output", daemon=True)
    thread.start()
    return thread
