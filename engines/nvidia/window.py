"""The memory budget of a full offload on one card, with every term of the sum. Pure.

Starting values, to be calibrated with ``scripts/check_gpu.py``, except the shapes of Flash Attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engines.artifact.facts import ModelFacts, ModelKind
from engines.memory.bill import GIB, MIB, in_words
from engines.memory.cost import MASK_BYTES, UBATCH, batch, compute_bytes, kv_bytes, largest, scores_bytes_per_token
from engines.memory.grid import padded

SHARE = 0.9
"""Of the card's memory that one model may take."""
MARGIN_BYTES = 1 * GIB
"""Left for CUDA's pool, which grows while a model writes: an allocation that fails there kills the child."""
RESERVE_BYTES = 256 * MIB
"""For the constant part of the compute buffer."""
CONTEXT_BYTES = 512 * MIB
"""The CUDA context of a process."""
FLASH_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
"""Head sizes for which llama.cpp's CUDA kernels have Flash Attention, where keys and values are as long
(ggml-cuda/fattn.cu, b10883)."""


@dataclass(frozen=True, slots=True)
class CardBudget:
    """What a model may take of a card for its window, and what the window takes: bytes, or as named."""

    total: int
    free: int | None
    """At this load; None: not asked, the plan holds for an idle card."""
    weights: int
    projector: int
    left: int
    """For the window; under 0 where the weights alone are too much."""
    slope: int | None
    """What the compute buffer grows by for each token; None where the number of heads is not known."""
    flash: bool
    """Flash Attention is proven for the model."""
    holds: int | None
    """Tokens, a multiple of 256: the largest window within ``left``, at most what the model was trained for; None
    where the shape of the model does not tell."""
    exact: bool
    """False where sliding layers are counted as full ones, because the header does not say which slide."""
    kv: int | None = None
    """Of the planned window."""
    compute: int | None = None
    """Of the planned window."""
    window: int | None = None
    """Tokens: the planned window."""

    def spent_on(self, facts: ModelFacts, window: int | None) -> CardBudget:
        """The same budget with what ``window`` takes."""
        if window is None:
            return self
        return replace(
            self,
            kv=kv_bytes(facts, window, ubatch=batch(facts, window)),
            compute=card_compute_bytes(facts, window),
            window=window,
        )

    def to_json(self) -> dict[str, Any]:
        """As ``plan --json`` prints it."""
        return {
            "vram": self.total,
            "vram_free": self.free,
            "share": SHARE,
            "margin": MARGIN_BYTES,
            "weights": self.weights,
            "projector": self.projector,
            "reserve": RESERVE_BYTES,
            "cuda_context": CONTEXT_BYTES,
            "left": self.left,
            "holds": self.holds,
            "exact": self.exact,
            "flash_attention": self.flash,
            "kv": self.kv,
            "kv_per_token": None if self.kv is None or not self.window else self.kv // self.window,
            "compute": self.compute,
            "compute_per_token": self.slope,
        }

    def sentence(self) -> str:
        """The sum in words: ``20.1 GiB free on the card, less 1.0 GiB margin, 4.1 GiB weights …``."""
        terms = (
            (MARGIN_BYTES, "margin"),
            (self.weights, "weights"),
            (self.projector, "projector"),
            (RESERVE_BYTES, "reserve"),
            (CONTEXT_BYTES, "CUDA context"),
        )
        *most, last = (f"{in_words(size)} {name}" for size, name in terms if size)
        crowded = self.free is not None and self.free < SHARE * self.total
        ceiling = f"{in_words(self.free or 0)} free" if crowded else f"{SHARE} × {in_words(self.total)}"
        return f"{ceiling} on the card, less {', '.join(most)} and {last}"


def card_budget(facts: ModelFacts, *, total: int, free: int | None, override: int | None = None) -> CardBudget:
    """``min(0.9 × total, free) - 1 GiB - weights - projector - 256 MiB - 512 MiB``, and the window it holds.

    ``total`` and ``free`` are the real card's bytes; ``override`` replaces what is free, and raises ``total``.
    """
    if override is not None:
        total, free = max(override, total), override
    ceiling = int(SHARE * total)
    if free is not None:
        ceiling = min(ceiling, free)
    left = ceiling - MARGIN_BYTES - facts.weights_bytes - facts.projector_bytes - RESERVE_BYTES - CONTEXT_BYTES
    return CardBudget(
        total=total,
        free=free,
        weights=facts.weights_bytes,
        projector=facts.projector_bytes,
        left=left,
        slope=compute_slope(facts),
        flash=flash_proven(facts),
        holds=_holds(facts, left),
        exact=facts.sliding_pattern is not None
        or facts.sliding_window is None
        or (facts.trained_window is not None and facts.sliding_window >= facts.trained_window),
    )


def flash_proven(facts: ModelFacts) -> bool:
    """Whether Flash Attention certainly runs on a card: equal heads of a size that has a kernel, no ALiBi."""
    key, value = facts.key_length, facts.value_length
    sliding = facts.sliding_key_length or key, facts.sliding_value_length or value
    return not facts.alibi and all(keys == values and keys in FLASH_HEADS for keys, values in ((key, value), sliding))


def compute_slope(facts: ModelFacts) -> int | None:
    """Bytes that the compute buffer of a chat model grows by for each token: 1 KiB with Flash Attention, else the
    attention scores of one micro batch over all heads. None where the heads are not known."""
    if flash_proven(facts):
        return UBATCH * MASK_BYTES
    return scores_bytes_per_token(max(facts.heads)) if facts.heads else None


def card_compute_bytes(facts: ModelFacts, window: int) -> int | None:
    """What the compute buffer grows by for ``window`` tokens; None as ``compute_slope``."""
    slope = compute_slope(facts)
    if slope is None:
        return None
    tokens = padded(window)
    if facts.kind is ModelKind.CHAT:
        return tokens * slope
    scores = 0 if flash_proven(facts) else scores_bytes_per_token(max(facts.heads or (0,)), ubatch=tokens)
    return compute_bytes(facts, window) + tokens * scores


def _holds(facts: ModelFacts, left: int) -> int | None:
    trained = facts.trained_window
    if trained is None or kv_bytes(facts, trained) is None or compute_slope(facts) is None:
        return None

    def cost(window: int) -> int:
        kv, compute = kv_bytes(facts, window, ubatch=batch(facts, window)), card_compute_bytes(facts, window)
        assert kv is not None  # the shape is known: see above
        assert compute is not None
        return kv + compute

    return largest(cost, left, trained)
