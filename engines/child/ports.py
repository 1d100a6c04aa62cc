"""A free port for a child on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterable

LLAMA_PORTS = range(27200, 27300)
MLX_PORTS = range(27300, 27400)


class NoFreePort(OSError):
    """Every port of the range is taken."""


def free_port(ports: Iterable[int], *, host: str = "127.0.0.1", start: int = 0) -> int:
    """The first port that can be bound, beginning at the ``start``-th of the range.

    Another program may still take it before the child binds: then the child says so and another is tried.
    """
    candidates = list(ports)
    for index in range(len(candidates)):
        port = candidates[(start + index) % len(candidates)]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the child binds: connections of a former child linger for a minute and are no obstacle.
            exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise NoFreePort(f"no free port from {candidates[0]} to {candidates[-1]} on {host}")
