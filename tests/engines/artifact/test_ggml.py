"""Our tables of numbers against the ``gguf`` package, as far as that knows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, LlamaFileType, PoolingType

from engines.artifact.ggml import FILE_TYPES, POOLING_TYPES, TENSOR_TYPES
from engines.artifact.gguf_header import SCALARS, ValueType

REPOSITORY = Path(__file__).parents[3]
NEWER_TENSOR_TYPES = {42}
NEWER_FILE_TYPES = {41}
"""Q2_0: in llama.cpp b11434, not yet in the package."""


def test_tensor_types_are_those_of_the_package() -> None:
    theirs = {int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    ours = {number: tuple(kind) for number, kind in TENSOR_TYPES.items() if number not in NEWER_TENSOR_TYPES}

    assert ours == {number: theirs[number] for number in ours}
    assert set(theirs) <= set(TENSOR_TYPES)


def test_file_types_are_those_of_the_package() -> None:
    names = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    del names[int(LlamaFileType.GUESSED)]

    assert {number: name for number, name in FILE_TYPES.items() if number not in NEWER_FILE_TYPES} == names


def test_pooling_types_are_those_of_the_package() -> None:
    assert {int(kind): kind.name.lower() for kind in PoolingType} == POOLING_TYPES


def test_value_types_are_those_of_the_package() -> None:
    assert {kind.name: int(kind) for kind in ValueType} == {kind.name: int(kind) for kind in GGUFValueType}
    assert set(SCALARS) == set(ValueType) - {ValueType.STRING, ValueType.ARRAY}


def test_the_package_is_no_part_of_the_reader() -> None:
    """It drags numpy in, and is not in the bundle."""
    program = "import sys, engines.artifact.gguf, engines.artifact.kv; sys.exit('gguf' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=REPOSITORY).returncode == 0
