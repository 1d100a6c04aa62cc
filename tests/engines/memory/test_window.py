"""Windows, the memory they are predicted to cost, and footprints: small tables."""

from __future__ import annotations

import os

import pytest

from engines.memory.footprint import anonymous_bytes, from_smaps_rollup
from engines.memory.prediction import kv_bytes, predict
from engines.memory.window import padded
from tests.fixtures.facts import facts

MIB = 1 << 20


@pytest.mark.parametrize(("window", "cells"), [(1, 256), (256, 256), (257, 512), (8000, 8192), (8192, 8192)])
def test_llama_cpp_pads_windows(window: int, cells: int) -> None:
    assert padded(window) == cells


def test_the_kv_cache_of_full_attention_is_tokens_times_bytes() -> None:
    assert kv_bytes(facts(), 8192) == 8192 * 114_688


def test_a_sliding_layer_holds_its_window_and_a_batch() -> None:
    """Gemma 3 270M as measured: 27 MiB at 4,096 tokens, 63 MiB at 16,384."""
    pattern = tuple((layer + 1) % 6 != 0 for layer in range(18))
    gemma = facts(
        layers=18, kv_heads=(1,) * 18, key_length=256, value_length=256, sliding_window=512, sliding_pattern=pattern
    )
    assert kv_bytes(gemma, 4096) == 27 * MIB
    assert kv_bytes(gemma, 16384) == 63 * MIB


def test_the_bill_adds_up_and_an_unknown_shape_has_none() -> None:
    memory = predict(facts(), 8192)
    assert memory.predicted == sum(memory.bill.values())
    assert predict(facts(kv_lora_rank=512), 8192).predicted is None
    assert predict(facts(), None).predicted is None


def test_the_kernels_table_is_read() -> None:
    text = "Rss: 99 kB\nAnonymous:       2048 kB\nSwap:   1024 kB\nSwapPss: 7 kB\n"
    assert from_smaps_rollup(text) == 3 * MIB
    assert from_smaps_rollup("Rss: 1 kB\n") is None


def test_a_process_has_anonymous_memory_and_none_has_not() -> None:
    held = anonymous_bytes(os.getpid())
    assert held is not None
    assert held > MIB
    assert anonymous_bytes(2**22 + 1) is None
