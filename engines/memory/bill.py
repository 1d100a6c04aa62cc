"""The memory budget of a llama-server on the CPU, with every term of the sum. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engines.artifact.facts import ModelFacts
from engines.memory.cost import batch, compute_bytes, kv_bytes, largest, window_bytes

KIB = 1024
MIB = 1024**2
GIB = 1024**3
SHARE = 0.75
"""Of the RAM that one machine's models may take: the rest is the system's and the user's other programs'."""
RESERVE_BYTES = 256 * MIB
"""For the constant part of the compute buffer (26 MiB at an embedding of 1,024, 64 MiB at 2,048, measured)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a model may take for its window, and what the window takes. Bytes, unless a name says otherwise."""

    ram: int
    """Physical RAM, or the limit of our own cgroup where that is less."""
    limited: bool
    """It is the cgroup's."""
    weights: int
    projector: int
    other_children: int
    """What children that stay hold or are predicted to hold."""
    left: int
    """For the window; under 0 where the weights alone are too much."""
    holds: int | None
    """Tokens, a multiple of 256: the largest window within ``left`` (the memory ceiling), at most what the model was
    trained for; None where the shape of the model does not tell."""
    exact: bool
    """False where sliding layers are counted as full ones, because the header does not say which slide."""
    kv: int | None = None
    """Of the planned window."""
    compute: int | None = None
    """Of the planned window."""
    window: int | None = None
    """Tokens: the planned window."""

    def spent_on(self, facts: ModelFacts, window: int | None) -> Budget:
        """The same budget with what ``window`` takes."""
        if window is None:
            return self
        kv = kv_bytes(facts, window, ubatch=batch(facts, window))
        return replace(self, kv=kv, compute=compute_bytes(facts, window), window=window)

    def to_json(self) -> dict[str, Any]:
        """As ``plan --json`` prints it."""
        return {
            "ram": self.ram,
            "limited_by_cgroup": self.limited,
            "share": SHARE,
            "weights": self.weights,
            "projector": self.projector,
            "reserve": RESERVE_BYTES,
            "other_children": self.other_children,
            "left": self.left,
            "holds": self.holds,
            "exact": self.exact,
            "kv": self.kv,
            "kv_per_token": _each(self.kv, self.window),
            "compute": self.compute,
            "compute_per_token": _each(self.compute, self.window),
        }

    def sentence(self) -> str:
        """The sum in words: ``0.75 × 8.0 GiB, less 4.1 GiB weights and 256 MiB reserve``."""
        terms = (
            (self.weights, "weights"),
            (self.projector, "projector"),
            (self.other_children, "other models"),
            (RESERVE_BYTES, "reserve"),
        )
        *most, last = (f"{in_words(size)} {name}" for size, name in terms if size)
        limit = " (our cgroup's limit)" if self.limited else ""
        return f"{SHARE} × {in_words(self.ram)}{limit}, less {', '.join(most)} and {last}"


def budget_for(facts: ModelFacts, *, ram: int, limit: int | None = None, reserved: int = 0) -> Budget:
    """The budget of a model: ``0.75 × ram - weights - projector - 256 MiB - reserved``, and the window it holds.

    ``ram`` is physical memory and ``limit`` that of our own cgroup, None where there is none.
    """
    limited = limit is not None and limit < ram
    ram = limit if limit is not None and limited else ram
    left = int(SHARE * ram) - facts.weights_bytes - facts.projector_bytes - RESERVE_BYTES - reserved
    return Budget(
        ram=ram,
        limited=limited,
        weights=facts.weights_bytes,
        projector=facts.projector_bytes,
        other_children=reserved,
        left=left,
        holds=_holds(facts, left),
        exact=facts.sliding_pattern is not None
        or facts.sliding_window is None
        or (facts.trained_window is not None and facts.sliding_window >= facts.trained_window),
    )


def in_words(size: int) -> str:
    """Bytes for people: ``4.1 GiB``, ``256 MiB``."""
    return f"{size / GIB:.1f} GiB" if abs(size) >= GIB else f"{size / MIB:.0f} MiB"


def _holds(facts: ModelFacts, left: int) -> int | None:
    trained = facts.trained_window
    if trained is None or kv_bytes(facts, trained) is None:
        return None
    return largest(lambda window: window_bytes(facts, window) or 0, left, trained)


def _each(size: int | None, window: int | None) -> int | None:
    return None if size is None or not window else size // window
