"""What a model's configuration says that it is for, what it understands, how it is quantised. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from engines.artifact.errors import UnsupportedModel
from engines.artifact.facts import ModelKind
from engines.artifact.mlx_config import Config
from engines.artifact.mlx_tables import (
    CLASSIFIERS,
    EMBEDDERS,
    EMBEDS,
    FOREIGN_QUANTISATION,
    LAST_TOKEN,
    RERANKS,
)
from engines.artifact.mlx_weights import Weights

IMAGE_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "vision_encoder", "img_processor", "visual")
AUDIO_KEYS = ("audio_config", "audio_processor", "sound_config")
CLASSIFIER = "ForSequenceClassification"
"""The end of an architecture that scores instead of writing."""
HEADLESS = "Model"
"""The end of an architecture without an output for words: ``Gemma3TextModel``, ``Qwen3Model``."""
POOLINGS: Mapping[str, str] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
"""Keys of ``1_Pooling/config.json`` (sentence-transformers)."""
PACKED = (".qweight", ".weight_packed", ".weight_scale_2")
"""Ends of names of matrices whose number of weights their shape does not tell."""
FLOATS = frozenset({"BF16", "F16", "F32", "F64"})

EMBEDDING_WORD = "embed"
RERANK_WORD = "rerank"
"""Parts of the names of models that nothing else tells from a chat model."""


def kind_of(config: Config, name: str, *, sentence_transformer: bool) -> ModelKind:
    """What the model is for. ``name`` is the folder's or the repository's.

    Embedding and rerank models of the Qwen3 family have the very configuration of a chat model, and conversions leave
    out the files of sentence-transformers: then the name decides.
    """
    architectures = config.texts("architectures") or ()
    if config.is_one_of(CLASSIFIERS) and any(one.endswith(CLASSIFIER) for one in architectures):
        return ModelKind.RERANK
    if config.is_one_of(RERANKS) and RERANK_WORD in name.lower():
        return ModelKind.RERANK
    if config.is_one_of(EMBEDDERS) or sentence_transformer:
        return ModelKind.EMBEDDING
    headless = any(one.endswith(HEADLESS) for one in architectures)
    if config.is_one_of(frozenset(EMBEDS)) and (headless or EMBEDDING_WORD in name.lower()):
        return ModelKind.EMBEDDING
    return ModelKind.CHAT


def pooling_of(config: Config, kind: ModelKind, declared: Mapping[str, Any] | None) -> str | None:
    """The pooling of an embedding model, from its own file or its type."""
    if kind is ModelKind.CHAT:
        return None
    if kind is ModelKind.RERANK:
        return "rank"
    found = next((name for key, name in POOLINGS.items() if (declared or {}).get(key) is True), None)
    return "last" if found is None and config.is_one_of(LAST_TOKEN) else found


def modalities_of(config: Config) -> tuple[str, ...]:
    """What it understands besides text."""
    encoders = {"image": IMAGE_KEYS, "audio": AUDIO_KEYS}
    return tuple(name for name, keys in encoders.items() if any(config.value(key) for key in keys))


def quantisation_of(config: Config, weights: Weights) -> str | None:
    """As the field calls it: ``4bit``, ``mxfp4`` ...; without a quantisation the type of most weights: ``BF16``.

    Raises UnsupportedModel for the formats of other programs.
    """
    own = config.table("quantization")
    foreign = config.table("quantization_config") or {}
    table = own or foreign
    method = foreign.get("quant_method")
    if own is None and isinstance(method, str) and method.lower() in FOREIGN_QUANTISATION:
        raise UnsupportedModel(config.folder, f"it is quantised with {method}, which the engine does not read")
    mode, bits = table.get("mode"), table.get("bits")
    if isinstance(mode, str) and mode != "affine":
        return mode.lower()
    if type(bits) is int and 0 < bits <= 32:
        return f"{bits}bit"
    if isinstance(method, str):
        return method.lower()
    types: Counter[str] = Counter()
    for tensor in weights.tensors:
        if len(tensor.shape) > 1:
            types[tensor.dtype] += tensor.elements
    return types.most_common(1)[0][0] if types else None


def parameters_of(config: Config, weights: Weights) -> int | None:
    """How many weights the model has: what the index declares, else the sum of its tensors.

    A quantised matrix counts as many as its scales stand for: one each ``group_size`` weights.
    """
    if weights.parameters is not None:
        return weights.parameters
    if any(tensor.name.endswith(PACKED) for tensor in weights.tensors):
        return None
    quantisation = config.table("quantization", "quantization_config") or {}
    scaled = {tensor.name.removesuffix(".scales") for tensor in weights.tensors if tensor.name.endswith(".scales")}
    total = 0
    for tensor in weights.tensors:
        matrix, _, part = tensor.name.rpartition(".")
        if matrix not in scaled:
            total += tensor.elements
        elif part == "scales":
            group = _group(quantisation, matrix)
            if group is None:
                return None
            total += math.prod(tensor.shape) * group
        elif part == "bias":
            total += tensor.elements
    return total


def _group(quantisation: Mapping[str, Any], matrix: str) -> int | None:
    own = quantisation.get(matrix)
    value = own.get("group_size") if isinstance(own, dict) else quantisation.get("group_size")
    return value if type(value) is int and 0 < value <= 1 << 20 else None
