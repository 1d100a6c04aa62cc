"""Reads an MLX model's folder: ``config.json``, the headers of its safetensors files, its tokenizer's settings.

Blocks on the disk, for milliseconds: call it from a thread. Every failure is an ``ArtifactError``. No weights are read
and nothing in the folder is run, now or later: pickled weights and models that bring their own code are refused.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from engines.artifact.errors import (
    BringsCode,
    IncompleteModel,
    MalformedModel,
    ModelMissing,
    NotAModel,
    TruncatedModel,
    UnfinishedDownload,
    UnreadableModel,
    UnsupportedModel,
)
from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.mlx_config import Config
from engines.artifact.mlx_files import read_object
from engines.artifact.mlx_folders import CONFIG, unfinished
from engines.artifact.mlx_hub import model_name
from engines.artifact.mlx_kind import kind_of, modalities_of, parameters_of, pooling_of, quantisation_of
from engines.artifact.mlx_shape import shape
from engines.artifact.mlx_tables import AFTER_PADDING, EMBEDS
from engines.artifact.mlx_tokenizer import (
    check_tokenizer,
    limited,
    read_template,
    read_tokenizer_config,
    tokenizer_name,
)
from engines.artifact.mlx_weights import Weights, read_weights

__all__ = ["Contents", "facts_from", "known_to_engine", "read_mlx"]

WINDOW = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_context_length",
    "model_max_length",
)
"""Names of the trained window, the usual one first."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
ADAPTER = "adapter_config.json"
SENTENCE_TRANSFORMER = frozenset({"modules.json", "config_sentence_transformers.json"})
"""Either marks a model for embeddings."""
POOLING = "1_Pooling/config.json"
PADDING = 1
"""The padding token of the models of AFTER_PADDING, where the file does not name it (mlx-vlm's own default)."""
ENGINE = "mlx_vlm"

Known = Callable[[str], bool | None]
"""Whether the engine runs a type of model; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read from a folder."""

    folder: Path
    config: Mapping[str, Any]
    weights: Weights
    tokenizer: Mapping[str, Any]
    template: str | None = None
    sentence_transformer: bool = False
    pooling: Mapping[str, Any] | None = None


@lru_cache(maxsize=1)
def _engines_models() -> frozenset[str] | None:
    """The modules of the installed engine, without importing it; None where they cannot be listed."""
    found = importlib.util.find_spec(ENGINE)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        try:
            return frozenset(path.name for path in Path(place, "models").iterdir() if path.is_dir())
        except OSError:  # inside of a bundle: the load itself will tell
            return None
    return None


def known_to_engine(model_type: str) -> bool | None:
    """Whether the installed engine runs this type of model; None where that cannot be told."""
    models = _engines_models()
    return None if models is None else model_type in models


def read_mlx(folder: Path) -> ModelFacts:
    """The facts of the model in ``folder``; ``files`` are its weights, which lie directly in it.

    Raises ModelMissing, NotAModel, UnreadableModel, IncompleteModel, UnfinishedDownload, TruncatedModel,
    MalformedModel, UnsupportedModel, PickledWeights, BringsCode.
    """
    names = _names(folder)
    try:
        contents = _read(folder, names)
    except (IncompleteModel, TruncatedModel) as error:
        part = unfinished(folder, names)
        if part is None:
            raise
        raise UnfinishedDownload(folder, f"{error.detail}, and a download left {part}") from error
    return facts_from(contents)


def facts_from(contents: Contents, known: Known = known_to_engine) -> ModelFacts:
    """The facts in what was read. Pure, with a ``known`` that is; raises as ``read_mlx``."""
    folder = contents.folder
    config = Config(folder, contents.config)
    _check_runs(config, contents.config)
    _check_known(config, known)
    kind = kind_of(config, model_name(folder), sentence_transformer=contents.sentence_transformer)
    layers = shape(config)
    return ModelFacts(
        files=contents.weights.files,
        weights_bytes=contents.weights.size,
        format="mlx",
        architecture=config.model_type,
        name=None,
        quantisation=quantisation_of(config, contents.weights),
        parameters=parameters_of(config, contents.weights),
        trained_window=limited(_window(config), contents.tokenizer, enforced=kind is not ModelKind.CHAT),
        layers=layers.layers,
        embedding_length=layers.embedding_length,
        heads=layers.heads,
        kv_heads=layers.kv_heads,
        key_length=layers.key_length,
        value_length=layers.value_length,
        vocabulary=config.count("vocab_size", "padded_vocab_size"),
        sliding_window=layers.sliding_window,
        sliding_pattern=layers.sliding_pattern,
        kv_lora_rank=layers.kv_lora_rank,
        shared_kv_layers=layers.shared_kv_layers,
        experts=config.largest(*EXPERTS),
        experts_used=config.largest(*EXPERTS_USED),
        alibi=config.value("alibi") is True,
        tokenizer=tokenizer_name(contents.tokenizer),
        chat_template=contents.template,
        kind=kind,
        pooling=pooling_of(config, kind, contents.pooling),
        projector=None,
        projector_bytes=0,
        modalities=modalities_of(config),
        sliding_key_length=layers.sliding_key_length,
        sliding_value_length=layers.sliding_value_length,
    )


def _read(folder: Path, names: tuple[str, ...]) -> Contents:
    config = read_object(folder, CONFIG) if CONFIG in names else None
    if config is None:
        if ADAPTER in names:
            raise UnsupportedModel(folder, "it is an adapter (LoRA), which needs its base model")
        raise IncompleteModel(folder, f"{CONFIG} is missing")
    weights = read_weights(folder, names)
    check_tokenizer(folder, names)
    tokenizer = read_tokenizer_config(folder)
    return Contents(
        folder=folder,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        template=read_template(folder, tokenizer),
        sentence_transformer=not SENTENCE_TRANSFORMER.isdisjoint(names),
        pooling=read_object(folder, POOLING),
    )


def _window(config: Config) -> int | None:
    """Tokens that the model has positions for."""
    window = config.count(*WINDOW)
    if window is None or not config.is_one_of(AFTER_PADDING):
        return window
    padding = config.whole("pad_token_id")
    return max(1, window - (PADDING if padding is None else padding) - 1)


def _check_runs(config: Config, document: Mapping[str, Any]) -> None:
    if not config.model_type:
        raise MalformedModel(config.folder, f"its {CONFIG} does not say what model it is (model_type)")
    if document.get("model_file"):
        raise BringsCode(config.folder, f"its {CONFIG} names a program of its own (model_file)")


def _check_known(config: Config, known: Known) -> None:
    modules = {config.types[0], EMBEDS.get(config.types[0], config.types[0])}
    if all(known(module) is False for module in modules):
        if config.value("auto_map") is not None:
            raise BringsCode(config.folder, f"the engine does not know {config.model_type}, only the model's own code")
        raise UnsupportedModel(config.folder, f"the engine does not know the architecture {config.model_type}")


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208
    except FileNotFoundError as error:
        raise ModelMissing(folder, f"{folder} does not exist") from error
    except NotADirectoryError as error:
        raise NotAModel(folder, "it is a file, and an MLX model is a folder") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UnreadableModel(folder, f"the folder cannot be listed ({reason})") from error
