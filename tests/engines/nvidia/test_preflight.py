"""Capabilities of cards × versions of drivers: the verdict before a load."""

from __future__ import annotations

import pytest

from engines.nvidia.gpu import Gpu
from engines.nvidia.preflight import preflight

OLD_CARD, OLD_DRIVER = "CUDA_COMPUTE_CAPABILITY_TOO_LOW", "CUDA_DRIVER_TOO_OLD"
DRIVERS = ((11, 8), (12, 0), (12, 7), (12, 8), (13, 0), None)
VERDICTS = {
    (3, 0): (OLD_CARD,) * 6,
    (3, 7): (OLD_CARD,) * 6,
    (5, 0): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    (6, 1): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    (7, 5): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    (8, 0): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    (8, 6): (OLD_DRIVER, None, None, None, None, None),
    (8, 9): (OLD_DRIVER, None, None, None, None, None),
    (9, 0): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    (12, 0): (OLD_DRIVER, None, None, None, None, None),
    (12, 1): (OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, None, None, None),
    None: (None,) * 6,
}


@pytest.mark.parametrize("capability", VERDICTS)
@pytest.mark.parametrize("column", range(len(DRIVERS)))
def test_the_verdict(capability: tuple[int, int] | None, column: int) -> None:
    verdict = preflight([Gpu(0, "GPU-1", "Card", 1, capability)], DRIVERS[column])
    assert (verdict.code if verdict else None) == VERDICTS[capability][column]
    assert verdict is None or verdict.proposed_engine == "cpu"


def test_the_sentences_say_what_to_do() -> None:
    old = preflight([Gpu(0, "GPU-1", "GeForce GTX 660", 1, (3, 0))], None)
    assert old is not None
    assert old.sentence == (
        "GeForce GTX 660 has compute capability 3.0; models need 5.0 or more. Use the CPU engine instead."
    )
    driver = preflight([Gpu(0, "GPU-1", "GeForce GTX 1080", 1, (6, 1))], (12, 4))
    assert driver is not None
    assert driver.sentence == (
        "The NVIDIA driver runs CUDA 12.4; GeForce GTX 1080 needs 12.8 or more. Update the driver, or use the CPU"
        " engine instead."
    )


def test_any_card_that_the_child_sees_counts_and_no_card_is_no_verdict() -> None:
    good, bad = Gpu(0, "GPU-1", "good", 1, (8, 9)), Gpu(1, "GPU-2", "bad", 1, (3, 5))
    assert preflight([good], (12, 8)) is None
    assert preflight([good, bad], (12, 8)) is not None
    assert preflight([], (11, 0)) is None
