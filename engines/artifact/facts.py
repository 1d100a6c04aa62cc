"""What a model file says about itself, as one value that every engine reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engines.artifact.matrices import Matrices


class ModelKind(StrEnum):
    """What a model is for; it decides which routes and which server flags apply."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The header of one model, with its family of files.

    Sizes are bytes, windows are tokens. A value that the header does not carry is ``None``: never guessed.
    """

    files: tuple[Path, ...]
    """Every part of the model in order; the first is the one a server is given."""
    weights_bytes: int
    """Size of all parts on disk."""
    format: str
    """``gguf`` or ``mlx``."""
    architecture: str
    name: str | None
    quantisation: str | None
    """As llama.cpp names the file type: ``Q4_K_M``, ``F16`` ..."""
    parameters: int | None
    """Sum of the elements of all tensors, or what the header declares."""
    trained_window: int | None
    layers: int | None
    embedding_length: int | None
    heads: tuple[int, ...] | None
    """Attention heads, one number a layer."""
    kv_heads: tuple[int, ...] | None
    """KV heads, one number a layer; 0 for a recurrent layer."""
    key_length: int | None
    value_length: int | None
    vocabulary: int | None
    sliding_window: int | None
    sliding_pattern: tuple[bool, ...] | None
    """One entry a layer, True where the layer slides; None where the header does not say."""
    kv_lora_rank: int | None
    """Set for MLA models: the KV formula does not apply to them."""
    shared_kv_layers: int | None
    experts: int | None
    experts_used: int | None
    alibi: bool
    """The model biases attention by distance (``max_alibi_bias`` > 0)."""
    tokenizer: str | None
    chat_template: str | None
    kind: ModelKind
    pooling: str | None
    """Pooling of an embedding model: ``mean``, ``cls``, ``last``, ``rank`` ... """
    projector: Path | None
    """The multimodal projector (mmproj) that belongs to the model."""
    projector_bytes: int
    modalities: tuple[str, ...]
    """What the projector understands besides text: ``image``, ``audio``."""
    sliding_key_length: int | None = None
    """Key length of the sliding layers where it differs from ``key_length``."""
    sliding_value_length: int | None = None
    """Value length of the sliding layers where it differs from ``value_length``."""
    token_embedding_bytes: int | None = None
    """Size of ``token_embd.weight``, which stays in RAM on a GPU load."""
    expert_bytes: int = 0
    """Size of the tensors of mixture-of-experts layers that hold the experts."""
    tied_output: bool = False
    """There is no ``output.weight``: the token embedding serves as output too."""
    matrices: Matrices | None = None
    """The matrices by type; None where the tensors were not looked at."""
