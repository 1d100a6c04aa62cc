"""The layers of a model from its ``config.json``: heads, widths, which layers slide and which have no cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engines.artifact.gguf_facts import MAX_LAYERS
from engines.artifact.mlx_config import Config
from engines.artifact.mlx_tables import (
    ENCODERS,
    FULL_ATTENTION_EVERY,
    RECURRENT,
    SLIDES,
    SLIDING_EVERY,
    UNMODELLED,
)

LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_transformer_layers")
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads", "num_query_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
SLIDING = ("sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size")
PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")

_SLIDING_MARKS = ("sliding", "chunked", "local")
_WITHOUT_CACHE_MARKS = ("linear", "mamba", "conv", "recurrent", "mlp", "moe")
_ATTENDS = "*"
"""A layer with attention in ``hybrid_override_pattern``; every other letter is one without."""
_SLIDES = "L"
"""A local (sliding) layer in a pattern of letters; the global ones are ``G``."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of ``ModelFacts`` of the same names."""

    layers: int | None
    embedding_length: int | None
    heads: tuple[int, ...] | None
    kv_heads: tuple[int, ...] | None
    key_length: int | None
    value_length: int | None
    sliding_window: int | None
    sliding_pattern: tuple[bool, ...] | None
    kv_lora_rank: int | None
    shared_kv_layers: int | None
    sliding_key_length: int | None = None
    sliding_value_length: int | None = None


def shape(config: Config) -> Shape:
    """The layers as the engine builds them; raises MalformedModel for values that cannot be."""
    layers = config.whole(*LAYERS)
    hidden = config.whole(*HIDDEN)
    rank = config.count("kv_lora_rank")
    if layers is None:
        return Shape(None, hidden, None, None, None, None, None, None, rank, None)
    if layers > MAX_LAYERS:
        raise config.error(LAYERS[0], f"says {layers:,} layers")
    heads = config.per_layer(layers, *HEADS)
    width = config.count(*HEAD_DIM)
    if width is None and hidden is not None and heads and heads[0]:
        width = hidden // heads[0]
    window, pattern = _sliding(config, layers)
    kv_heads = _kv_heads(config, layers, heads)
    value = width if rank is not None else config.count("v_head_dim") or width
    key, sliding_width = width, None
    if config.count("global_head_dim") is not None:
        key = value = config.count("global_head_dim")
        sliding_width = width
    if pattern is not None and kv_heads is not None:
        wide = config.count("num_global_key_value_heads")
        if wide is not None:
            kv_heads = tuple(
                count if slides or not count else wide for count, slides in zip(kv_heads, pattern, strict=True)
            )
    return Shape(
        layers=layers,
        embedding_length=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_length=key,
        value_length=value,
        sliding_window=window,
        sliding_pattern=pattern,
        kv_lora_rank=rank,
        shared_kv_layers=config.count("num_kv_shared_layers"),
        sliding_key_length=sliding_width,
        sliding_value_length=sliding_width,
    )


def _kv_heads(config: Config, layers: int, heads: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """One number a layer, 0 for a layer without a cache; as many as heads where the file does not say."""
    if config.is_one_of(RECURRENT | ENCODERS):
        return (0,) * layers
    if any(config.value(key) is not None for key in UNMODELLED):
        return None
    found = config.per_layer(layers, *KV_HEADS)
    if found is None:
        found = (1,) * layers if config.value("multi_query") is True else heads
    if found is None:
        return None
    return tuple(count if attends else 0 for count, attends in zip(found, _attends(config, layers), strict=True))


def _attends(config: Config, layers: int) -> tuple[bool, ...]:
    """For each layer whether it has a KV cache."""
    if (kinds := _kinds(config, layers)) is not None:
        return tuple(not any(mark in kind for mark in _WITHOUT_CACHE_MARKS) for kind in kinds)
    letters = config.value("hybrid_override_pattern")
    if letters is not None:
        if not isinstance(letters, str) or len(letters) < layers:
            raise config.error("hybrid_override_pattern", f"has no letter for each of {layers:,} layers")
        return tuple(letter == _ATTENDS for letter in letters[:layers])
    if (listed := config.wholes("full_attn_idxs")) is not None:
        return tuple(layer in listed for layer in range(layers))
    if (period := config.count("attn_layer_period")) is not None:
        offset = config.whole("attn_layer_offset") or 0
        return tuple(layer % period == offset for layer in range(layers))
    default = next((FULL_ATTENTION_EVERY[kind] for kind in config.types if kind in FULL_ATTENTION_EVERY), None)
    every = config.count("full_attention_interval") or default
    return (True,) * layers if every is None else tuple((layer + 1) % every == 0 for layer in range(layers))


def _kinds(config: Config, layers: int) -> tuple[str, ...] | None:
    """What each layer is, where the file lists them; a layer that is not listed counts as full attention."""
    listed = config.texts("layer_types", "layers_block_type")
    if listed is None:
        cycle = config.texts("block_types", "_block_types")
        if not cycle:
            return None
        listed = tuple(cycle[layer % len(cycle)] for layer in range(layers))
    kinds = tuple(kind.lower() for kind in listed[:layers])
    return kinds + ("attention",) * (layers - len(kinds))


def _sliding(config: Config, layers: int) -> tuple[int | None, tuple[bool, ...] | None]:
    """The window in tokens and, for each layer, whether it slides; the pattern is None where no layer is known to."""
    if config.flag("use_sliding_window") is False:
        return None, None
    window = config.count(*SLIDING)
    if window is None:
        return None, None
    if not config.is_one_of(SLIDES):
        return window, None
    if (kinds := _kinds(config, layers)) is not None:
        pattern = tuple(any(mark in kind for mark in _SLIDING_MARKS) for kind in kinds)
        return (window, pattern) if any(pattern) else (None, None)
    every = config.value(*PATTERN)
    if isinstance(every, str):
        if not every:
            raise config.error(PATTERN[0], "is empty")
        return window, tuple(every[layer % len(every)] == _SLIDES for layer in range(layers))
    period = config.count(*PATTERN) or next((SLIDING_EVERY[kind] for kind in config.types if kind in SLIDING_EVERY), 0)
    if not period:
        return window, None
    return window, tuple(layer % period < period - 1 for layer in range(layers))
