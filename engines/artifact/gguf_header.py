"""The header of a GGUF file: its keys and the list of its tensors, never their data.

Format: github.com/ggml-org/ggml docs/gguf.md; what is refused is what llama.cpp b11434 refuses (``ggml/src/gguf.cpp``),
but for two things: version 1 is read here (llama-server wants it converted), and a tensor type that is not known yet
passes. A big-endian file is refused: no machine that we run on can load it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from engines.artifact.errors import MalformedModel, NotAModel, TruncatedModel, UnsupportedModel
from engines.artifact.ggml import TENSOR_TYPES
from engines.artifact.stream import HeaderStream, Source

MAGIC = b"GGUF"
NEWEST_VERSION = 3
DEFAULT_ALIGNMENT = 32
"""Bytes the data of a tensor is aligned to, unless ``general.alignment`` says otherwise."""
MAX_KEYS = 65_536
"""Ours: real headers have under 100."""
MAX_TENSORS = 65_536
"""Ours: the largest models seen have under 3,000."""
MAX_KEY_BYTES = 65_535
"""Of the format."""
MAX_TENSOR_NAME_BYTES = 255
"""The format says 64; forks of llama.cpp allow more."""
MAX_DIMENSIONS = 4
"""Of ggml (GGML_MAX_DIMS)."""
MAX_ELEMENTS = 2**63 - 1
"""Of one tensor: ggml counts in 64 bits."""
MAX_ARRAY_KEPT = 4096
"""Numbers; a longer array is only noted. Ours: eight times what llama.cpp allows as layers (LLAMA_MAX_LAYERS)."""
MAX_TEXT_KEPT = 1024**2
"""Bytes; a longer string is only noted. Ours: chat templates have under 100 KB, whole tokenizers as JSON more."""
SHOWN = 80
"""Characters of a name that a message shows."""
ELEMENT_COST = 32
"""Bytes that one kept number costs in Python, at most."""
ENTRY_COST = 256
"""Bytes that a kept key or tensor costs in Python beside its name, about."""


class ValueType(IntEnum):
    """Types of a value, by the number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[int, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
"""The ``struct`` letter of each type of fixed size."""

LAYOUTS = {code: struct.Struct(f"<{letter}") for code, letter in SCALARS.items()}
UINT32 = LAYOUTS[ValueType.UINT32]
UINT64 = LAYOUTS[ValueType.UINT64]


@dataclass(frozen=True, slots=True)
class ArrayStub:
    """An array that was passed over: what it holds, how many of it, and where in the file its elements begin."""

    element: ValueType
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class TextStub:
    """A string that was passed over for its length in bytes, and where in the file it begins."""

    size: int
    offset: int


Value = bool | int | float | str | tuple[bool | int | float, ...] | ArrayStub | TextStub


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape (fastest dimension first), the number of its type and where its data lies."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    """Bytes from the start of the data."""
    elements: int
    size: int | None
    """Bytes; None for a type that is not known here."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the data. Sizes and offsets are bytes."""

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    """Where the data of the tensors begins."""
    file_size: int


def parse_header(source: Source, size: int, path: Path) -> Header:
    """Read the header of ``source``, a file of ``size`` bytes that errors call ``path``.

    Raises NotAModel, TruncatedModel, MalformedModel or UnsupportedModel, and whatever ``source`` raises.
    """
    stream = HeaderStream(source, size, path)
    version = _version(stream)
    tensor_count, key_count = stream.count(), stream.count()
    if key_count > MAX_KEYS or tensor_count > MAX_TENSORS:
        raise stream.malformed(f"{key_count:,} keys and {tensor_count:,} tensors")
    metadata = _metadata(stream, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment.bit_count() != 1:
        raise MalformedModel(path, "general.alignment is no power of two")
    tensors = tuple(_tensor(stream, number) for number in range(tensor_count))
    if len({tensor.name for tensor in tensors}) != tensor_count:
        raise MalformedModel(path, "two tensors have the same name")
    data_offset = -(-stream.offset // alignment) * alignment
    _check_data(path, tensors, data_offset, alignment, size)
    return Header(path, version, alignment, metadata, tensors, data_offset, size)


def _version(stream: HeaderStream) -> int:
    """Check the magic, read the version and set the stream for it."""
    start = stream.take(min(len(MAGIC), stream.size))
    if start != MAGIC[: len(start)]:
        raise NotAModel(stream.path, f"it begins with {start!r} instead of {MAGIC!r}")
    if len(start) < len(MAGIC):
        raise TruncatedModel(stream.path, f"it has {stream.size} bytes")
    version = int(stream.unpack(UINT32))
    if version == 0:
        raise stream.malformed("version 0")
    if version & 0xFFFF == 0:
        raise UnsupportedModel(stream.path, "it was written for big-endian machines")
    if version > NEWEST_VERSION:
        raise UnsupportedModel(
            stream.path, f"it has version {version} of the format, and {NEWEST_VERSION} is the newest known"
        )
    if version == 1:
        stream.use_short_lengths()
    return version


def _metadata(stream: HeaderStream, count: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for number in range(count):
        stream.where = f"key {number + 1} of {count}"
        key = stream.text(MAX_KEY_BYTES)
        if not key:
            raise stream.malformed("an empty name")
        stream.where = f"key {key[:SHOWN]!r}"
        if key in found:
            raise stream.malformed("the same name a second time")
        stream.keep(ENTRY_COST)
        found[key] = _value(stream, int(stream.unpack(UINT32)))
    return found


def _value(stream: HeaderStream, code: int) -> Value:
    layout = LAYOUTS.get(code)
    if layout is not None:
        return stream.unpack(layout)
    if code == ValueType.STRING:
        size = stream.length()
        if size <= MAX_TEXT_KEPT:
            return stream.decode(size)
        stub = TextStub(size, stream.offset)
        stream.skip(size)
        return stub
    if code == ValueType.ARRAY:
        return _array(stream)
    raise stream.malformed(f"a value of type {code}, which does not exist,")


def _array(stream: HeaderStream) -> tuple[bool | int | float, ...] | ArrayStub:
    code = int(stream.unpack(UINT32))
    count = stream.length()
    letter = SCALARS.get(code)
    if letter is None and code != ValueType.STRING:
        what = "arrays" if code == ValueType.ARRAY else f"values of type {code}, which does not exist,"
        raise stream.malformed(f"an array of {what}")
    stub = ArrayStub(ValueType(code), count, stream.offset)
    if letter is None:
        stream.skip_strings(count)
        return stub
    if count > MAX_ARRAY_KEPT:
        stream.skip(count * LAYOUTS[code].size)
        return stub
    stream.keep(count * ELEMENT_COST)
    layout = struct.Struct(f"<{count}{letter}")
    return layout.unpack(stream.take(layout.size))


def _tensor(stream: HeaderStream, number: int) -> TensorInfo:
    stream.where = f"tensor {number + 1}"
    name = stream.text(MAX_TENSOR_NAME_BYTES)
    stream.where = f"tensor {name!r}"
    stream.keep(ENTRY_COST)
    dimensions = int(stream.unpack(UINT32))
    if dimensions > MAX_DIMENSIONS:
        raise stream.malformed(f"{dimensions:,} dimensions")
    shape = tuple(stream.count() for _ in range(dimensions))
    elements = 1
    for length in shape:
        elements *= length
        if length > MAX_ELEMENTS or elements > MAX_ELEMENTS:
            raise stream.malformed("more elements than can be counted")
    code = int(stream.unpack(UINT32))
    kind = TENSOR_TYPES.get(code)
    size = None
    if kind is not None:
        if shape and shape[0] % kind.block:
            raise stream.malformed(f"rows of {shape[0]:,} values, no multiple of the {kind.block} of {kind.name},")
        size = elements // kind.block * kind.block_bytes
    return TensorInfo(name, shape, code, int(stream.unpack(UINT64)), elements, size)


def _check_data(path: Path, tensors: tuple[TensorInfo, ...], start: int, alignment: int, size: int) -> None:
    """The data of the tensors lie one after the other, and inside the file."""
    expected = 0
    for tensor in tensors:
        if tensor.offset != expected:
            raise MalformedModel(
                path, f"the data of {tensor.name!r} lies at {tensor.offset:,}, expected at {expected:,}"
            )
        if tensor.size is None:
            return
        needed = start + expected + tensor.size
        if needed > size:
            raise TruncatedModel(path, f"it has {size:,} bytes, and {tensor.name!r} alone reaches to {needed:,}")
        expected += -(-tensor.size // alignment) * alignment
