"""Asks the engine itself: reads configurations from stdin and prints what mlx-vlm makes of them. A program of its own,
because importing the engine warns, and takes seconds and memory.

A model is built, which allocates nothing before it is evaluated.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from mlx.utils import tree_flatten
from mlx_vlm import embedding_loader, reranker, utils
from mlx_vlm.models.cache import ArraysCache, KVCache, RotatingKVCache


def built(config: dict[str, Any]) -> dict[str, Any]:
    """One word for each layer's cache, and how many keys each matrix of keys makes for a token."""
    module, _ = utils.get_model_and_args(config=config)
    config.setdefault("text_config", config.pop("llm_config", {}))
    config.setdefault("vision_config", {})
    config.setdefault("audio_config", {})
    parsed = module.ModelConfig.from_dict(config)
    parsed = utils.update_module_configs(parsed, module, config, ["text", "vision", "perceiver", "projector", "audio"])
    model = module.Model(parsed)
    language = getattr(model, "language_model", model)
    made = language.make_cache() if hasattr(language, "make_cache") else [KVCache() for _ in language.layers]
    parameters = tree_flatten(language.parameters())
    widths = {value.shape[0] for name, value in parameters if name.endswith("self_attn.k_proj.weight")}
    return {"caches": [word(cache) for cache in made], "widths": sorted(widths)}


def word(cache: object) -> str:
    if isinstance(cache, RotatingKVCache):
        return f"slides {cache.max_size}"
    return "none" if isinstance(cache, ArraysCache) else "full" if isinstance(cache, KVCache) else type(cache).__name__


def attempt(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return built(config)
    except Exception as error:  # noqa: BLE001 - the test that reads it says which model
        return {"error": f"{type(error).__name__}: {error}"}


request = json.load(sys.stdin)
json.dump(
    {
        "remapped": utils.MODEL_REMAPPING,
        "embeds": embedding_loader.EMBEDDING_MODEL_REMAPPING,
        "reranks": {key: value.value for key, value in reranker._RERANKER_KINDS.items()},
        "types": [utils.get_model_type(config) for config in request],
        "built": [attempt(copy.deepcopy(config)) for config in request],
    },
    sys.stdout,
)
