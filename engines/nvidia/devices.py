"""Which card a child sees, under the user's own ``CUDA_VISIBLE_DEVICES``. Pure.

What the user set is never overridden: it restricts the choice. UUIDs count by prefix and integers as NVML counts; as
in CUDA, a list ends at its first entry that names nothing. Among several cards of the machine ours is the largest;
several that the user named are all left to the child, which is then neither sized nor braked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.nvidia.gpu import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
PART_OF_A_CARD = "MIG-"
"""Such a name is a slice of a card, with a memory of its own that is not looked up."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What a child may see."""

    gpus: tuple[Gpu, ...]
    """The cards; empty where none is known."""
    value: str | None
    """For ``CUDA_VISIBLE_DEVICES``; None leaves the variable out."""
    problem: str = ""
    """Why the window cannot be sized for one card, as the middle of a sentence; empty where it can."""

    @property
    def gpu(self) -> Gpu | None:
        """The one card that the child is sized for."""
        return self.gpus[0] if len(self.gpus) == 1 and not self.problem else None


def choose(gpus: Sequence[Gpu], visible: str | None) -> Devices:
    """Choose among the machine's cards; ``visible`` is the user's value, None or empty: unset."""
    entries = [entry.strip() for entry in (visible or "").split(",")]
    if visible is None or not any(entries):
        if not gpus:
            return Devices((), None, "the graphics card cannot be read")
        return _pinned(largest(gpus))
    if any(entry.startswith(PART_OF_A_CARD) for entry in entries):
        return Devices((), visible, f"{VARIABLE} names a part of a card ({visible})")
    if not gpus:
        return Devices((), visible, "the graphics card cannot be read")
    named: list[Gpu] = []
    for entry in entries:
        gpu = find(gpus, entry)
        if gpu is None:
            break
        if gpu not in named:
            named.append(gpu)
    if not named:
        return Devices((), visible, f"{VARIABLE} names no card of this machine ({visible})")
    if len(named) > 1:
        return Devices(tuple(named), visible, f"{VARIABLE} names several cards ({visible})")
    return _pinned(named[0])


def find(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """The card that one entry names; None for none, and for a prefix that several share."""
    if entry.isascii() and entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if not entry.startswith("GPU-"):
        return None
    found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def largest(gpus: Sequence[Gpu]) -> Gpu:
    """The card with the most memory, the first of equals."""
    return max(gpus, key=lambda gpu: (gpu.total_bytes or 0, -gpu.index))


def _pinned(gpu: Gpu) -> Devices:
    return Devices((gpu,), gpu.uuid)
