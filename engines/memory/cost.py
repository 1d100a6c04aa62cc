"""What a window costs a llama-server on the CPU, in bytes: its KV cache and its compute buffer. Pure.

Measured on b10434 and b11434 with one slot, f16 cache and Flash Attention (``-fa auto`` resolves to it on any CPU):
the KV cache is exact to the byte, the compute buffer grows by 1 KiB a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from engines.artifact.architectures import ENCODERS
from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.kv import F16_BYTES, kv_bytes_per_layer
from engines.memory.grid import GRID, padded

UBATCH = 512
"""Tokens of one micro batch (llama-server's default). A sliding layer holds them besides its window."""
MASK_BYTES = 2
"""Of one entry of the attention mask with Flash Attention (f16): 1 KiB a token of the window at 512 a batch."""
SCORE_BYTES = 4
"""Of one attention score or mask entry without Flash Attention (f32)."""
LOGIT_BYTES = 4
"""Of one entry of the vocabulary, for each token of an embedding batch: a model that can write computes them all
(measured: 17,152 B a token at a vocabulary of 4,288). Encoders (BERT and the like) have no such output."""
ACTIVATION_BYTES = 68
"""For each token of an embedding batch and each dimension of the embedding. Measured: 4 x (3 ff + 4 embedding) B on
qwen3, 4 x (ff + 3 embedding) B on bert; a header's ``ff`` is not read, so four times the embedding is assumed (start
value)."""


def kv_bytes(
    facts: ModelFacts,
    window: int,
    *,
    ubatch: int = UBATCH,
    key_bytes: float = F16_BYTES,
    value_bytes: float = F16_BYTES,
) -> int | None:
    """Bytes of the KV cache for ``window`` tokens; None for a shape the formula does not model (MLA, unknown).

    A sliding layer holds ``pad256(min(window, n_swa + n_ubatch))`` cells where the header says which layers slide,
    and is counted in full where it does not.
    """
    layers = kv_bytes_per_layer(facts, key_bytes, value_bytes)
    if layers is None:
        return None
    full, sliding = cells(facts, window, ubatch=ubatch)
    if facts.sliding_pattern is None:
        return sum(layers) * full
    return sum(size * (sliding if slides else full) for size, slides in zip(layers, facts.sliding_pattern, strict=True))


def cells(facts: ModelFacts, window: int, *, ubatch: int = UBATCH) -> tuple[int, int]:
    """Cells of the cache of the full layers, and of the cache of the sliding ones (0 where none is known to slide)."""
    full = padded(window)
    if facts.sliding_window is None or not any(facts.sliding_pattern or ()):
        return full, 0
    return full, padded(min(full, facts.sliding_window + ubatch))


def compute_bytes(facts: ModelFacts, window: int) -> int:
    """What the compute buffer grows by for ``window`` tokens; its constant part is in the budget's reserve.

    The batch of an embedding or rerank worker is its window, so that mask, activations and logits grow with it.
    """
    tokens = padded(window)
    if facts.kind is ModelKind.CHAT:
        return tokens * UBATCH * MASK_BYTES
    logits = 0 if facts.architecture in ENCODERS else (facts.vocabulary or 0) * LOGIT_BYTES
    return tokens * (tokens * MASK_BYTES + logits + (facts.embedding_length or 0) * ACTIVATION_BYTES)


def scores_bytes_per_token(heads: int, *, ubatch: int = UBATCH) -> int:
    """What the compute buffer grows by for each token without Flash Attention (34 KiB at 16 heads, measured)."""
    return ubatch * SCORE_BYTES * (heads + 1)


def window_bytes(facts: ModelFacts, window: int) -> int | None:
    """KV cache and compute buffer of a window; None as ``kv_bytes``."""
    kv = kv_bytes(facts, window, ubatch=batch(facts, window))
    return None if kv is None else kv + compute_bytes(facts, window)


def batch(facts: ModelFacts, window: int) -> int:
    """Tokens of one micro batch of the child that this model gets."""
    return UBATCH if facts.kind is ModelKind.CHAT else window


def largest(cost: Callable[[int], int], budget: int, top: int) -> int:
    """The largest multiple of 256 up to ``padded(top)`` tokens whose cost is within ``budget``; 0 where none is.

    ``cost`` must not fall from one multiple to the next.
    """
    return GRID * bisect_right(range(1, padded(top) // GRID + 1), budget, key=lambda number: cost(number * GRID))
