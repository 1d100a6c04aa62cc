"""What real configurations come to, and whether the engine makes the same of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.kv import kv_bytes_per_token
from engines.artifact.mlx import Contents, facts_from
from engines.artifact.mlx_tables import CLASSIFIERS, EMBEDS, REMAPPED, RERANKS
from engines.artifact.mlx_weights import Tensor, Weights
from engines.memory.cost import kv_bytes, window_bytes
from tests.engines.artifact.mlx_shapes import SHAPES, Shape

FOLDER = Path("/models/some-model")
WEIGHTS = Weights((FOLDER / "model.safetensors",), 1000, (Tensor("a.weight", "BF16", (2, 8)),))
ENGINE_SECONDS = 120
with_engine = pytest.mark.skipif(find_spec("mlx_vlm") is None, reason="the MLX engine is not installed here")


def facts_of(config: dict[str, Any] | Any, **contents: Any) -> ModelFacts:
    values: dict[str, Any] = {"folder": FOLDER, "weights": WEIGHTS, "tokenizer": {}} | contents
    return facts_from(Contents(config=config, **values), known=lambda _: None)


def by_name(shape: Shape) -> str:
    return shape.name


@pytest.mark.parametrize("shape", SHAPES, ids=by_name)
def test_a_real_shape_costs_what_was_worked_out_by_hand(shape: Shape) -> None:
    facts = facts_of(shape.config)

    assert kv_bytes_per_token(facts) == shape.kv
    assert {name: getattr(facts, name) for name in shape.facts} == shape.facts


@pytest.mark.parametrize("shape", SHAPES, ids=by_name)
def test_the_memory_functions_take_the_facts_as_they_are(shape: Shape) -> None:
    facts = facts_of(shape.config)

    known = kv_bytes(facts, 4096)
    assert (known is None) == (shape.kv is None)
    assert (window_bytes(facts, 4096) is None) == (shape.kv is None)
    if known is not None and shape.kv is not None:
        assert known <= 4096 * shape.kv


def test_a_sliding_layer_is_counted_as_its_window() -> None:
    gemma = facts_of(next(shape for shape in SHAPES if shape.name.startswith("gemma-3-4b")).config)

    # 5 full layers hold 8192 tokens; 29 hold the window of 1024 and a batch of 512; 4096 bytes a layer and token
    assert kv_bytes(gemma, 8192) == 4096 * (5 * 8192 + 29 * 1536)


@pytest.fixture(scope="module")
def engine() -> dict[str, Any]:
    """What mlx-vlm itself says."""
    asked = subprocess.run(
        [sys.executable, "-m", "tests.engines.artifact.mlx_oracle"],
        input=json.dumps([shape.config for shape in SHAPES if shape.built]),
        capture_output=True,
        text=True,
        check=False,
        timeout=ENGINE_SECONDS,
    )
    assert asked.returncode == 0, asked.stderr
    return dict(json.loads(asked.stdout))


@with_engine
def test_the_engine_gives_each_layer_the_cache_that_we_count(engine: dict[str, Any]) -> None:
    for shape, built in zip((shape for shape in SHAPES if shape.built), engine["built"], strict=True):
        facts = facts_of(shape.config)
        assert facts.layers is not None
        assert facts.kv_heads is not None
        pattern = facts.sliding_pattern or (False,) * facts.layers
        words = [
            "none" if not heads else f"slides {facts.sliding_window}" if slides else "full"
            for heads, slides in zip(facts.kv_heads, pattern, strict=True)
        ]
        assert built.get("caches") == words, (shape.name, built)
        heads = {count for count in facts.kv_heads if count}
        assert facts.key_length is not None
        assert set(built["widths"]) <= {count * facts.key_length for count in heads}, shape.name


@with_engine
def test_our_tables_are_the_engines(engine: dict[str, Any]) -> None:
    assert engine["remapped"] == REMAPPED
    assert {key: EMBEDS.get(key) for key in engine["embeds"]} == engine["embeds"]
    scored = {key for key, kind in engine["reranks"].items() if kind == "sequence_classifier"}
    assert {kind.replace("-", "_") for kind in CLASSIFIERS} == scored
    assert engine["reranks"].keys() - scored == RERANKS
    types = [shape.config["model_type"] for shape in SHAPES if shape.built]
    assert engine["types"] == [REMAPPED.get(kind, kind) for kind in types]


LLAMA = next(shape for shape in SHAPES if shape.name == "Llama-3.2-1B").config


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        *((limit, 131_072) for limit in (None, 1e30, 10**30, 1_000_000, 0, -1, True, "512", math.nan, math.inf)),
        (8192, 8192),
        (8192.0, 8192),
    ],
)
def test_a_tokenizer_that_takes_fewer_tokens_bounds_the_window(limit: Any, expected: int) -> None:
    assert facts_of(LLAMA, tokenizer={"model_max_length": limit}).trained_window == expected


XLM = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}


@pytest.mark.parametrize(
    ("config", "limit", "expected"),
    [
        (XLM | {"max_position_embeddings": 514, "pad_token_id": 1}, None, 512),
        (XLM | {"max_position_embeddings": 514}, None, 512),
        (XLM | {"max_position_embeddings": 514, "pad_token_id": 0}, None, 513),
        (XLM | {"max_position_embeddings": 8194}, 8192, 8192),
        (XLM | {"max_position_embeddings": 2, "pad_token_id": 7}, None, 1),
        (XLM, 512, 512),
        (XLM, None, None),
        ({"model_type": "bert", "max_position_embeddings": 512}, 1e30, 512),
        ({"model_type": "bert", "max_position_embeddings": 512}, 384, 384),
        ({"model_type": "mamba"}, 512, None),
    ],
)
def test_a_worker_takes_what_its_positions_and_its_tokenizer_allow(
    config: dict[str, Any], limit: Any, expected: int | None
) -> None:
    assert facts_of(config, tokenizer={"model_max_length": limit}).trained_window == expected


@pytest.mark.parametrize(
    ("changes", "name", "contents", "kind", "pooling"),
    [
        ({}, "Llama", {}, ModelKind.CHAT, None),
        ({}, "embedding-llama", {}, ModelKind.CHAT, None),
        ({"model_type": "qwen3"}, "Qwen3-0.6B-4bit", {}, ModelKind.CHAT, None),
        ({"model_type": "qwen3"}, "Qwen3-Embedding-0.6B-4bit-DWQ", {}, ModelKind.EMBEDDING, "last"),
        ({"model_type": "qwen3"}, "Qwen3-Reranker-0.6B", {}, ModelKind.RERANK, "rank"),
        ({"model_type": "qwen3"}, "a", {"sentence_transformer": True}, ModelKind.EMBEDDING, "last"),
        ({"model_type": "gemma3_text"}, "embeddinggemma-300m", {}, ModelKind.EMBEDDING, None),
        ({"model_type": "gemma3_text"}, "gemma-3-1b", {}, ModelKind.CHAT, None),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}, "a", {}, ModelKind.EMBEDDING, None),
        (
            {"model_type": "gemma3_text"},
            "embeddinggemma-300m",
            {
                "sentence_transformer": True,
                "pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            },
            ModelKind.EMBEDDING,
            "mean",
        ),
        ({"model_type": "xlm-roberta"}, "bge-m3", {"pooling": {"pooling_mode_cls_token": True}}, "embedding", "cls"),
        (
            {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]},
            "bge-reranker-v2-m3",
            {},
            ModelKind.RERANK,
            "rank",
        ),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            "ms-marco-MiniLM-L6-v2",
            {"sentence_transformer": True},
            ModelKind.RERANK,
            "rank",
        ),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "bge-small", {}, ModelKind.EMBEDDING, None),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, "a", {}, ModelKind.EMBEDDING, "last"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "a", {}, ModelKind.CHAT, None),
    ],
)
def test_what_a_model_is_for(
    changes: dict[str, Any], name: str, contents: dict[str, Any], kind: ModelKind, pooling: str | None
) -> None:
    facts = facts_of({**LLAMA, **changes}, folder=Path("/m") / name, **contents)

    assert (facts.kind, facts.pooling) == (kind, pooling)


def weights(*tensors: tuple[str, str, tuple[int, ...]], parameters: int | None = None) -> Weights:
    return Weights(WEIGHTS.files, 1, tuple(Tensor(*one) for one in tensors), parameters)


QUANTISED = (
    ("model.layers.0.self_attn.q_proj.weight", "U32", (64, 16)),
    ("model.layers.0.self_attn.q_proj.scales", "BF16", (64, 2)),
    ("model.layers.0.self_attn.q_proj.biases", "BF16", (64, 2)),
    ("model.layers.0.self_attn.q_proj.bias", "BF16", (64,)),
    ("model.norm.weight", "BF16", (64,)),
)


@pytest.mark.parametrize(
    ("changes", "found", "name", "parameters"),
    [
        ({}, weights(("a", "BF16", (4, 4)), ("norm", "F32", (900,))), "BF16", 916),
        ({}, weights(("a", "F16", (4, 4))), "F16", 16),
        ({"quantization": {"bits": 4, "group_size": 64}}, weights(*QUANTISED), "4bit", 64 * 128 + 128),
        ({"quantization": {"bits": 8, "group_size": 32, "mode": "affine"}}, weights(*QUANTISED), "8bit", 64 * 64 + 128),
        (
            {"quantization": {"bits": 4, "group_size": 64, "model.layers.0.self_attn.q_proj": {"group_size": 32}}},
            weights(*QUANTISED),
            "4bit",
            64 * 64 + 128,
        ),
        ({"quantization_config": {"bits": 4, "group_size": 64}}, weights(*QUANTISED), "4bit", 64 * 128 + 128),
        ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, weights(*QUANTISED), "mxfp4", 64 * 64 + 128),
        ({"quantization": {"bits": 4}}, weights(*QUANTISED), "4bit", None),
        ({"quantization": {"bits": 4}}, weights(*QUANTISED, parameters=7_000), "4bit", 7_000),
        ({"quantization_config": {"quant_method": "fp8"}}, weights(("a.weight", "F8_E4M3", (4, 4))), "fp8", 16),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, weights(("a.weight_packed", "I32", (4, 4))),
         "compressed-tensors", None),
    ],
)  # fmt: skip
def test_the_quantisation_and_the_number_of_weights(
    changes: dict[str, Any], found: Weights, name: str, parameters: int | None
) -> None:
    facts = facts_of({**LLAMA, **changes}, weights=found)

    assert (facts.quantisation, facts.parameters) == (name, parameters)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vision_config": {"depth": 1}}, ("image",)),
        ({"vision_config": None, "audio_config": {"a": 1}}, ("audio",)),
        ({"vision_config": {}}, ()),
        ({"mm_vision_tower": "mobileclip"}, ("image",)),
    ],
)
def test_what_it_understands_besides_text(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert facts_of({**LLAMA, **changes}).modalities == expected
