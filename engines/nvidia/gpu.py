"""One NVIDIA card as a value: what does not change from one second to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card as NVML lists it."""

    index: int
    """NVML's: the order of the PCI bus."""
    uuid: str
    """``GPU-8f1c…``: what a child is pinned with, immune to the order in which CUDA counts."""
    name: str
    total_bytes: int | None = None
    """VRAM; None where NVML does not tell (unified memory, for example)."""
    compute_capability: tuple[int, int] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gpu:
        """Read what ``dataclasses.asdict`` wrote. Raises ``ValueError`` that names the key."""
        unknown = sorted(set(data) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"{unknown[0]} is not a key of a GPU")
        known = dict(data)
        for name, kind in (("index", int), ("uuid", str), ("name", str)):
            if not isinstance(known.get(name), kind):
                raise ValueError(f"{name} of a GPU must be {'a whole number' if kind is int else 'a text'}")
        total = known.get("total_bytes")
        if total is not None and (not isinstance(total, int) or isinstance(total, bool) or total <= 0):
            raise ValueError("total_bytes of a GPU must be a whole number over 0, or nothing")
        known["compute_capability"] = version_of(known.get("compute_capability"), "compute_capability of a GPU")
        return cls(**known)


def version_of(value: object, name: str) -> tuple[int, int] | None:
    """Two whole numbers, or None; JSON has lists. Raises ``ValueError`` that says ``name``."""
    match value:
        case None:
            return None
        case [int(major), int(minor)]:
            return major, minor
        case _:
            raise ValueError(f"{name} must be two whole numbers, or nothing")
