"""The prediction that users see: every term, and the numbers that were measured."""

from __future__ import annotations

import pytest

from engines.memory.prediction import predict
from tests.fixtures.facts import facts

MIB = 1 << 20
GEMMA = facts(
    layers=18,
    kv_heads=(1,) * 18,
    key_length=256,
    value_length=256,
    trained_window=32_768,
    sliding_window=512,
    sliding_pattern=tuple((layer + 1) % 6 != 0 for layer in range(18)),
    vocabulary=262_144,
    tokenizer="llama",
)
TINY = facts(layers=2, kv_heads=(2,) * 2, key_length=16, value_length=16, vocabulary=288)
WITH_AMX = 224_297_984
"""gemma's copy on a machine with AMX, 213.91 MiB; without 12.66."""


@pytest.mark.parametrize(
    ("model", "window", "copied", "measured"),
    [
        (GEMMA, 4096, WITH_AMX, 295.0),
        (GEMMA, 8192, WITH_AMX, 307.0),
        (GEMMA, 16_384, WITH_AMX, 331.0),
        (GEMMA, 32_768, WITH_AMX, 379.0),
        (GEMMA, 4096, 12_656 * 1024, 94.0),
        (GEMMA, 16_384, 12_656 * 1024, 130.0),
        (TINY, 4096, 0, 8.6),
        (TINY, 131_072, 0, 45.5),
    ],
)
def test_it_is_near_what_was_measured(model: object, window: int, copied: int, measured: float) -> None:
    predicted = predict(model, window, copied).predicted  # type: ignore[arg-type]
    assert predicted is not None
    assert abs(predicted / MIB - measured) <= max(0.02 * measured, 2)


def test_the_bill_adds_up_and_names_its_terms() -> None:
    memory = predict(facts(projector_bytes=7), 8000, 5)
    assert memory.predicted == sum(memory.bill.values())
    assert memory.bill == {
        "kv": 8192 * 114_688,
        "repacked": 5,
        "projector": 7,
        "server": 8 * MIB,
        "cells": 8192 * 48,
        "vocabulary": 151_936 * 292,
    }


def test_an_unknown_shape_or_window_has_no_prediction() -> None:
    assert predict(facts(kv_lora_rank=512), 8192, 0).predicted is None
    assert predict(facts(), None, 0).predicted is None
