"""A child that holds more than it was sized for: one sentence, with both numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.memory.check import surplus
from tests.fixtures.facts import facts

MIB = 1 << 20
GIB = 1 << 30
WINDOW = 32_768
ALLOWED = (WINDOW * (114_688 + 1024) + 64 * MIB + 600_000_000) * 11 / 10 + 256 * MIB


@pytest.mark.parametrize(("held", "said"), [(int(ALLOWED), False), (int(ALLOWED) + 1, True), (GIB, False)])
def test_the_limit(held: int, said: bool) -> None:
    assert (surplus("tiny", facts(), WINDOW, held, 0) is not None) is said


def test_the_sentence_has_both_numbers() -> None:
    assert surplus("tiny", facts(), WINDOW, 9 * GIB, 0) == (
        "tiny holds 9.0 GiB after its load, where its window of 32,768 tokens was sized for 4.2 GiB at most"
    )


def test_a_copy_larger_than_the_file_is_allowed_for() -> None:
    assert surplus("tiny", facts(), WINDOW, int(ALLOWED) + 1, 670_000_000) is None


@pytest.mark.parametrize(
    ("change", "window", "held"),
    [
        ({"projector": Path("/m/mmproj.gguf")}, WINDOW, 99 * GIB),
        ({"kv_lora_rank": 512}, WINDOW, 99 * GIB),
        ({}, None, 99 * GIB),
        ({}, WINDOW, None),
    ],
)
def test_nothing_is_said_of_what_is_not_modelled(
    change: dict[str, object], window: int | None, held: int | None
) -> None:
    assert surplus("tiny", facts(**change), window, held, 0) is None
