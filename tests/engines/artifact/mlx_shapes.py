"""Shapes of real models as their ``config.json`` has them, and what must come of them.

The bytes per token are worked out by hand from the models' published configurations, not by our formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

T, F = True, False
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Shape:
    """One model. ``kv`` is bytes of KV cache per token, ``facts`` what else must be read."""

    name: str
    config: Mapping[str, Any]
    kv: int | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    built: bool = True
    """The engine's own module is built from this configuration and compared."""


def sizes(layers: int, hidden: int, heads: int, kv_heads: int | None, window: int, **others: Any) -> dict[str, Any]:
    """The keys that nearly every configuration has."""
    found = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": window,
        "intermediate_size": 4 * hidden,
        "rms_norm_eps": 1e-6,
        "vocab_size": 32_000,
        "rope_theta": 10_000.0,
    }
    return found | ({} if kv_heads is None else {"num_key_value_heads": kv_heads}) | others


OPENELM_HEADS = [12] * 5 + [16] * 7 + [20] * 4
OPENELM_KV = [3] * 5 + [4] * 7 + [5] * 4
NEMOTRON = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
LFM2 = [
    "conv",
    "conv",
    FULL,
    "conv",
    "conv",
    FULL,
    "conv",
    "conv",
    FULL,
    "conv",
    FULL,
    "conv",
    FULL,
    "conv",
    FULL,
    "conv",
]

SHAPES = [
    Shape(
        "Llama-3.2-1B",
        {"model_type": "llama", "head_dim": 64, "tie_word_embeddings": True}
        | sizes(16, 2048, 32, 8, 131_072, vocab_size=128_256),
        2 * 16 * 8 * 64 * 2,
        {"trained_window": 131_072, "vocabulary": 128_256, "heads": (32,) * 16, "embedding_length": 2048},
    ),
    Shape(
        "Qwen3-0.6B",
        {"model_type": "qwen3", "head_dim": 128, "use_sliding_window": False, "sliding_window": None}
        | {"tie_word_embeddings": True, "max_window_layers": 28, "rope_scaling": None}
        | sizes(28, 1024, 16, 8, 40_960),
        114_688,
        {"key_length": 128, "sliding_window": None, "architecture": "qwen3"},
    ),
    Shape(
        "Qwen2.5-7B-Instruct",
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131_072, "max_window_layers": 28}
        | sizes(28, 3584, 28, 4, 32_768),
        57_344,
        {"sliding_window": None, "key_length": 128},
    ),
    Shape(
        "Qwen2.5-VL-3B",
        {"model_type": "qwen2_5_vl", "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16}}
        | {"use_sliding_window": False, "sliding_window": 32_768, "max_window_layers": 70}
        | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
        | sizes(36, 2048, 16, 2, 128_000),
        36_864,
        {"modalities": ("image",), "sliding_window": None, "trained_window": 128_000},
        built=False,
    ),
    Shape(
        "Qwen2.5-VL-3B, language model in a container",
        {
            "model_type": "qwen2_5_vl",
            "vision_config": {"depth": 32, "hidden_size": 1280, "num_hidden_layers": 99},
            "text_config": {"model_type": "qwen2_5_vl_text", "sliding_window": None} | sizes(36, 2048, 16, 2, 128_000),
        },
        36_864,
        {"modalities": ("image",), "architecture": "qwen2_5_vl", "layers": 36},
        built=False,
    ),
    Shape(
        "Qwen3-Omni, a container in a container",
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {
                "audio_config": {"d_model": 1280, "num_hidden_layers": 32},
                "vision_config": {"depth": 27},
                "text_config": {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
                | sizes(48, 2048, 32, 4, 65_536),
            },
        },
        98_304,
        {"modalities": ("image", "audio"), "experts": 128, "experts_used": 8, "layers": 48},
        built=False,
    ),
    Shape(
        "gemma-3-4b, which leaves out its heads",
        {
            "model_type": "gemma3",
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16}
            | {"model_type": "siglip_vision_model", "patch_size": 14, "image_size": 896, "intermediate_size": 4304},
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
        139_264,
        {
            "sliding_window": 1024,
            "sliding_pattern": (T, T, T, T, T, F) * 5 + (T,) * 4,
            "heads": (8,) * 34,
            "trained_window": 131_072,
            "key_length": 256,
        },
    ),
    Shape(
        "gemma-3-1b",
        {"model_type": "gemma3_text", "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 6}
        | {"query_pre_attn_scalar": 256, "rope_local_base_freq": 10_000}
        | sizes(26, 1152, 4, 1, 32_768),
        26_624,
        {"sliding_window": 512, "sliding_pattern": (T, T, T, T, T, F) * 4 + (T, T), "kind": "chat"},
    ),
    Shape(
        "gemma-2-2b, whose layers keep all tokens here",
        {"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096, "layer_types": [SLIDING, FULL] * 13}
        | {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        | sizes(26, 2304, 8, 4, 8192),
        106_496,
        {"sliding_window": 4096, "sliding_pattern": None},
    ),
    Shape(
        "gemma-3n-E2B, whose last layers share",
        {
            "model_type": "gemma3n",
            "text_config": {
                "model_type": "gemma3n_text",
                "head_dim": 256,
                "num_kv_shared_layers": 10,
                "sliding_window": 512,
                "layer_types": ([SLIDING] * 4 + [FULL]) * 6,
            }
            | sizes(30, 2048, 8, 2, 32_768, intermediate_size=[8192] * 30),
        },
        40_960,
        {"shared_kv_layers": 10, "sliding_pattern": (T, T, T, T, F) * 6},
        built=False,
    ),
    Shape(
        "Mistral-7B-v0.3",
        {"model_type": "mistral", "sliding_window": None} | sizes(32, 4096, 32, 8, 32_768),
        131_072,
        {"sliding_window": None, "sliding_pattern": None, "architecture": "mistral"},
    ),
    Shape(
        "Mistral-7B-v0.1, whose window is known and not where",
        {"model_type": "mistral", "sliding_window": 4096} | sizes(32, 4096, 32, 8, 32_768),
        131_072,
        {"sliding_window": 4096, "sliding_pattern": None},
    ),
    Shape(
        "Mixtral-8x7B",
        {"model_type": "mixtral", "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2}
        | sizes(32, 4096, 32, 8, 32_768),
        131_072,
        {"experts": 8, "experts_used": 2},
    ),
    Shape(
        "DeepSeek-V2-Lite, which is MLA",
        {"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}
        | {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408}
        | sizes(27, 2048, 16, 16, 163_840),
        None,
        {"kv_lora_rank": 512, "experts": 64, "experts_used": 6, "trained_window": 163_840},
        built=False,
    ),
    Shape(
        "phi-2, without heads of KV and their width",
        {"model_type": "phi", "num_key_value_heads": None, "partial_rotary_factor": 0.4, "layer_norm_eps": 1e-5}
        | sizes(32, 2560, 32, None, 2048),
        327_680,
        {"kv_heads": (32,) * 32, "key_length": 80},
    ),
    Shape(
        "Phi-3-mini-4k",
        {"model_type": "phi3", "sliding_window": 2047, "rope_scaling": None} | sizes(32, 3072, 32, 32, 4096),
        393_216,
        {"key_length": 96, "sliding_window": 2047, "sliding_pattern": None},
    ),
    Shape(
        "gpt2, with its own names",
        {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "n_ctx": 1024}
        | {"layer_norm_epsilon": 1e-5, "vocab_size": 50_257, "num_key_value_heads": None},
        36_864,
        {"trained_window": 1024, "embedding_length": 768, "kv_heads": (12,) * 12},
    ),
    Shape(
        "starcoderbase-1b, with one head of KV",
        {"model_type": "gpt_bigcode", "n_layer": 24, "n_head": 16, "n_embd": 2048, "multi_query": True}
        | {"n_positions": 8192, "n_inner": 8192, "layer_norm_epsilon": 1e-5, "vocab_size": 49_152},
        12_288,
        {"kv_heads": (1,) * 24, "trained_window": 8192},
    ),
    Shape(
        "OpenELM-270M, one number a layer",
        {"model_type": "openelm", "num_transformer_layers": 16, "model_dim": 1280, "head_dim": 64}
        | {"num_query_heads": OPENELM_HEADS, "num_kv_heads": OPENELM_KV, "max_context_length": 2048},
        16_128,
        {"heads": tuple(OPENELM_HEADS), "kv_heads": tuple(OPENELM_KV), "trained_window": 2048},
        built=False,
    ),
    Shape(
        "Qwen3-30B-A3B",
        {"model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
        | {"use_sliding_window": False, "sliding_window": None, "moe_intermediate_size": 768, "mlp_only_layers": []}
        | {"decoder_sparse_step": 1, "norm_topk_prob": True, "tie_word_embeddings": False}
        | sizes(48, 2048, 32, 4, 40_960),
        98_304,
        {"experts": 128, "experts_used": 8},
    ),
    Shape(
        "Qwen3-Next-80B, where each fourth layer attends",
        {"model_type": "qwen3_next", "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10}
        | {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128}
        | {"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1}
        | {"shared_expert_intermediate_size": 512, "mlp_only_layers": [], "moe_intermediate_size": 512}
        | {"partial_rotary_factor": 0.25}
        | sizes(48, 2048, 16, 2, 262_144),
        24_576,
        {"kv_heads": (0, 0, 0, 2) * 12},
    ),
    Shape(
        "gpt-oss-20b",
        {"model_type": "gpt_oss", "head_dim": 64, "sliding_window": 128, "layer_types": [SLIDING, FULL] * 12}
        | {"num_local_experts": 32, "num_experts_per_tok": 4}
        | sizes(24, 2880, 64, 8, 131_072),
        49_152,
        {"sliding_pattern": (T, F) * 12, "experts": 32, "experts_used": 4},
    ),
    Shape(
        "Command R7B",
        {"model_type": "cohere2", "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": 4}
        | {"layer_norm_eps": 1e-5, "logit_scale": 0.25}
        | sizes(32, 4096, 32, 8, 132_096),
        131_072,
        {"sliding_pattern": (T, T, T, F) * 8},
    ),
    Shape(
        "EXAONE-4-32B, with its pattern in letters",
        {"model_type": "exaone4", "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
        | {"rope_scaling": None, "tie_word_embeddings": False}
        | sizes(64, 5120, 40, 8, 131_072),
        262_144,
        {"sliding_pattern": (T, T, T, F) * 16},
    ),
    Shape(
        "LFM2-1.2B, mostly convolutions",
        {"model_type": "lfm2", "layer_types": LFM2, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3}
        | {"block_dim": 2048, "block_ff_dim": 12_288, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}
        | {"block_auto_adjust_ff_dim": True}
        | sizes(16, 2048, 32, 8, 128_000),
        12_288,
        {"kv_heads": tuple(8 if kind == FULL else 0 for kind in LFM2)},
    ),
    Shape(
        "LFM2, by indexes",
        {"model_type": "lfm2", "full_attn_idxs": [2, 5]} | sizes(6, 2048, 32, 8, 128_000),
        4096,
        {"kv_heads": (0, 0, 8, 0, 0, 8)},
        built=False,
    ),
    Shape(
        "Jamba-mini, one layer of eight",
        {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "num_experts": 16}
        | sizes(32, 4096, 32, 8, 262_144),
        16_384,
        {"kv_heads": (0, 0, 0, 0, 8, 0, 0, 0) * 4, "experts": 16},
        built=False,
    ),
    Shape(
        "Nemotron-H-8B, with its layers in letters",
        {"model_type": "nemotron_h", "hybrid_override_pattern": NEMOTRON, "head_dim": 128}
        | sizes(52, 4096, 32, 8, 8192),
        16_384,
        {"layers": 52},
        built=False,
    ),
    Shape(
        "recurrentgemma-2b, its kinds in a cycle",
        {"model_type": "recurrent_gemma", "block_types": ["recurrent", "recurrent", "attention"]}
        | {"attention_window_size": 2048, "head_dim": 256}
        | sizes(26, 2560, 10, 1, 8192),
        8192,
        {"sliding_window": 2048, "sliding_pattern": None},
        built=False,
    ),
    Shape(
        "mamba-130m, without a cache",
        {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768, "vocab_size": 50_280},
        0,
        {"kv_heads": (0,) * 24, "trained_window": None},
        built=False,
    ),
    Shape(
        "Nemotron-51B, whose layers all differ",
        {"model_type": "nemotron-nas", "block_configs": [{"attention": {"n_heads_in_group": 8}}] * 4}
        | sizes(4, 8192, 64, None, 131_072),
        None,
        {"kv_heads": None, "layers": 4},
        built=False,
    ),
    Shape(
        "llava-1.5, which names no layers",
        {"model_type": "llava", "vision_config": {"num_hidden_layers": 24, "hidden_size": 1024}}
        | {"text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32_064}},
        None,
        {"layers": None, "trained_window": 4096, "vocabulary": 32_064, "modalities": ("image",)},
        built=False,
    ),
    Shape(
        "bge-m3, an encoder",
        {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]} | sizes(24, 1024, 16, None, 8194),
        0,
        {"kind": "embedding"},
        built=False,
    ),
]
