"""Whether a child's layers are on the card: by the log line, by NVML, by the Windows gauges, and without a signal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.facts import ModelFacts
from engines.llama_cpp.output import Buffer, ServerOutput, read_output
from engines.memory.cost import kv_bytes
from engines.nvidia.placement import (
    OnCard,
    Placement,
    by_gauges,
    by_nvml,
    floor_bytes,
    partial_sentence,
    placed,
    surplus,
)
from engines.nvidia.spill import GpuUsage
from tests.fixtures.facts import facts

MIB = 1 << 20
GIB = 1 << 30
WINDOW = 8192
HEALTHY = 136 * MIB
QUIET = ServerOutput()
ALL = ServerOutput(offloaded=(33, 33))

DENSE = facts(
    weights_bytes=4 * GIB,
    token_embedding_bytes=GIB,
    layers=32,
    heads=(32,) * 32,
    kv_heads=(8,) * 32,
)
"""3 GiB of layers (96 MiB each) and 128 KiB of KV a token: 1 GiB at 8,192 tokens, so 128 MiB a layer in all."""
MIXTURE = facts(
    weights_bytes=20 * GIB,
    token_embedding_bytes=GIB,
    expert_bytes=17 * GIB,
    experts=128,
    layers=32,
    kv_heads=(8,) * 32,
)
THIN = facts(weights_bytes=700 * MIB, token_embedding_bytes=380 * MIB, layers=32, kv_heads=(1,) * 32)
"""A layer of 10 MiB and 4 MiB of KV at 8,192 tokens: 448 MiB in all."""
SLIDING = facts(
    weights_bytes=4 * GIB,
    token_embedding_bytes=GIB,
    layers=32,
    kv_heads=(8,) * 32,
    sliding_window=1024,
    sliding_pattern=(True,) * 28 + (False,) * 4,
)
SHARED = facts(
    weights_bytes=4 * GIB,
    token_embedding_bytes=GIB,
    layers=32,
    kv_heads=(8,) * 32,
    shared_kv_layers=16,
)


def on(size: int) -> OnCard:
    return OnCard(size, "NVML")


@pytest.mark.parametrize(
    ("line", "on_card", "full"),
    [
        ("load_tensors: offloaded 20/33 layers to GPU", None, False),
        ("load_tensors: offloaded 20/33 layers to GPU", on(9 * GIB), False),
        ("load_tensors: offloaded 32/33 layers to GPU", on(9 * GIB), False),
        ("load_tensors: offloaded 0/33 layers to GPU", None, False),
        ("load_tensors: offloaded 33/33 layers to GPU", None, True),
        ("load_tensors: offloaded 33/33 layers to GPU", on(9 * GIB), True),
        ("load_tensors: offloaded 33/33 layers to GPU", on(GIB), False),
        ("load_tensors: offloaded 5/33 layers to GPU\nload_tensors: offloaded 33/33 layers to GPU", None, True),
    ],
)
def test_fewer_layers_than_all_prove_a_partial_offload_and_all_of_them_prove_nothing(
    line: str, on_card: OnCard | None, full: bool
) -> None:
    assert placed(read_output(line), DENSE, WINDOW, on_card).full is full


def test_the_floor_is_the_weights_without_embedding_and_experts_and_the_kv_cache() -> None:
    assert floor_bytes(QUIET, DENSE, WINDOW) == 3 * GIB + GIB
    assert floor_bytes(QUIET, MIXTURE, WINDOW) == 2 * GIB + GIB
    assert floor_bytes(QUIET, DENSE, None) == 3 * GIB


def test_the_kv_cache_that_was_printed_counts_more_than_the_formula() -> None:
    printed = ServerOutput((Buffer("CUDA0", "KV", 100 * MIB), Buffer("CPU", "KV", 20 * MIB)))
    assert floor_bytes(printed, SHARED, WINDOW) == 3 * GIB + 120 * MIB


@pytest.mark.parametrize(
    ("model", "held", "full"),
    [
        (DENSE, 4 * GIB + 400 * MIB, True),
        (DENSE, 4 * GIB, True),
        (DENSE, 4 * GIB - 192 * MIB, True),
        (DENSE, 4 * GIB - 192 * MIB - 1, False),
        (DENSE, 0, False),
        (MIXTURE, 3 * GIB + 300 * MIB, True),
        (MIXTURE, 2 * GIB, False),
        (THIN, 448 * MIB - 14 * MIB, True),
        (THIN, 448 * MIB - 14 * MIB + 300 * MIB, True),
        (THIN, 448 * MIB - 78 * MIB, True),
        (THIN, 448 * MIB - 79 * MIB, False),
    ],
    ids=[
        "full with context and compute",
        "exactly the floor",
        "a layer and the tolerance are missing",
        "a byte more is missing",
        "nothing on the card",
        "experts in RAM are a full offload",
        "a mixture without layers",
        "thin: a missing layer is within the tolerance",
        "thin: a missing layer hides behind the context",
        "thin: the tolerance",
        "thin: many layers are missing",
    ],
)
def test_the_bytes_on_the_card_against_the_floor(model: ModelFacts, held: int, full: bool) -> None:
    for output in (QUIET, ALL):
        assert placed(output, model, WINDOW, on(held)).full is full


def test_a_sliding_model_is_counted_as_it_is_allocated() -> None:
    kv = kv_bytes(SLIDING, 32_768)
    assert kv == 4 * 4096 * 32_768 + 28 * 4096 * 1536
    assert floor_bytes(QUIET, SLIDING, 32_768) == 3 * GIB + kv


def test_a_sliding_model_without_its_pattern_has_no_kv_cache_in_its_floor() -> None:
    unknown = facts(
        weights_bytes=4 * GIB, token_embedding_bytes=GIB, layers=32, kv_heads=(8,) * 32, sliding_window=1024
    )
    assert floor_bytes(QUIET, unknown, WINDOW) == 3 * GIB


def test_layers_that_share_the_kv_cache_of_earlier_ones_are_not_missed() -> None:
    assert floor_bytes(QUIET, SHARED, WINDOW) == 3 * GIB + GIB // 2
    assert placed(QUIET, SHARED, WINDOW, on(3 * GIB + GIB // 2)).full
    assert placed(QUIET, SHARED, WINDOW, on(3 * GIB)) == Placement(
        False, "by NVML it holds 3.0 GiB of the card, where all layers take at least 3.5 GiB"
    )


@pytest.mark.parametrize(
    ("model", "window", "on_card"),
    [
        (DENSE, WINDOW, None),
        (facts(token_embedding_bytes=None), WINDOW, on(0)),
        (facts(token_embedding_bytes=MIB, layers=None), WINDOW, on(0)),
    ],
    ids=["no gauge", "the embedding is unknown", "the layers are unknown"],
)
def test_without_a_signal_the_offload_is_full(model: ModelFacts, window: int, on_card: OnCard | None) -> None:
    assert placed(QUIET, model, window, on_card) == Placement(True, "")


def test_an_mla_model_is_judged_by_its_weights_alone() -> None:
    mla = facts(weights_bytes=4 * GIB, token_embedding_bytes=GIB, layers=32, kv_heads=(8,) * 32, kv_lora_rank=512)
    assert floor_bytes(QUIET, mla, WINDOW) == 3 * GIB


@pytest.mark.parametrize(
    ("usage", "size"),
    [
        (GpuUsage(4 * GIB, HEALTHY), 4 * GIB),
        (GpuUsage(4 * GIB, 90 * MIB), 4 * GIB),
        (GpuUsage(3 * GIB, HEALTHY + GIB), 4 * GIB),
        (GpuUsage(None, HEALTHY + GIB), None),
        (None, None),
    ],
    ids=["healthy", "less than healthy", "a spill", "the card is unreadable", "no reading"],
)
def test_the_windows_gauges_count_a_spill_as_if_it_were_on_the_card(usage: GpuUsage | None, size: int | None) -> None:
    found = by_gauges(usage, HEALTHY)
    assert found == (None if size is None else OnCard(size, "the GPU gauges"))


def test_a_spill_at_load_does_not_read_as_partial() -> None:
    assert placed(QUIET, DENSE, WINDOW, by_gauges(GpuUsage(3 * GIB, HEALTHY + GIB), HEALTHY)).full
    assert not placed(QUIET, DENSE, WINDOW, by_gauges(GpuUsage(3 * GIB, HEALTHY), HEALTHY)).full


def test_nvml_that_does_not_know_the_process_is_no_signal() -> None:
    assert by_nvml(None) is None
    assert by_nvml(GIB) == on(GIB)


def test_the_sentence_names_the_signal() -> None:
    by_line = placed(read_output("offloaded 20/33 layers to GPU"), DENSE, WINDOW, None)
    assert partial_sentence("big", by_line) == (
        "big is partly on the graphics card: llama-server offloaded 20 of 33 layers. Its memory brake is off until"
        " its next load, which looks again"
    )
    by_bytes = placed(QUIET, DENSE, WINDOW, by_gauges(GpuUsage(GIB, 0), HEALTHY))
    assert by_bytes.signal == "by the GPU gauges it holds 1.0 GiB of the card, where all layers take at least 4.0 GiB"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_more_on_the_card_never_turns_full_into_partial(held: int, more: int) -> None:
    before = placed(QUIET, DENSE, WINDOW, on(held))
    after = placed(QUIET, DENSE, WINDOW, on(held + more))
    assert after.full or not before.full


# --- the check after the load -----------------------------------------------------------------------------------------

NEED = GIB + 8 * MIB + 512 * MIB + 4 * GIB
"""KV and 1 KiB a token at 8,192 tokens, the CUDA context, the weights."""
MOST = int(NEED * 1.1) + 256 * MIB


@pytest.mark.parametrize(
    ("held", "said"), [(MOST - MIB, False), (MOST, False), (MOST + MIB, True), (0, False)], ids=str
)
def test_a_child_that_holds_too_much_on_its_card_is_said(held: int, said: bool) -> None:
    assert (surplus("big", DENSE, QUIET, WINDOW, on(held)) is not None) is said


def test_the_sentence_of_a_surplus_has_both_numbers() -> None:
    assert surplus("big", DENSE, QUIET, WINDOW, on(8 * GIB)) == (
        "big holds 8.0 GiB on the graphics card after its load by NVML, where its window of 8,192 tokens was sized for"
        " 5.5 GiB"
    )


@pytest.mark.parametrize(
    ("model", "window", "on_card"),
    [
        (facts(projector=Path("/models/mmproj.gguf")), WINDOW, on(1 << 40)),
        (DENSE, None, on(1 << 40)),
        (DENSE, WINDOW, None),
        (facts(kv_lora_rank=512), WINDOW, on(1 << 40)),
        (facts(heads=None, key_length=100), WINDOW, on(1 << 40)),
    ],
    ids=["projector", "window unknown", "card unknown", "MLA", "heads unknown"],
)
def test_nothing_is_said_where_the_need_is_not_known(
    model: ModelFacts, window: int | None, on_card: OnCard | None
) -> None:
    assert surplus("big", model, QUIET, window, on_card) is None


def test_without_flash_attention_the_scores_are_part_of_the_need() -> None:
    odd = facts(
        weights_bytes=4 * GIB, token_embedding_bytes=GIB, layers=32, heads=(32,) * 32, kv_heads=(8,) * 32, alibi=True
    )
    assert surplus("big", DENSE, QUIET, WINDOW, on(MOST + MIB)) is not None
    assert surplus("odd", odd, QUIET, WINDOW, on(MOST + MIB)) is None
