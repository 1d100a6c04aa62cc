"""``CUDA_VISIBLE_DEVICES`` in all its spellings: which card a child sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.nvidia.devices import Devices, choose
from engines.nvidia.gpu import Gpu

GIB = 1 << 30
SMALL = Gpu(0, "GPU-aaaa1111-0000", "small", 8 * GIB)
LARGE = Gpu(1, "GPU-aaaa2222-0000", "large", 24 * GIB)
OTHER = Gpu(2, "GPU-bbbb3333-0000", "as large", 24 * GIB)
ALL = (SMALL, LARGE, OTHER)


def pinned(gpu: Gpu) -> Devices:
    return Devices((gpu,), gpu.uuid)


def several(value: str, *gpus: Gpu) -> Devices:
    return Devices(gpus, value, f"CUDA_VISIBLE_DEVICES names several cards ({value})")


def none(value: str) -> Devices:
    return Devices((), value, f"CUDA_VISIBLE_DEVICES names no card of this machine ({value})")


def part(value: str) -> Devices:
    return Devices((), value, f"CUDA_VISIBLE_DEVICES names a part of a card ({value})")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, pinned(LARGE)),
        ("", pinned(LARGE)),
        ("  ", pinned(LARGE)),
        (",", pinned(LARGE)),
        ("0", pinned(SMALL)),
        (" 2 ", pinned(OTHER)),
        ("0,1", several("0,1", SMALL, LARGE)),
        ("2, 0", several("2, 0", OTHER, SMALL)),
        ("1,1", pinned(LARGE)),
        ("1,GPU-aaaa2222", pinned(LARGE)),
        ("GPU-aaaa1111-0000", pinned(SMALL)),
        ("GPU-b", pinned(OTHER)),
        ("GPU-aaaa2", pinned(LARGE)),
        ("GPU-aaaa", none("GPU-aaaa")),
        ("GPU-cccc", none("GPU-cccc")),
        ("aaaa1111", none("aaaa1111")),
        ("7", none("7")),
        ("-1", none("-1")),
        ("none", none("none")),
        ("NoDevFiles", none("NoDevFiles")),
        ("0,-1,1", pinned(SMALL)),
        ("0,7,1", pinned(SMALL)),
        ("7,0", none("7,0")),
        (",0", none(",0")),
        ("1,", pinned(LARGE)),
        ("0 1", none("0 1")),
        ("²", none("²")),
        ("MIG-0a1b", part("MIG-0a1b")),
        ("MIG-GPU-aaaa1111/1/0", part("MIG-GPU-aaaa1111/1/0")),
        ("0,MIG-0a1b", part("0,MIG-0a1b")),
    ],
)
def test_what_a_child_sees(visible: str | None, devices: Devices) -> None:
    assert choose(ALL, visible) == devices


@pytest.mark.parametrize(
    ("visible", "value"), [(None, None), ("", None), ("0", "0"), ("GPU-1", "GPU-1"), ("0,1", "0,1"), ("MIG-1", "MIG-1")]
)
def test_where_no_card_can_be_read_the_user_s_value_stays_and_an_empty_one_goes(
    visible: str | None, value: str | None
) -> None:
    devices = choose((), visible)
    assert (devices.value, devices.gpu) == (value, None)
    assert devices.problem


def test_only_one_card_is_sized_for() -> None:
    assert choose(ALL, None).gpu == LARGE
    assert choose(ALL, "0,1").gpu is None
    assert choose(ALL, "9").gpu is None
    assert choose((Gpu(0, "GPU-1", "untold"), SMALL), None).gpu == SMALL


@given(st.text(alphabet="01279,- GPUMIGab", max_size=20))
def test_no_spelling_breaks_it_and_none_is_overridden(visible: str) -> None:
    devices = choose(ALL, visible)
    if devices.problem:
        assert devices.value == visible
        assert devices.gpu is None
    else:
        assert devices.gpu in ALL
        assert devices.value == devices.gpu.uuid  # type: ignore[union-attr]
