"""Whether a stopped child's memory is back: the table, and the bounded wait."""

from __future__ import annotations

import pytest

from engines.memory.release import NOISE_BYTES, is_back, until_back

GIB = 1 << 30


@pytest.mark.parametrize(
    ("before", "held", "now", "back"),
    [
        (4 * GIB, 2 * GIB, 6 * GIB, True),
        (4 * GIB, 2 * GIB, 5 * GIB - NOISE_BYTES, True),
        (4 * GIB, 2 * GIB, 5 * GIB - NOISE_BYTES - 1, False),
        (4 * GIB, 2 * GIB, 3 * GIB, False),
        (4 * GIB, NOISE_BYTES, 4 * GIB - 1, True),
    ],
)
def test_half_of_it_less_the_noise_has_to_be_available_again(before: int, held: int, now: int, back: bool) -> None:
    assert is_back(before, held, now) is back


async def test_it_is_waited_for() -> None:
    readings = iter([4 * GIB, 4 * GIB, 6 * GIB])
    assert await until_back(4 * GIB, 2 * GIB, read=lambda: next(readings))


async def test_the_wait_is_bounded() -> None:
    assert not await until_back(4 * GIB, 2 * GIB, seconds=0.0, read=lambda: 4 * GIB)
