"""The copy that a llama-server on the CPU makes of a model's weights, in an order its processor reads faster. Pure.

The copy is anonymous memory; the pages of the file that were its source go cold. Source: llama.cpp b11434
``ggml/src/ggml-cpu/repack.cpp`` (``ggml_repack_get_optimal_repack_type``) and ``ggml/src/ggml-cpu/amx``. Measured:
exact for gemma-270m Q4_K_M with AMX (213.91 MiB) and without (12.66 MiB).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from engines.artifact.facts import ModelFacts
from engines.artifact.ggml import TENSOR_TYPES
from engines.artifact.matrices import Matrices
from engines.memory.processor import AMX, AVX2, AVX512, DOTPROD

AMX_GROWTH = {
    "F16": Fraction(1),
    "Q4_0": Fraction(1),
    "Q4_1": Fraction(1),
    "Q8_0": Fraction(38, 34),
    "Q4_K": Fraction(148, 144),
    "Q5_K": Fraction(180, 176),
    "Q6_K": Fraction(1),
    "IQ4_XS": Fraction(138, 136),
}
"""What AMX copies, and how much larger a block becomes (bytes): its copy may be larger than the weights."""
COPIED: Mapping[str, frozenset[str]] = {
    AVX2: frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    AVX512: frozenset({"Q2_K"}),
    DOTPROD: frozenset({"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"}),
}
"""What the other kernels copy, by the feature of the processor that they need."""
TYPES_OF_MIXES = {
    "Q2_K": ("Q2_K", "Q3_K", "Q4_K"),
    "Q3_K": ("Q3_K", "Q4_K", "Q5_K"),
    "Q4_K": ("Q4_K", "Q6_K"),
    "Q5_K": ("Q5_K", "Q6_K"),
}
"""File types that keep some tensors in better types (llama-quant.cpp)."""


def copied_bytes(found: Matrices, features: Iterable[str]) -> int:
    """Size of the copy on a processor with these features."""
    has = frozenset(features)
    return sum(int(size * _growth(name, has)) for name, size in found.plain.items()) + sum(
        int(size * _growth(name, has - {AMX})) for name, size in found.experts.items()
    )


def expected(facts: ModelFacts, features: Iterable[str]) -> int:
    """The copy of this model's weights: counted where its tensors and the processor are known, else at most."""
    has = frozenset(features)
    return copied_bytes(facts.matrices, has) if facts.matrices is not None and has else at_most(facts, has)


def at_most(facts: ModelFacts, features: Iterable[str]) -> int:
    """The largest copy that the file type allows here: 0 where nothing of it is copied, else one of all weights.

    For a machine that does not say what its processor can (no ``features``), one copy.
    """
    has = frozenset(features)
    weights = facts.weights_bytes - (0 if facts.tied_output else facts.token_embedding_bytes or 0)
    types = _types(facts.quantisation)
    if not has or types is None:
        return weights
    return int(weights * max(_growth(name, has) for name in types))


def _growth(name: str, features: frozenset[str]) -> Fraction:
    """How much of a type is copied: 0 for nothing, 1 for its size."""
    if AMX in features and name in AMX_GROWTH:
        return AMX_GROWTH[name]
    return Fraction(any(name in COPIED.get(feature, ()) for feature in features))


def _types(quantisation: str | None) -> tuple[str, ...] | None:
    if quantisation is None:
        return None
    names = {kind.name for kind in TENSOR_TYPES.values()}
    name = quantisation if quantisation in names else quantisation.rpartition("_")[0]
    return TYPES_OF_MIXES.get(name, (name,))
