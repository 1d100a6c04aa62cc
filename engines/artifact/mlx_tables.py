"""What mlx-vlm knows about an architecture and a ``config.json`` does not say. Pure tables.

Source: mlx-vlm 0.7.10: ``utils.MODEL_REMAPPING``, ``embedding_loader.py``, ``reranker.py``, and each model's
``config.py`` and ``make_cache`` below ``models/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMAPPED: Mapping[str, str] = {
    "bunny-llama": "llava_bunny",
    "cohere2_vision": "aya_vision",
    "cohere2moe": "cohere2_moe",
    "dinov2_with_registers": "dinov2",
    "falcon-perception": "falcon_perception",
    "falcon_mamba": "mamba",
    "granite-vision": "granite_vision",
    "granite4-vision": "granite4_vision",
    "granite4_vision": "granite4_vision",
    "inkling_mm_model": "inkling",
    "iquestcoder": "llama",
    "joyai_llm_flash": "deepseek_v3",
    "jvlm": "jina_vlm",
    "kimi_k2": "deepseek_v3",
    "lfm2-vl": "lfm2_vl",
    "lille-130m": "lille_130m",
    "llava-qwen2": "llava_bunny",
    "llava_qwen2": "fastvlm",
    "minimax_m2": "minimax",
    "mistral": "llama",
    "moondream1": "moondream2",
    "muse_spark_open": "muse_spark",
    "nemotron-nas": "nemotron_nas",
    "nemotron_h_omni": "nemotron_h_nano_omni",
    "nemotron_h_puzzle": "nemotron_h",
    "nemotronh_nano_omni_reasoning_v3": "nemotron_h_nano_omni",
    "phi-msft": "phixtral",
    "phi4-siglip": "phi4_siglip",
    "rf-detr": "rfdetr",
    "sam3.1_video": "sam3_1",
    "sam3_video": "sam3",
    "unlimited-ocr": "unlimited_ocr",
}
"""``model_type`` in the file, and the module that runs it."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    kind: {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": window,
        "sliding_window_pattern": 6,
    }
    for kind, window in {"gemma3": 1024, "gemma3_text": 512}.items()
}
"""What a file leaves out because the library that wrote it has the same default (transformers'
``Gemma3TextConfig``, whose window mlx-vlm gives as 4096). The published gemma-3-4b names neither heads nor window."""

SLIDES = frozenset(
    {
        "afmoe",
        "aya_vision",
        "cohere2",
        "cohere2_moe",
        "exaone4",
        "exaone_moe",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "laguna",
        "llama",
        "llama4",
        "mellum",
        "ministral3",
        "mistral3",
        "olmo3",
    }
)
"""Their sliding layers have a cache of the window's size (``RotatingKVCache`` or ``ChunkedKVCache``). Every other one
(gemma2 for one) keeps all tokens in all layers, whatever its file says."""

SLIDING_EVERY: Mapping[str, int] = {
    "aya_vision": 4,
    "cohere2": 4,
    "gemma3n": 5,
    "gemma4": 5,
    "gemma4_text": 5,
    "gpt_oss": 2,
    "llama4": 4,
    "olmo3": 4,
}
"""Of so many layers the last has full attention, where the file lists neither layers nor a pattern."""

FULL_ATTENTION_EVERY: Mapping[str, int] = {
    "qwen3_5": 4,
    "qwen3_5_moe": 4,
    "qwen3_5_moe_text": 4,
    "qwen3_5_text": 4,
    "qwen3_next": 4,
}
"""Hybrids of which only each n-th layer attends: the default of ``full_attention_interval``."""

RECURRENT = frozenset({"mamba", "mamba2", "rwkv7"})
"""No layer has a KV cache."""

ENCODERS = frozenset({"bert", "modernbert", "xlm-roberta", "xlm_roberta", "lfm2_encoder", "embedding_gemma2"})
"""They read all tokens at once, write none and keep no cache."""

EMBEDS: Mapping[str, str] = {
    "gemma3_text": "gemma3_embedding",
    "lfm2": "lfm2_embedding",
    "ministral3": "ministral3_embedding",
    "qwen3": "qwen3_embedding",
    "qwen3_vl": "qwen3_vl_embedding",
    "xlm-roberta": "xlm_roberta",
}
"""Types that the embeddings route runs, and the module that it takes."""

EMBEDDERS = frozenset({*EMBEDS.values(), *ENCODERS, "colidefics3", "colqwen2_5", "llama_nemotron_vl_embedding"})
"""Types that make embeddings and nothing else."""

LAST_TOKEN = frozenset({"qwen3", "qwen3_vl", "qwen3_embedding", "qwen3_vl_embedding"})
"""Their vector is the last token's, where no file says."""

CLASSIFIERS = frozenset({"bert", "modernbert", "xlm-roberta", "xlm_roberta"})
"""The rerank route runs them with one label; of the generative ones it takes RERANKS."""

AFTER_PADDING = frozenset({"xlm-roberta", "xlm_roberta"})
"""Their first position has the number after the padding token's: so many fewer tokens than positions fit."""

RERANKS = frozenset({"qwen3", "qwen3_vl"})

FOREIGN_QUANTISATION = frozenset({"aqlm", "awq", "bitsandbytes", "eetq", "exl2", "gptq", "higgs", "hqq", "quanto"})
"""``quant_method`` of programs whose weights mlx-vlm does not read."""

UNMODELLED = ("block_configs", "hybrid_layer_pattern")
"""Keys of models whose layers differ in ways that are not worked out here: what a token costs them is not known."""
