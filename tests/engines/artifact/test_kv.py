"""What a token costs, layer by layer; whole models are in the table of models.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.kv import kv_bytes_per_layer, kv_bytes_per_token

FACTS = ModelFacts(
    files=(Path("model.gguf"),),
    weights_bytes=1,
    format="gguf",
    architecture="llama",
    name=None,
    quantisation=None,
    parameters=None,
    trained_window=None,
    layers=4,
    embedding_length=None,
    heads=None,
    kv_heads=(2, 2, 0, 1),
    key_length=64,
    value_length=32,
    vocabulary=None,
    sliding_window=None,
    sliding_pattern=None,
    kv_lora_rank=None,
    shared_kv_layers=None,
    experts=None,
    experts_used=None,
    alibi=False,
    tokenizer=None,
    chat_template=None,
    kind=ModelKind.CHAT,
    pooling=None,
    projector=None,
    projector_bytes=0,
    modalities=(),
)
SLIDING = {"sliding_window": 512, "sliding_pattern": (True, False, True, True)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (384, 384, 0, 192)),
        ({"key_length": 32}, (256, 256, 0, 128)),
        ({"shared_kv_layers": 1}, (384, 384, 0, 0)),
        ({"shared_kv_layers": 3}, (384, 0, 0, 0)),
        ({"shared_kv_layers": 9}, (0, 0, 0, 0)),
        (SLIDING, (384, 384, 0, 192)),
        (SLIDING | {"sliding_key_length": 32}, (256, 384, 0, 128)),
        (SLIDING | {"sliding_key_length": 32, "sliding_value_length": 0}, (128, 384, 0, 64)),
        ({"sliding_key_length": 32}, (384, 384, 0, 192)),
        ({"architecture": "bert"}, (0, 0, 0, 0)),
        ({"architecture": "bert", "kv_heads": None}, (0, 0, 0, 0)),
        ({"kv_heads": (0, 0, 0, 0), "key_length": None}, (0, 0, 0, 0)),
        ({"layers": 0, "kv_heads": ()}, ()),
        ({"kv_lora_rank": 512}, None),
        ({"layers": None}, None),
        ({"kv_heads": None}, None),
        ({"key_length": None}, None),
        ({"value_length": None}, None),
    ],
)
def test_each_layer_costs_its_heads(changes: dict[str, Any], expected: tuple[int, ...] | None) -> None:
    facts = dataclasses.replace(FACTS, **changes)

    assert kv_bytes_per_layer(facts) == expected
    assert kv_bytes_per_token(facts) == (None if expected is None else sum(expected))


@pytest.mark.parametrize(
    ("key_bytes", "value_bytes", "expected"),
    [(2.0, 2.0, 960), (4.0, 4.0, 1920), (34 / 32, 34 / 32, 510), (34 / 32, 2.0, 660), (18 / 32, 18 / 32, 270)],
)
def test_the_type_of_the_cache_scales_it(key_bytes: float, value_bytes: float, expected: int) -> None:
    assert kv_bytes_per_token(FACTS, key_bytes, value_bytes) == expected
