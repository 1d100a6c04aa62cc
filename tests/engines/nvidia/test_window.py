"""The window on a card: sizes of cards, what is in use, shapes of models, against the formula worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.facts import ModelFacts, ModelKind
from engines.memory.window import plan_window
from engines.nvidia.window import card_budget, compute_slope, flash_proven
from engines.plan import LaunchSettings, Window
from tests.fixtures.facts import facts

MIB, GIB = 1 << 20, 1 << 30
CARDS = (4, 6, 8, 12, 16, 24, 48, 80, 192)
USED = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
WEIGHTS = 4_920_739_232
FIXED = GIB + 256 * MIB + 512 * MIB
"""1,879,048,192 B: margin, reserve, CUDA context."""


def shape(head: int = 128, **more: object) -> ModelFacts:
    """An 8B model of 32 layers with 8 KV heads and 32 heads."""
    given: dict[str, object] = {
        "layers": 32,
        "heads": (32,) * 32,
        "kv_heads": (8,) * 32,
        "key_length": head,
        "value_length": head,
        "trained_window": 131_072,
        "weights_bytes": WEIGHTS,
    }
    return facts(**{**given, **more})


def window_of(
    model: ModelFacts, total: int, free: int | None = None, override: int | None = None, cap: int | None = None
) -> Window:
    return plan_window(model, LaunchSettings(cap=cap), card_budget(model, total=total, free=free, override=override))


SHAPES = {
    "proven": (shape(), 131_072 + 1024),
    "a head size without a kernel": (shape(48), 49_152 + 512 * 33 * 4),
    "ALiBi": (shape(alibi=True), 131_072 + 512 * 33 * 4),
    "keys longer than values": (shape(key_length=192), 2 * 32 * 8 * 320 + 512 * 33 * 4),
    "heads by layer": (shape(48, heads=(32,) * 31 + (64,)), 49_152 + 512 * 65 * 4),
    "with a projector": (shape(projector_bytes=900 * MIB), 131_072 + 1024),
}
"""Model, and bytes that one token costs."""


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("used", USED)
def test_the_window_of_each_card(name: str, card: int, used: float) -> None:
    model, each = SHAPES[name]
    total = card * GIB
    free = int(total * (1 - used))
    left = min(int(0.9 * total), free) - FIXED - WEIGHTS - model.projector_bytes
    expected = min(131_072, max(4096, left // each // 256 * 256))
    assert window_of(model, total, free).planned == expected


@pytest.mark.parametrize(
    ("card", "free", "window"),
    [
        (8, None, 6912),
        (8, 7 * GIB, 5376),
        (12, None, 36_096),
        (12, 11 * GIB, 36_096),
        (12, 8 * GIB, 13_312),
        (16, None, 65_536),
        (24, None, 123_904),
        (24, 2 * GIB, 4096),
        (48, None, 131_072),
    ],
)
def test_numbers_worked_out_by_hand(card: int, free: int | None, window: int) -> None:
    """12 GiB, idle: 0.9 × 12,884,901,888 = 11,596,411,699 B, less 1,879,048,192 and 4,920,739,232 leaves 4,796,624,275;
    by 132,096 B a token that is 36,311 tokens, down to 36,096."""
    assert window_of(shape(), card * GIB, free).planned == window


@pytest.mark.parametrize(
    ("key", "value", "alibi", "proven"),
    [
        *((size, size, False, True) for size in (40, 64, 72, 80, 96, 112, 128, 256)),
        *((size, size, False, False) for size in (32, 48, 100, 192, 320, 512, 576)),
        (128, 128, True, False),
        (192, 128, False, False),
        (64, 128, False, False),
        (None, None, False, False),
    ],
)
def test_what_proves_flash_attention(key: int | None, value: int | None, alibi: bool, proven: bool) -> None:
    model = shape(key_length=key, value_length=value, alibi=alibi)
    assert flash_proven(model) is proven
    assert compute_slope(model) == (1024 if proven else 512 * 33 * 4)


def test_sliding_layers_with_other_heads_must_have_a_kernel_too() -> None:
    assert flash_proven(shape(256, sliding_key_length=128, sliding_value_length=128))
    assert not flash_proven(shape(512, sliding_key_length=256, sliding_value_length=256))
    assert not flash_proven(shape(256, sliding_key_length=48, sliding_value_length=48))


def test_a_sliding_layer_is_counted_as_it_is_allocated() -> None:
    """Gemma-3-4B on 8 GiB: 5 of 34 layers attend to all, 4096 B a token each; 29 hold 1,536 cells."""
    pattern = tuple((layer + 1) % 6 != 0 for layer in range(34))
    sizes: dict[str, object] = {"layers": 34, "heads": (8,) * 34, "kv_heads": (4,) * 34, "weights_bytes": 2_489_757_856}
    model = shape(256, **sizes, sliding_window=1024, sliding_pattern=pattern)
    left = int(0.9 * 6 * GIB) - FIXED - 2_489_757_856 - 29 * 1536 * 4096
    assert window_of(model, 6 * GIB).planned == left // (5 * 4096 + 1024) // 256 * 256
    unknown = window_of(shape(256, **sizes, sliding_window=1024), 6 * GIB)
    assert unknown.planned == (left + 29 * 1536 * 4096) // (34 * 4096 + 1024) // 256 * 256
    assert unknown.bound_by == "model"


@pytest.mark.parametrize(
    "change",
    [
        {"kv_lora_rank": 512},
        {"layers": None},
        {"kv_heads": None},
        {"trained_window": None},
        {"alibi": True, "heads": None},
    ],
)
def test_a_shape_that_is_not_modelled_is_left_to_the_server(change: dict[str, object]) -> None:
    budget = card_budget(shape(**change), total=24 * GIB, free=None)
    assert budget.holds is None
    assert plan_window(shape(**change), LaunchSettings(), budget).planned is None


def test_the_cap_and_the_trained_window_bound_it() -> None:
    assert window_of(shape(), 24 * GIB, cap=8192).planned == 8192
    assert window_of(shape(), 24 * GIB, cap=131_072).bound_by == "memory"
    assert window_of(shape(trained_window=1000), 24 * GIB).planned == 1000


def test_memory_says_so_with_every_term_of_the_sum() -> None:
    assert window_of(shape(), 12 * GIB, 8 * GIB).reason == (
        "memory holds 13,312 of 131,072 tokens: 8.0 GiB free on the card, less 1.0 GiB margin, 4.6 GiB weights, "
        "256 MiB reserve and 512 MiB CUDA context"
    )
    assert "0.9 × 12.0 GiB on the card, less" in window_of(shape(), 12 * GIB).reason


def test_the_override_replaces_what_is_free_and_may_raise_the_total() -> None:
    real = window_of(shape(), 8 * GIB, 7 * GIB)
    assert window_of(shape(), 8 * GIB, 7 * GIB, override=24 * GIB) == window_of(shape(), 24 * GIB, 24 * GIB)
    assert window_of(shape(), 24 * GIB, 20 * GIB, override=7 * GIB).planned == real.planned
    assert card_budget(shape(), total=24 * GIB, free=None, override=GIB).total == 24 * GIB


def test_the_budget_shows_every_term() -> None:
    spent = card_budget(shape(), total=12 * GIB, free=8 * GIB).spent_on(shape(), 8192).to_json()
    assert spent == {
        "vram": 12 * GIB,
        "vram_free": 8 * GIB,
        "share": 0.9,
        "margin": GIB,
        "weights": WEIGHTS,
        "projector": 0,
        "reserve": 256 * MIB,
        "cuda_context": 512 * MIB,
        "left": 8 * GIB - FIXED - WEIGHTS,
        "holds": 13_312,
        "exact": True,
        "flash_attention": True,
        "kv": 8192 * 131_072,
        "kv_per_token": 131_072,
        "compute": 8192 * 1024,
        "compute_per_token": 1024,
    }


def test_an_embedder_s_batch_grows_with_its_window() -> None:
    """Without Flash Attention each token of the batch costs scores over the whole window."""
    small = shape(48, kind=ModelKind.EMBEDDING, weights_bytes=GIB, vocabulary=0, embedding_length=0)
    assert window_of(small, 24 * GIB).planned == 8192
    window = window_of(small, 4 * GIB)
    assert window.planned == 4096
    assert card_budget(small, total=4 * GIB, free=None).spent_on(small, 4096).compute == 4096 * 4096 * (2 + 33 * 4)


@given(
    total=st.integers(GIB, 192 * GIB),
    used=st.floats(0, 1),
    head=st.sampled_from((40, 48, 64, 128, 192, 256)),
    weights=st.integers(1, 100 * GIB),
    trained=st.integers(1, 1_000_000),
)
def test_the_window_fits_or_is_the_floor(total: int, used: float, head: int, weights: int, trained: int) -> None:
    model = shape(head, weights_bytes=weights, trained_window=trained)
    free = int(total * (1 - used))
    budget = card_budget(model, total=total, free=free)
    window = plan_window(model, LaunchSettings(), budget).planned
    assert window is not None
    assert min(4096, trained) <= window <= trained
    spent = budget.spent_on(model, window)
    assert spent.kv is not None
    assert spent.compute is not None
    assert spent.kv + spent.compute <= budget.left or window == min(4096, trained)
    more = card_budget(model, total=total, free=min(total, free + GIB)).holds
    assert more is not None
    assert budget.holds is not None
    assert more >= budget.holds
