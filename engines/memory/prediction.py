"""What a llama-server on the CPU is predicted to hold right after its load. Pure.

Measured on b10434 and b11434 (anonymous memory at load, one slot, f16 cache): KV + the copy of the weights + 8 MiB +
48 B a cell + the vocabulary. The compute buffer is not among it: only long prompts touch it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engines.artifact.facts import ModelFacts
from engines.memory.bill import MIB, Budget
from engines.memory.cost import batch, cells, kv_bytes
from engines.plan import Memory

SERVER_BYTES = 8 * MIB
BYTES_PER_CELL = 48
VOCABULARY_BYTES: Mapping[str | None, int] = {"llama": 180}
"""For each entry of the vocabulary, by tokenizer: SentencePiece 180 (45 MiB for gemma's 262,144, measured)."""
VOCABULARY_BYTES_WITH_MERGES = 292
"""As above, for the others: BPE with its merges (42.4 MiB for 152,288, measured)."""


def predict(facts: ModelFacts, window: int | None, copied: int, budget: Budget | None = None) -> Memory:
    """The bill of one child, term by term; ``copied`` is the server's copy of the weights in bytes.

    A projector is read into anonymous memory as it is.
    """
    ubatch = batch(facts, window) if window is not None else 0
    kv = kv_bytes(facts, window, ubatch=ubatch) if window is not None else None
    if kv is None or window is None:
        return Memory(None, budget=budget)
    entry = VOCABULARY_BYTES.get(facts.tokenizer, VOCABULARY_BYTES_WITH_MERGES)
    bill = {
        "kv": kv,
        "repacked": copied,
        "projector": facts.projector_bytes,
        "server": SERVER_BYTES,
        "cells": BYTES_PER_CELL * sum(cells(facts, window, ubatch=ubatch)),
        "vocabulary": entry * (facts.vocabulary or 0),
    }
    return Memory(sum(bill.values()), bill, budget)
