"""What the processor can, as each system tells it."""

from __future__ import annotations

import sys

import pytest

from engines.memory.processor import (
    AMX,
    AVX2,
    AVX512,
    DOTPROD,
    from_cpuinfo,
    from_macos,
    from_windows,
    read_features,
)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\nprocessor\t: 1\nflags\t\t: fpu avx2 avx512f\n", (AVX2,)),
        ("flags : avx2 avx512f amx_bf16 amx_tile amx_int8\n", (AMX, AVX2, AVX512)),
        ("Features\t: fp asimd asimddp i8mm\n", (DOTPROD,)),
        ("Features\t: fp asimd\n", ()),
        ("", ()),
    ],
)
def test_linux(text: str, features: tuple[str, ...]) -> None:
    assert from_cpuinfo(text) == features


def test_windows_is_asked_by_number() -> None:
    asked = []

    def present(number: int) -> bool:
        asked.append(number)
        return number == 40

    assert from_windows(present) == (AVX2,)
    assert asked == [40, 41, 43]


@pytest.mark.parametrize(
    ("answers", "features"),
    [
        ({"hw.optional.arm.FEAT_DotProd": 1}, (DOTPROD,)),
        ({"hw.optional.avx2_0": 1, "hw.optional.avx512f": 0}, (AVX2,)),
        ({}, ()),
    ],
)
def test_macos_is_asked_by_name(answers: dict[str, int], features: tuple[str, ...]) -> None:
    assert from_macos(answers.get) == features


def test_this_machine_says_the_same_twice() -> None:
    found = read_features()
    assert found == read_features()
    assert set(found) <= {AMX, AVX2, AVX512, DOTPROD}
    assert found or sys.platform not in {"linux", "win32", "darwin"}
