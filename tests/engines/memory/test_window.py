"""The window on the CPU: shapes of models and sizes of machines, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.kv import kv_bytes_per_token
from engines.memory.bill import budget_for
from engines.memory.cost import compute_bytes, kv_bytes, scores_bytes_per_token
from engines.memory.window import padded, plan_window
from engines.plan import LaunchSettings, Window
from tests.fixtures.facts import facts

MIB = 1 << 20
GIB = 1 << 30
RAM_GIB = (2, 4, 8, 16, 32, 64, 128)


def shape(layers: int, kv_heads: int, head: int, trained: int, weights: int, **more: object) -> ModelFacts:
    """A model of equal layers."""
    given: dict[str, object] = {
        "layers": layers,
        "kv_heads": (kv_heads,) * layers,
        "key_length": head,
        "value_length": head,
        "trained_window": trained,
        "weights_bytes": weights,
    }
    return facts(**{**given, **more})


def every(period: int, layers: int) -> tuple[bool, ...]:
    """The last layer of each period has full attention, the others slide."""
    return tuple((layer + 1) % period != 0 for layer in range(layers))


SHAPES = {
    "dense, a KV head for each head": shape(32, 32, 128, 32_768, 4_081_004_224),
    "grouped heads (8B)": shape(32, 8, 128, 131_072, 4_920_739_232),
    "grouped heads (Qwen3-0.6B)": shape(28, 8, 128, 40_960, 396_705_472),
    "grouped heads (Llama-3.2-1B)": shape(16, 8, 64, 131_072, 807_694_464),
    "sliding, the header says where": shape(
        34, 4, 256, 131_072, 2_489_757_856, sliding_window=1024, sliding_pattern=every(6, 34)
    ),
    "sliding, the header does not say where": shape(32, 8, 128, 32_768, 4_368_439_584, sliding_window=4096),
    "hybrid, 12 of 48 layers attend": replace(shape(48, 0, 256, 262_144, 17_000_000_000), kv_heads=(0, 0, 0, 2) * 12),
    "split in two files": shape(
        80, 8, 128, 131_072, 42_520_395_584, files=(Path("a-00001-of-00002.gguf"), Path("a-00002-of-00002.gguf"))
    ),
    "with a projector": shape(
        28, 4, 128, 128_000, 4_683_072_032, projector=Path("mmproj.gguf"), projector_bytes=1_354_163_040
    ),
    "shared KV, sliding": shape(
        35, 2, 256, 32_768, 4_539_054_208, shared_kv_layers=15, sliding_window=512, sliding_pattern=every(5, 35)
    ),
    "an embedder that can write": shape(
        28, 8, 128, 32_768, 639_150_592, kind=ModelKind.EMBEDDING, vocabulary=151_669, embedding_length=1024
    ),
    "an encoder": shape(
        24, 16, 64, 8192, 1_157_671_200, kind=ModelKind.EMBEDDING, architecture="bert", embedding_length=1024
    ),
    "trained for less than the floor": shape(2, 2, 32, 1000, 163_840),
    "far too large": shape(126, 128, 128, 131_072, 230_000_000_000),
}

WINDOWS = {
    "dense, a KV head for each head": (4096, 4096, 4096, 16_128, 32_768, 32_768, 32_768),
    "grouped heads (8B)": (4096, 4096, 9472, 58_112, 131_072, 131_072, 131_072),
    "grouped heads (Qwen3-0.6B)": (7936, 22_016, 40_960, 40_960, 40_960, 40_960, 40_960),
    "grouped heads (Llama-3.2-1B)": (15_616, 63_232, 131_072, 131_072, 131_072, 131_072, 131_072),
    "sliding, the header says where": (4096, 12_800, 131_072, 131_072, 131_072, 131_072, 131_072),
    "sliding, the header does not say where": (4096, 4096, 13_568, 32_768, 32_768, 32_768, 32_768),
    "hybrid, 12 of 48 layers attend": (4096, 4096, 4096, 4096, 262_144, 262_144, 262_144),
    "split in two files": (4096, 4096, 4096, 4096, 4096, 26_368, 131_072),
    "with a projector": (4096, 4096, 4096, 112_640, 128_000, 128_000, 128_000),
    "shared KV, sliding": (4096, 4096, 32_768, 32_768, 32_768, 32_768, 32_768),
    "an embedder that can write": (4096, 4096, 6656, 8192, 8192, 8192, 8192),
    "an encoder": (4096, 8192, 8192, 8192, 8192, 8192, 8192),
    "trained for less than the floor": (1000,) * 7,
    "far too large": (4096,) * 7,
}
"""Tokens at 2, 4, 8 … 128 GiB of RAM. One by hand: the 8B at 8 GiB. 0.75 × 8 GiB = 6,442,450,944 B, less 4,920,739,232
and 268,435,456 leaves 1,253,276,256; by 131,072 + 1,024 B a token that is 9,487 tokens, down to 9,472."""


def window_of(model: ModelFacts, ram: int, settings: LaunchSettings | None = None, limit: int | None = None) -> Window:
    settings = settings or LaunchSettings()
    return plan_window(model, settings, budget_for(model, ram=ram, limit=limit, reserved=settings.reserved_bytes))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("column", range(len(RAM_GIB)))
def test_the_window_of_each_shape_on_each_machine(name: str, column: int) -> None:
    model, expected = SHAPES[name], WINDOWS[name][column]
    window = window_of(model, RAM_GIB[column] * GIB)
    assert window.planned == expected
    assert window.trained == model.trained_window
    wanted = 8192 if model.kind is ModelKind.EMBEDDING else model.trained_window
    reported = expected != wanted and name != "sliding, the header does not say where"
    assert window.bound_by == ("memory" if reported else "model")


@pytest.mark.parametrize(
    ("name", "size"), [("grouped heads (Qwen3-0.6B)", 114_688), ("grouped heads (Llama-3.2-1B)", 32_768)]
)
def test_what_a_token_costs(name: str, size: int) -> None:
    assert kv_bytes_per_token(SHAPES[name]) == size
    assert kv_bytes(SHAPES[name], 8192) == 8192 * size


@pytest.mark.parametrize("ram", RAM_GIB)
@pytest.mark.parametrize("change", [{"kv_lora_rank": 512}, {"layers": None}, {"key_length": None}])
def test_a_shape_whose_cost_is_not_known_is_left_to_the_server(ram: int, change: dict[str, object]) -> None:
    window = window_of(facts(**change), ram * GIB, LaunchSettings(cap=4096))
    assert window == Window(
        None, 40960, "model", "how much a token costs this model is not known, so the server sizes the window itself"
    )
    assert window_of(facts(**change), ram * GIB, LaunchSettings(window=8000)).planned == 8000


def test_memory_says_so_with_every_term_of_the_sum() -> None:
    window = window_of(SHAPES["grouped heads (8B)"], 8 * GIB)
    assert window.reason == (
        "memory holds 9,472 of 131,072 tokens: 0.75 × 8.0 GiB, less 4.6 GiB weights and 256 MiB reserve"
    )
    window = window_of(SHAPES["with a projector"], 64 * GIB, LaunchSettings(reserved_bytes=2 * GIB), limit=12 * GIB)
    assert window.reason == (
        "memory holds 20,736 of 128,000 tokens: 0.75 × 12.0 GiB (our cgroup's limit), less 4.4 GiB weights, "
        "1.3 GiB projector, 2.0 GiB other models and 256 MiB reserve"
    )
    window = window_of(SHAPES["far too large"], 8 * GIB)
    assert window.reason == (
        "memory holds 0 of 131,072 tokens: 0.75 × 8.0 GiB, less 214.2 GiB weights and 256 MiB reserve; "
        "4,096 is the least a model is given"
    )
    window = window_of(SHAPES["sliding, the header does not say where"], 8 * GIB)
    assert window.reason == "13,568 of 32,768 tokens, counted as if no layer had a sliding window"


@pytest.mark.parametrize(
    ("settings", "planned", "bound_by", "said"),
    [
        (LaunchSettings(window=8000), 8000, "user", "you set it to 8,000 tokens"),
        (LaunchSettings(window=20_000), 20_000, "user", "more than the 9,472 that memory holds"),
        (LaunchSettings(window=200_000), 131_072, "model", "you asked for 200,000 tokens; the model was trained"),
        (LaunchSettings(cap=8192), 8192, "brake", "lowered to 8,192 tokens because memory ran short"),
        (LaunchSettings(cap=20_480), 9472, "memory", "memory holds 9,472"),
        (LaunchSettings(window=8000, cap=4096), 8000, "user", "you set it"),
        (LaunchSettings(reserved_bytes=GIB), 4096, "memory", "1.0 GiB other models"),
    ],
)
def test_what_the_user_and_the_brake_say(settings: LaunchSettings, planned: int, bound_by: str, said: str) -> None:
    window = window_of(SHAPES["grouped heads (8B)"], 8 * GIB, settings)
    assert (window.planned, window.bound_by) == (planned, bound_by)
    assert said in window.reason


def test_our_cgroup_bounds_the_ram_when_it_is_less() -> None:
    model = SHAPES["grouped heads (8B)"]
    assert window_of(model, 64 * GIB, limit=8 * GIB) == replace(
        window_of(model, 8 * GIB),
        reason="memory holds 9,472 of 131,072 tokens: 0.75 × 8.0 GiB (our cgroup's limit), less 4.6 GiB weights and "
        "256 MiB reserve",
    )
    assert window_of(model, 8 * GIB, limit=64 * GIB) == window_of(model, 8 * GIB)


def test_a_sliding_window_over_the_trained_one_is_exact_without_a_pattern() -> None:
    model = replace(SHAPES["sliding, the header does not say where"], sliding_window=32_768)
    assert window_of(model, 8 * GIB).bound_by == "memory"


@pytest.mark.parametrize(("window", "cells"), [(1, 256), (256, 256), (257, 512), (8000, 8192), (8192, 8192)])
def test_llama_cpp_pads_windows(window: int, cells: int) -> None:
    assert padded(window) == cells


def test_a_sliding_layer_holds_its_window_and_a_batch() -> None:
    """Gemma 3 270M as measured: 27 MiB at 4,096 tokens, 63 MiB at 16,384."""
    gemma = shape(18, 1, 256, 32_768, 253_112_960, sliding_window=512, sliding_pattern=every(6, 18))
    assert kv_bytes(gemma, 4096) == 27 * MIB
    assert kv_bytes(gemma, 16384) == 63 * MIB
    assert kv_bytes(gemma, 512) == 18 * 512 * 1024
    assert kv_bytes(gemma, 4096, ubatch=4096) == 72 * MIB


def test_a_quantised_cache_costs_less() -> None:
    """As measured on a model of 4,096 B a token with two tensors: q8_0 8.5 of 16 MiB, q4_0 keys 10.25."""
    small = shape(2, 2, 128, 131_072, 1)
    assert kv_bytes(small, 8192) == 16 * MIB
    assert kv_bytes(small, 8192, key_bytes=34 / 32, value_bytes=34 / 32) == 8.5 * MIB
    assert kv_bytes(small, 8192, key_bytes=18 / 32) == 10.25 * MIB


def test_the_compute_buffer() -> None:
    """A chat: 1 KiB a token. An embedder: its mask, the logits of all its tokens, its activations."""
    assert compute_bytes(facts(), 8000) == 8 * MIB
    assert compute_bytes(SHAPES["an encoder"], 8192) == 128 * MIB + 8192 * 69_632
    assert compute_bytes(SHAPES["an embedder that can write"], 8192) == 128 * MIB + 8192 * (606_676 + 69_632)
    assert scores_bytes_per_token(16) == 34 * 1024
    assert scores_bytes_per_token(4) * 8192 == 80 * MIB  # measured: 83.38 MiB at 8,192 tokens, 163.38 at 16,384
