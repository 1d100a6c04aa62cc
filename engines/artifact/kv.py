"""How much KV cache a token costs. Pure.

A layer holds for each token ``kv_heads x key_length`` keys and ``kv_heads x value_length`` values, of two bytes each
in the default cache (f16). Measured: exact for full attention (Qwen3-0.6B 114,688 B, Llama-3.2-1B 32,768 B).
"""

from __future__ import annotations

import math

from engines.artifact.architectures import WITHOUT_KV_CACHE
from engines.artifact.facts import ModelFacts

F16_BYTES = 2.0
"""Of one key or value in the default cache. A quantised one has less: q8_0 34 / 32, q4_0 18 / 32."""


def kv_bytes_per_layer(
    facts: ModelFacts, key_bytes: float = F16_BYTES, value_bytes: float = F16_BYTES
) -> tuple[int, ...] | None:
    """Bytes that one token takes in each layer, one number a layer; 0 for a layer without a cache of its own.

    ``key_bytes`` and ``value_bytes`` are bytes of one element. None where the formula does not hold (MLA) or the
    header does not say enough.
    """
    if facts.layers is None:
        return None
    if facts.architecture in WITHOUT_KV_CACHE:
        return (0,) * facts.layers
    if facts.kv_lora_rank is not None or facts.kv_heads is None:
        return None
    own = facts.layers - (facts.shared_kv_layers or 0)
    pattern = facts.sliding_pattern or (False,) * facts.layers
    sizes: list[int] = []
    for layer, (kv_heads, slides) in enumerate(zip(facts.kv_heads, pattern, strict=True)):
        if layer >= own or kv_heads == 0:
            sizes.append(0)
            continue
        key, value = facts.key_length, facts.value_length
        if slides:
            key = key if facts.sliding_key_length is None else facts.sliding_key_length
            value = value if facts.sliding_value_length is None else facts.sliding_value_length
        if key is None or value is None:
            return None
        sizes.append(math.ceil(kv_heads * (key * key_bytes + value * value_bytes)))
    return tuple(sizes)


def kv_bytes_per_token(facts: ModelFacts, key_bytes: float = F16_BYTES, value_bytes: float = F16_BYTES) -> int | None:
    """Bytes that one token takes in all layers, as if none slid; None as ``kv_bytes_per_layer``."""
    sizes = kv_bytes_per_layer(facts, key_bytes, value_bytes)
    return None if sizes is None else sum(sizes)
