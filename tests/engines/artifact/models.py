"""Over fifty shapes of real models: what their headers say, and what must come of it.

The bytes per token are worked out by hand from the models' own configurations, not by our formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.artifact.facts import ModelKind
from tests.fixtures.headers import BOOL, INT32, UINT32, Entry, Listed, Tensor

T, F = True, False
TOKENS = 262_144


@dataclass(frozen=True)
class Model:
    """One shape. ``kv`` is bytes of KV cache per token, ``facts`` what else must be read from the header."""

    name: str
    metadata: Mapping[str, Entry]
    kv: int | None
    facts: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """A few tensors, as the header lists them."""
        return Tensor("token_embd.weight", (256, 32)), Tensor("blk.0.ffn_up.weight", (256, 8)), Tensor("output.weight")


def kv_list(*numbers: int) -> Listed:
    return Listed(INT32, numbers)


def shape(
    name: str,
    architecture: str,
    layers: int,
    embedding: int,
    heads: int | Listed | None,
    kv_heads: int | Listed | None,
    kv: int | None,
    facts: dict[str, Any] | None = None,
    *,
    key: int | None = None,
    keys: Mapping[str, Entry] | None = None,
) -> Model:
    """``keys`` are further keys of the architecture, ``key`` is the length of keys and values."""
    own: dict[str, Entry] = {"context_length": 4096 + layers, "embedding_length": embedding, "block_count": layers}
    if heads is not None:
        own["attention.head_count"] = heads
    if kv_heads is not None:
        own["attention.head_count_kv"] = kv_heads
    if key is not None:
        own |= {"attention.key_length": key, "attention.value_length": key}
    own |= keys or {}
    metadata: dict[str, Entry] = {"general.architecture": architecture, "general.name": name, "general.file_type": 15}
    metadata |= {f"{architecture}.{suffix}": value for suffix, value in own.items()}
    metadata["tokenizer.ggml.model"] = "gpt2"
    expected = {"architecture": architecture, "name": name, "trained_window": 4096 + layers, "layers": layers}
    return Model(name, metadata, kv, expected | {"embedding_length": embedding, "vocabulary": TOKENS} | (facts or {}))


WINDOW = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
EMBEDDING = {"kind": ModelKind.EMBEDDING}
RERANK = {"kind": ModelKind.RERANK, "pooling": "rank"}
CHAT = {"kind": ModelKind.CHAT, "pooling": None, "alibi": False, "sliding_window": None, "sliding_pattern": None}


def slides(window: int, *pattern: bool) -> dict[str, Any]:
    return {"sliding_window": window, "sliding_pattern": pattern}


MODELS = [
    shape("Qwen3-0.6B", "qwen3", 28, 1024, 16, 8, 114_688, CHAT | {"kv_heads": (8,) * 28, "key_length": 128}, key=128),
    shape("Llama-3.2-1B", "llama", 16, 2048, 32, 8, 32_768, CHAT | {"heads": (32,) * 16, "key_length": 64}),
    shape("Llama-3.2-3B", "llama", 28, 3072, 24, 8, 114_688, {"value_length": 128}),
    shape("Llama-3.1-8B", "llama", 32, 4096, 32, 8, 131_072),
    shape("Llama-3.1-70B", "llama", 80, 8192, 64, 8, 327_680),
    shape("Llama-2-7B", "llama", 32, 4096, 32, None, 524_288, {"kv_heads": (32,) * 32}),
    shape("Mistral-7B", "llama", 32, 4096, 32, 8, 131_072),
    shape("Qwen2.5-0.5B", "qwen2", 24, 896, 14, 2, 12_288),
    shape("Qwen2.5-7B", "qwen2", 28, 3584, 28, 4, 57_344),
    shape("Qwen2.5-32B", "qwen2", 64, 5120, 40, 8, 262_144),
    shape("Qwen3-4B", "qwen3", 36, 2560, 32, 8, 147_456, key=128),
    shape(
        "Qwen3-30B-A3B",
        "qwen3moe",
        48,
        2048,
        32,
        4,
        98_304,
        {"experts": 128, "experts_used": 8},
        key=128,
        keys={"expert_count": 128, "expert_used_count": 8},
    ),
    shape("Qwen3-Next-80B", "qwen3next", 48, 2048, 16, 2, 24_576, {"kv_heads": (0, 0, 0, 2) * 12}, key=256),
    shape("Qwen3.5-4B", "qwen35", 32, 2560, 16, 4, 32_768, key=256, keys={"full_attention_interval": 4}),
    shape(
        "Qwen3.5-35B with a layer that predicts further tokens",
        "qwen35moe",
        41,
        2048,
        16,
        2,
        20_480,
        {"layers": 40, "kv_heads": (0, 0, 0, 2) * 10},
        key=256,
        keys={"nextn_predict_layers": 1},
    ),
    shape(
        "listed recurrent layers",
        "qwen35",
        4,
        2560,
        16,
        4,
        8192,
        {"kv_heads": (4, 0, 4, 0)},
        key=256,
        keys={"attention.recurrent_layers": Listed(BOOL, (F, T, F, T))},
    ),
    shape("Gemma-2-2B", "gemma2", 26, 2304, 8, 4, 106_496, slides(1000, *(T, F) * 13), key=256, keys={WINDOW: 1000}),
    shape("Gemma-2 without a window", "gemma2", 2, 2304, 8, 4, 8192, slides(4096, T, F), key=256),
    shape(
        "Gemma-3-270m",
        "gemma3",
        18,
        640,
        4,
        1,
        18_432,
        slides(512, *(T, T, T, T, T, F) * 3),
        key=256,
        keys={WINDOW: 512},
    ),
    shape("Gemma-3-1B", "gemma3", 26, 1152, 4, 1, 26_624, key=256, keys={WINDOW: 512}),
    shape("Gemma-3-4B", "gemma3", 34, 2560, 8, 4, 139_264, key=256, keys={WINDOW: 1024}),
    shape(
        "Gemma-3 with a period",
        "gemma3",
        6,
        640,
        4,
        1,
        6144,
        slides(512, T, T, F, T, T, F),
        key=256,
        keys={WINDOW: 512, PATTERN: 3},
    ),
    shape(
        "Gemma-3n-E4B",
        "gemma3n",
        35,
        2048,
        8,
        2,
        40_960,
        {"shared_kv_layers": 15} | slides(512, *(T, T, T, T, F) * 7),
        key=256,
        keys={WINDOW: 512, "attention.shared_kv_layers": 15},
    ),
    shape("Gemma-3n-E2B", "gemma3n", 30, 2048, 8, 2, 40_960, {"shared_kv_layers": 10}, key=256, keys={WINDOW: 512}),
    shape(
        "Gemma-4",
        "gemma4",
        6,
        2560,
        8,
        kv_list(8, 8, 8, 8, 8, 2),
        45_056,
        slides(1024, T, T, T, T, T, F) | {"sliding_key_length": 256, "key_length": 512},
        key=512,
        keys={
            WINDOW: 1024,
            PATTERN: Listed(BOOL, (T, T, T, T, T, F)),
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
        },
    ),
    shape("Phi-3-mini", "phi3", 32, 3072, 32, 32, 393_216, {"sliding_window": None}, keys={WINDOW: 2047}),
    shape("Phi-4", "phi3", 40, 5120, 40, 10, 204_800),
    shape("gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 49_152, slides(128, *(T, F) * 12), key=64, keys={WINDOW: 128}),
    shape("Llama-4-Scout", "llama4", 48, 5120, 40, 8, 196_608, slides(8192, *(T, T, T, F) * 12)),
    shape("Llama-4 that does not slide", "llama4", 4, 5120, 40, 8, 16_384, {"sliding_pattern": None}, keys={WINDOW: 0}),
    shape("Command-R7B", "cohere2", 32, 4096, 32, 8, 131_072, slides(4096, *(T, T, T, F) * 8), keys={WINDOW: 4096}),
    shape("Command-A-MoE", "cohere2moe", 4, 4096, 32, 8, 16_384, slides(512, F, T, T, T), keys={WINDOW: 512}),
    shape("OLMo-3-7B", "olmo2", 32, 4096, 32, 32, 524_288, slides(4096, *(T, T, T, F) * 8), keys={WINDOW: 4096}),
    shape("EXAONE-4-32B", "exaone4", 64, 5120, 40, 8, 262_144, slides(4096, *(T, T, T, F) * 16)),
    shape("EXAONE-4-1.2B", "exaone4", 30, 2048, 32, 8, 61_440, {"sliding_window": None}, keys={WINDOW: 4096}),
    shape("SmallThinker", "smallthinker", 4, 1536, 12, 2, 4096, slides(4096, F, T, T, T), keys={WINDOW: 9}),
    shape(
        "slides, and does not say where",
        "starcoder2",
        30,
        3072,
        24,
        2,
        30_720,
        slides(4096) | {"sliding_pattern": None},
        keys={WINDOW: 4096},
    ),
    shape("Granite-4-H", "granitehybrid", 4, 1536, 12, kv_list(0, 0, 4, 0), 2048, {"kv_heads": (0, 0, 4, 0)}),
    shape("LFM2-1.2B", "lfm2", 16, 2048, 32, kv_list(*(0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0)), 12_288),
    shape("Falcon-H1", "falcon-h1", 36, 1024, 8, 2, 36_864, key=128),
    shape("Mamba-2.8B", "mamba", 64, 2560, 0, 0, 0, {"kv_heads": (0,) * 64}),
    shape("RWKV-7", "rwkv7", 24, 2048, None, None, 0, {"kv_heads": (0,) * 24, "key_length": None}),
    shape(
        "DeepSeek-V2-Lite",
        "deepseek2",
        27,
        2048,
        16,
        16,
        None,
        {"kv_lora_rank": 512},
        keys={"attention.kv_lora_rank": 512},
    ),
    shape(
        "GLM-4.5-Air", "glm4moe", 47, 4096, 96, 8, 188_416, {"layers": 46}, key=128, keys={"nextn_predict_layers": 1}
    ),
    shape(
        "Nemotron-51B", "deci", 4, 8192, kv_list(64, 0, 64, 64), kv_list(8, 0, 4, 2), 7168, {"heads": (64, 0, 64, 64)}
    ),
    shape("BLOOM-7B", "bloom", 30, 4096, 32, 32, 491_520, {"alibi": True}),
    shape("MPT-7B", "mpt", 32, 4096, 32, 32, 524_288, {"alibi": True}, keys={"attention.max_alibi_bias": 8.0}),
    shape("bge-small", "bert", 12, 384, 12, 12, 0, EMBEDDING | {"pooling": "cls"}, keys={"pooling_type": 2}),
    shape("EmbeddingGemma", "gemma-embedding", 24, 768, 3, 1, 0, EMBEDDING, key=256, keys={WINDOW: 512}),
    shape(
        "Qwen3-Embedding",
        "qwen3",
        28,
        1024,
        16,
        8,
        114_688,
        EMBEDDING | {"pooling": "last"},
        key=128,
        keys={"pooling_type": 3},
    ),
    shape("bge-reranker", "bert", 24, 1024, 16, 16, 0, RERANK, keys={"pooling_type": 4}),
    shape("Qwen3-Reranker", "qwen3", 28, 1024, 16, 8, 114_688, RERANK, key=128, keys={"pooling_type": 4}),
    shape(
        "no pooling",
        "llama",
        16,
        2048,
        32,
        8,
        32_768,
        {"kind": ModelKind.CHAT, "pooling": "none"},
        keys={"pooling_type": 0},
    ),
    shape(
        "experts by layer",
        "llama",
        2,
        2048,
        32,
        8,
        4096,
        {"experts_used": 3},
        keys={"expert_count": 4, "expert_used_count": Listed(UINT32, (2, 3))},
    ),
]
