"""The memory limit of our own cgroup: in a container, less than the machine's RAM."""

from __future__ import annotations

import sys
from pathlib import Path

from engines.memory.pressure.cgroup import NAMES, own_group

UNLIMITED = 2**60
"""Bytes: version 1 writes "no limit" as a number near 2 to the 63rd; version 2 writes ``max``."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """The limit in bytes; None where there is none, where it cannot be read, and on other systems than Linux.

    Only our own group counts, not those above it.
    """
    if sys.platform != "linux":
        return None
    try:
        place = own_group(_text(root, "/proc/self/cgroup"), _text(root, "/proc/self/mountinfo"))
        return None if place is None else limit_of(_text(root, f"{place.folder}/{NAMES[place.version].limit}"))
    except OSError:
        return None


def limit_of(text: str) -> int | None:
    """What ``memory.max`` or ``memory.limit_in_bytes`` says; None for no limit. Pure."""
    word = text.strip()
    limit = int(word) if word.isascii() and word.isdigit() else UNLIMITED
    return limit if limit < UNLIMITED else None


def _text(root: Path, path: str) -> str:
    return (root / path.lstrip("/")).read_text("utf-8", "surrogateescape")
