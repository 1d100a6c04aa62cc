"""The safetensors files of a model's folder: which they are, whether they are whole, and what they hold.

Only headers are read: eight bytes of length, then that many bytes of JSON.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifact.errors import IncompleteModel, MalformedModel, PickledWeights, TruncatedModel
from engines.artifact.mlx_files import MAX_INDEX_BYTES, opened, parse_object, read_object

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
NOT_WEIGHTS = frozenset({"adapter_model.safetensors", "adapters.safetensors", "consolidated.safetensors"})
"""Adapters, and the second copy that some publishers add; the engine leaves the latter out as well."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (``MAX_HEADER_SIZE`` of the safetensors library)."""
MAX_ELEMENTS = 2**63
LENGTH = struct.Struct("<Q")
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Of one element. A type that is not here is not checked: the engine decides."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header."""

    name: str
    dtype: str
    """As the format spells it: ``BF16``, ``F16``, ``U32`` ..."""
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Weights:
    """All files of the weights, in order."""

    files: tuple[Path, ...]
    size: int
    """Bytes on disk."""
    tensors: tuple[Tensor, ...]
    parameters: int | None = None
    """What the index declares."""


def read_weights(folder: Path, names: Sequence[str]) -> Weights:
    """The weights among ``names``, the files of the folder.

    Raises IncompleteModel where one is missing, TruncatedModel, MalformedModel, PickledWeights, UnreadableModel.
    """
    index = read_object(folder, INDEX, MAX_INDEX_BYTES) if INDEX in names else None
    files = _whole(folder, weight_files(names)) if index is None else _listed(folder, index, names)
    if not files:
        pickles = sorted(name for name in names if name.lower().endswith(PICKLES))
        if pickles:
            raise PickledWeights(folder, f"its weights are only there as {pickles[0]}, which can run programs")
        raise IncompleteModel(folder, f"no file with weights ({SUFFIX}) is there")
    tensors: list[Tensor] = []
    size = 0
    for name in files:
        found, length = _read_header(folder, name)
        tensors += found
        size += length
    if not tensors:
        raise MalformedModel(folder, "its files of weights hold none")
    return Weights(tuple(folder / name for name in files), size, tuple(tensors), _declared(index))


def weight_files(names: Sequence[str]) -> tuple[str, ...]:
    """The files that the engine loads where there is no index, in order."""
    return tuple(sorted(name for name in names if name.endswith(SUFFIX) and name not in NOT_WEIGHTS and name[0] != "."))


def parse_header(folder: Path, name: str, data: bytes, size: int) -> tuple[Tensor, ...]:
    """The tensors of one file from its header and its size in bytes. Pure.

    Raises TruncatedModel where the file is smaller than its header says, MalformedModel for any other contradiction.
    """
    tensors: list[Tensor] = []
    end = 0
    for key, entry in parse_object(folder, name, data).items():
        if key == "__metadata__":
            continue
        tensor, last = _tensor(folder, name, key, entry)
        tensors.append(tensor)
        end = max(end, last)
    needed = LENGTH.size + len(data) + end
    if size < needed:
        raise TruncatedModel(folder, f"{name} has {size:,} of {needed:,} bytes")
    if size > needed:
        raise MalformedModel(folder, f"{name} has {size - needed:,} bytes more than its header tells of")
    return tuple(tensors)


def _whole(folder: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    """The same files; raises where their names say that others belong to them."""
    for name in files:
        part = _PART.fullmatch(name)
        for number in range(1, int(part["count"]) + 1 if part else 0):
            assert part is not None
            sibling = f"{part['stem']}-{number:05}-of-{part['count']}{SUFFIX}"
            if sibling not in files:
                raise IncompleteModel(folder, f"{sibling} is missing")
    return files


def _listed(folder: Path, index: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    listed = index.get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise MalformedModel(folder, f"its {INDEX} lists no weights")
    present = frozenset(names)
    files: set[str] = set()
    for name in listed.values():
        if not isinstance(name, str) or not name.endswith(SUFFIX) or "/" in name or "\\" in name or ":" in name:
            raise MalformedModel(folder, f"its {INDEX} names something else than files of weights beside it")
        files.add(name)
    for name in sorted(files):
        if name not in present:
            raise IncompleteModel(folder, f"{name} is missing, one of its {len(files):,} files of weights")
    return tuple(sorted(files))


def _declared(index: Mapping[str, Any] | None) -> int | None:
    metadata = (index or {}).get("metadata")
    value = metadata.get("total_parameters") if isinstance(metadata, dict) else None
    return value if type(value) is int and 0 < value < MAX_ELEMENTS else None


def _read_header(folder: Path, name: str) -> tuple[tuple[Tensor, ...], int]:
    try:
        with opened(folder, name) as (file, size):
            start = file.read(LENGTH.size)
            if len(start) < LENGTH.size:
                raise TruncatedModel(folder, f"{name} has {size:,} bytes")
            (length,) = LENGTH.unpack(start)
            if length > MAX_HEADER_BYTES:
                raise MalformedModel(folder, f"{name} is no file of weights: its header would have {length:,} bytes")
            if length > size - LENGTH.size:
                raise TruncatedModel(folder, f"{name} ends within its header")
            data = file.read(length)
    except FileNotFoundError as error:  # it went away, or is a link to nothing
        raise IncompleteModel(folder, f"{name} is missing") from error
    if len(data) < length:
        raise TruncatedModel(folder, f"{name} grows shorter while it is read")
    return parse_header(folder, name, data, size), size


def _tensor(folder: Path, name: str, key: str, entry: Any) -> tuple[Tensor, int]:
    """One entry, and the byte after its data."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise MalformedModel(folder, f"an entry in the header of {name} is none of a tensor")
    tensor = Tensor(key, dtype, tuple(shape))
    begin, end = offsets
    bits = DTYPE_BITS.get(dtype)
    if tensor.elements > MAX_ELEMENTS or begin > end:
        raise MalformedModel(folder, f"an entry in the header of {name} cannot be")
    if bits is not None and tensor.elements * bits != (end - begin) * 8:
        raise MalformedModel(folder, f"an entry in the header of {name} has another size than its shape")
    return tensor, end


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one <= MAX_ELEMENTS for one in values)
