"""From the headers of a model's files to its facts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.artifact import architectures
from engines.artifact.errors import MalformedModel, UnsupportedModel
from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.ggml import (
    FILE_TYPE_GUESSED,
    FILE_TYPE_OF_TENSORS,
    FILE_TYPES,
    POOLING_TYPES,
    TENSOR_TYPES,
)
from engines.artifact.gguf_header import Header, TensorInfo
from engines.artifact.matrices import matrices
from engines.artifact.metadata import Metadata

MAX_LAYERS = 4096
"""Ours: eight times what llama.cpp allows (LLAMA_MAX_LAYERS), so that a hostile count costs nothing."""
PROJECTOR_ARCHITECTURE = "clip"
NOT_MODELS = {
    "mmproj": "it is the projector of another model",
    "adapter": "it is an adapter (LoRA), which needs its base model",
    "imatrix": "it holds statistics for quantising, not a model",
}
"""``general.type`` of what lies in GGUF files beside models."""
EMBEDDING_POOLINGS = frozenset({"mean", "cls", "last"})
TOKEN_EMBEDDING = "token_embd.weight"  # noqa: S105
OUTPUT = "output.weight"
EXPERTS = "_exps."
"""Part of the names of tensors that hold the experts of a layer."""


@dataclass(frozen=True, slots=True)
class Projector:
    """What a projector's header says: what it understands, and the width it was made for where it says so."""

    path: Path
    size: int
    modalities: tuple[str, ...]
    width: int | None
    """``embedding_length`` of its model; old ones write another number or none."""


def projector_from(header: Header) -> Projector:
    """Read the header of a projector; raises UnsupportedModel where it is none."""
    metadata = Metadata(header)
    if metadata.architecture != PROJECTOR_ARCHITECTURE:
        raise UnsupportedModel(header.path, "it has the name of a projector and is none")
    encoders = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
    return Projector(
        header.path,
        header.file_size,
        tuple(name for name, key in encoders.items() if metadata.flag(key)),
        metadata.whole("clip.vision.projection_dim") or metadata.whole("clip.audio.projection_dim") or None,
    )


def facts_from(headers: Sequence[Header]) -> ModelFacts:
    """The facts of a model whose files have these headers, in the order of the parts; no projector.

    Raises UnsupportedModel for files that are no model or not all of it, MalformedModel where the headers contradict
    themselves or each other.
    """
    first = headers[0]
    metadata = Metadata(first)
    tensors = [tensor for header in headers for tensor in header.tensors]
    _check_is_model(first.path, metadata, tensors)
    _check_parts(headers, len(tensors))
    layers, heads, kv_heads = _layers(metadata)
    embedding = metadata.whole(".embedding_length")
    width = embedding // heads[0] if embedding is not None and heads and heads[0] else None
    key_length = metadata.whole(".attention.key_length")
    value_length = metadata.whole(".attention.value_length")
    window, pattern = architectures.sliding(
        metadata.architecture,
        layers or 0,
        metadata.whole(".attention.sliding_window"),
        metadata.pattern(".attention.sliding_window_pattern"),
    )
    pooling = _pooling(metadata)
    alibi = (metadata.number(".attention.max_alibi_bias") or 0) > 0
    embedded = next((tensor for tensor in tensors if tensor.name == TOKEN_EMBEDDING), None)
    return ModelFacts(
        files=tuple(header.path for header in headers),
        weights_bytes=sum(header.file_size for header in headers),
        format="gguf",
        architecture=metadata.architecture,
        name=metadata.text("general.name"),
        quantisation=_quantisation(metadata, tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        trained_window=metadata.whole(".context_length"),
        layers=layers,
        embedding_length=embedding,
        heads=heads,
        kv_heads=kv_heads,
        key_length=width if key_length is None else key_length,
        value_length=width if value_length is None else value_length,
        vocabulary=metadata.count("tokenizer.ggml.tokens") or metadata.whole(".vocab_size"),
        sliding_window=window,
        sliding_pattern=pattern if layers is not None else None,
        kv_lora_rank=metadata.whole(".attention.kv_lora_rank") or None,
        shared_kv_layers=_shared_kv_layers(metadata, layers),
        experts=metadata.whole(".expert_count") or None,
        experts_used=metadata.largest(".expert_used_count") or None,
        alibi=alibi or architectures.has_alibi(metadata.architecture, layers),
        tokenizer=metadata.text("tokenizer.ggml.model"),
        chat_template=metadata.text("tokenizer.chat_template"),
        kind=_kind(metadata.architecture, pooling),
        pooling=pooling,
        projector=None,
        projector_bytes=0,
        modalities=(),
        sliding_key_length=metadata.whole(".attention.key_length_swa"),
        sliding_value_length=metadata.whole(".attention.value_length_swa"),
        token_embedding_bytes=embedded.size if embedded else None,
        expert_bytes=sum(tensor.size or 0 for tensor in tensors if EXPERTS in tensor.name),
        tied_output=all(tensor.name != OUTPUT for tensor in tensors),
        matrices=matrices(tensors),
    )


def _check_is_model(path: Path, metadata: Metadata, tensors: Sequence[TensorInfo]) -> None:
    kind = metadata.text("general.type")
    if metadata.architecture == PROJECTOR_ARCHITECTURE:
        kind = "mmproj"
    if kind in NOT_MODELS:
        raise UnsupportedModel(path, NOT_MODELS[kind])
    if not metadata.architecture:
        raise MalformedModel(path, "it does not say its architecture")
    if not tensors:
        raise UnsupportedModel(path, "it holds a vocabulary and no weights")


def _check_parts(headers: Sequence[Header], tensors: int) -> None:
    """The parts of a split know their number: each must be what its name says, and none may be missing."""
    for number, header in enumerate(headers):
        metadata = Metadata(header)
        count = metadata.whole("split.count") or 1
        index = metadata.whole("split.no") or 0
        if count > len(headers):
            raise UnsupportedModel(
                header.path,
                f"it is part {index + 1} of {count} of a split model, and the others are only found when its name"
                f" ends in -{index + 1:05}-of-{count:05}.gguf",
            )
        if (count, index) != (len(headers), number):
            raise MalformedModel(header.path, f"it says that it is part {index + 1} of {count}")
    expected = Metadata(headers[0]).whole("split.tensors.count")
    if expected is not None and expected != tensors:
        raise MalformedModel(headers[0].path, f"its parts hold {tensors:,} tensors, and should hold {expected:,}")


def _layers(metadata: Metadata) -> tuple[int | None, tuple[int, ...] | None, tuple[int, ...] | None]:
    """How many layers answer, and their heads and KV heads.

    Layers that only predict further tokens stand at the end of the list and are left out, as llama.cpp gives them no
    cache in a normal context.
    """
    declared = metadata.whole(".block_count")
    if declared is None:
        return None, None, None
    if declared > MAX_LAYERS:
        raise metadata.error(".block_count", f"says {declared:,} layers")
    heads = metadata.per_layer(".attention.head_count", declared)
    kv_heads = metadata.per_layer(".attention.head_count_kv", declared) or heads
    extra = metadata.whole(".nextn_predict_layers") or 0
    layers = declared - extra if extra < declared else declared
    recurrent = _recurrent(metadata, declared, layers)
    if kv_heads is None and layers and all(recurrent):
        kv_heads = (0,) * layers
    if kv_heads is not None:
        kv_heads = tuple(0 if skip else count for skip, count in zip(recurrent, kv_heads, strict=False))
    return layers, heads[:layers] if heads is not None else None, kv_heads


def _recurrent(metadata: Metadata, declared: int, layers: int) -> tuple[bool, ...]:
    listed = metadata.pattern(".attention.recurrent_layers")
    if isinstance(listed, tuple) and len(listed) == declared:
        return tuple(bool(value) for value in listed[:layers])
    return architectures.recurrent(metadata.architecture, layers, metadata.whole(".full_attention_interval"))


def _shared_kv_layers(metadata: Metadata, layers: int | None) -> int | None:
    shared = metadata.whole(".attention.shared_kv_layers")
    own = architectures.KV_LAYERS_FROM_START.get(metadata.architecture)
    if shared is None and own is not None and layers is not None:
        return max(0, layers - own)
    return shared


def _pooling(metadata: Metadata) -> str | None:
    code = metadata.whole(".pooling_type")
    return None if code is None else POOLING_TYPES.get(code, str(code))


def _kind(architecture: str, pooling: str | None) -> ModelKind:
    if pooling == "rank":
        return ModelKind.RERANK
    if pooling in EMBEDDING_POOLINGS or architecture in architectures.ENCODERS:
        return ModelKind.EMBEDDING
    return ModelKind.CHAT


def _quantisation(metadata: Metadata, tensors: Sequence[TensorInfo]) -> str | None:
    """What the header says, else the type that most of the weights have; norms and the like do not count."""
    code = metadata.whole("general.file_type")
    if code is not None and code & ~FILE_TYPE_GUESSED in FILE_TYPES:
        return FILE_TYPES[code & ~FILE_TYPE_GUESSED]
    weights: Counter[int] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.type in TENSOR_TYPES:
            weights[tensor.type] += tensor.elements
    if not weights:
        return None
    name = TENSOR_TYPES[weights.most_common(1)[0][0]].name
    return FILE_TYPE_OF_TENSORS.get(name, name)
