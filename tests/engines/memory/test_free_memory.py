"""The cut to what is free at a load: a table."""

from __future__ import annotations

import pytest

from engines.memory.free_memory import fitted, need_bytes
from engines.plan import Window
from tests.fixtures.facts import facts

MIB = 1 << 20
GIB = 1 << 30
PLANNED = Window(32_768, 40_960, "memory", "")
COPY = 512 * MIB
TOKEN = 114_688 + 1024


def test_what_a_load_needs() -> None:
    assert need_bytes(facts(), 32_768, COPY) == 32_768 * TOKEN + COPY + 64 * MIB
    assert need_bytes(facts(kv_lora_rank=512), 32_768, COPY) is None


@pytest.mark.parametrize(
    ("available", "window"),
    [
        (32_768 * TOKEN + COPY + 576 * MIB, 32_768),
        (32_768 * TOKEN + COPY + 576 * MIB - 1, 32_512),
        (3 * GIB, 17_920),  # less 512, 512 and 64 MiB: 2,080,374,784 B, 17,978 tokens
        (2 * GIB, 8448),  # 1,006,632,960 B, 8,699 tokens
        (1 * GIB, 4096),
        (0, 4096),
    ],
)
def test_the_window_that_fits(available: int, window: int) -> None:
    assert fitted(PLANNED, facts(), available, COPY).planned == window


def test_it_says_why_with_numbers() -> None:
    cut = fitted(PLANNED, facts(), 2 * GIB, COPY)
    assert (cut.bound_by, cut.trained) == ("free memory", 40_960)
    assert cut.reason == (
        "2.0 GiB of memory are free now, and 32,768 tokens need 4.1 GiB with 512 MiB left for the system:"
        " this load gets 8,448"
    )


@pytest.mark.parametrize("window", [4096, 1000])
def test_nothing_is_made_smaller_than_the_floor(window: int) -> None:
    small = Window(window, window, "model", "")
    assert fitted(small, facts(), 0, COPY) == small
