"""What a llama-server on the CPU is predicted to hold right after its load. Pure.

Measured on b10434 and b11434 (anonymous memory at load, one slot, f16 cache): KV + 8 MiB + 48 B a cell, and about
216 B for every entry of the vocabulary (54 MiB for gemma's 262,144).
"""

from __future__ import annotations

from engines.artifact.facts import ModelFacts
from engines.artifact.kv import kv_bytes_per_layer
from engines.memory.window import padded
from engines.plan import Memory

MIB = 1024 * 1024
SERVER_BYTES = 8 * MIB
BYTES_PER_CELL = 48
BYTES_PER_VOCABULARY_ENTRY = 216
UBATCH = 512
"""Tokens of one micro batch (llama-server's default); a sliding layer holds them besides its window."""


def kv_bytes(facts: ModelFacts, window: int) -> int | None:
    """Bytes of the KV cache for ``window`` tokens; None for a shape the formula does not model (MLA, unknown).

    A sliding layer holds ``pad256(min(window, n_swa + n_ubatch))`` cells where the header says which layers slide.
    """
    layers = kv_bytes_per_layer(facts)
    if layers is None:
        return None
    full = padded(window)
    if facts.sliding_window is None or facts.sliding_pattern is None:
        return sum(layers) * full
    sliding = padded(min(full, facts.sliding_window + UBATCH))
    return sum(size * (sliding if slides else full) for size, slides in zip(layers, facts.sliding_pattern, strict=True))


def predict(facts: ModelFacts, window: int | None) -> Memory:
    """The bill of one child, term by term."""
    kv = kv_bytes(facts, window) if window is not None else None
    if kv is None or window is None:
        return Memory(None)
    bill = {
        "kv": kv,
        "server": SERVER_BYTES,
        "cells": BYTES_PER_CELL * padded(window),
        "vocabulary": BYTES_PER_VOCABULARY_ENTRY * (facts.vocabulary or 0),
    }
    return Memory(sum(bill.values()), bill)
