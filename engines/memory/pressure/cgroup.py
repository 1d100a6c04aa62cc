"""Our own memory cgroup: where its files are and what they say. Pure over the texts of the files.

Only our own group counts: in a container it is the container's. Version 2 wins only where it holds the memory
controller: a hybrid system mounts both and keeps memory in version 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OCTAL = re.compile(r"\\([0-7]{3})")
"""How mountinfo writes a blank, a tab, a line end and a backslash."""
PARENT = ".."


@dataclass(frozen=True, slots=True)
class Place:
    """Where our group's files are."""

    version: int
    folder: str


@dataclass(frozen=True, slots=True)
class Names:
    """What one version calls its files, and the rows of its ``memory.stat`` that can be taken back, in bytes.

    The files of the page cache on both of the kernel's lists, as MemAvailable counts them; shared memory is on
    neither. Version 1's ``total_`` rows include the groups below, as its usage does.
    """

    limit: str
    usage: str
    reclaimable: tuple[str, ...]
    stall: str | None
    """The group's own PSI file."""


NAMES = {
    1: Names(
        "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"), stall=None
    ),
    2: Names(
        "memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"), stall="memory.pressure"
    ),
}


def own_group(cgroups: str | None, mounts: str | None) -> Place | None:
    """Find our memory group in ``/proc/self/cgroup`` and ``/proc/self/mountinfo``; None where there is none."""
    paths: dict[int, str] = {}
    for row in (cgroups or "").splitlines():
        _, _, rest = row.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[1] = path
        elif row.startswith("0::"):
            paths[2] = path
    version = 1 if 1 in paths else 2
    folder = _mounted_at(mounts or "", version, paths[version]) if version in paths else None
    return None if folder is None else Place(version, folder)


def _mounted_at(mounts: str, version: int, path: str) -> str | None:
    for row in mounts.splitlines():
        before, dash, after = row.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        if version == 1 and (kind[0] != "cgroup" or "memory" not in kind[2].split(",")):
            continue
        if version == 2 and kind[0] != "cgroup2":
            continue
        below = _below(_plain(fields[3]), path)
        if below is not None:
            return _plain(fields[4]).rstrip("/") + below
    return None


def _below(root: str, path: str) -> str | None:
    """``path`` seen from the mounted ``root``; None when it is not under it, or outside of our namespace."""
    root = root.rstrip("/")
    if PARENT in path.split("/") or not (path == root or path.startswith(root + "/")):
        return None
    return path[len(root) :].rstrip("/")


def _plain(text: str) -> str:
    return OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
