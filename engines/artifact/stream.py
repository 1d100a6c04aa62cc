"""Reads a header front to back through one small buffer, with a bound on everything.

Nothing is trusted: a length is checked against the file and against the bounds below before a byte is read or kept, so
that a hostile file costs a bounded amount of memory and time and ends in an ``ArtifactError``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

from engines.artifact.errors import MalformedModel, TruncatedModel

CHUNK_BYTES = 64 * 1024
"""Read at once. Ours: small enough to be nothing, large enough that a vocabulary costs under a hundred reads."""
MAX_LENGTH = 1024**3
"""Longest string in bytes and array in elements (llama.cpp gguf.cpp, GGUF_MAX_STRING_LENGTH/_ARRAY_ELEMENTS)."""
MAX_READ_BYTES = 256 * 1024**2
"""Read of one file in all. Ours: the largest header seen is about 20 MB."""
MAX_STRINGS = 4 * 1024**2
"""Strings in arrays of one file in all. Ours: a vocabulary of 262,144 with merges has under 1,000,000."""
MAX_KEPT_BYTES = 16 * 1024**2
"""Kept of one file in all, keys and values and tensors. Ours: real headers keep under 1 MB."""


class Source(Protocol):
    """What is read from: a raw file, or bytes in memory."""

    def read(self, size: int, /) -> bytes | None:
        """Up to ``size`` bytes from where it stands."""

    def seek(self, offset: int, /) -> int:
        """Stand at ``offset``."""


class HeaderStream:
    """A position in the header of one file. ``size`` is the size of the file in bytes.

    Raises TruncatedModel where the file ends too early and MalformedModel where a bound is broken; ``where`` is put
    into the message: what is being read.
    """

    def __init__(self, source: Source, size: int, path: Path) -> None:
        self.size = size
        self.path = path
        self.where = "the start"
        self._source = source
        self._buffer = b""
        self._base = 0
        self._at = 0
        self._read = 0
        self._kept = 0
        self._strings = 0
        self._length = struct.Struct("<Q")

    def use_short_lengths(self) -> None:
        """Version 1: lengths and counts have 32 bits, later 64."""
        self._length = struct.Struct("<I")

    @property
    def offset(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self._at

    def malformed(self, detail: str) -> MalformedModel:
        """An error for what was just read."""
        return MalformedModel(self.path, f"{detail} in {self.where}, near byte {self.offset:,}")

    def keep(self, size: int) -> None:
        """Count ``size`` bytes that the caller is about to keep."""
        self._kept += size
        if self._kept > MAX_KEPT_BYTES:
            raise self.malformed(f"its header holds more than {MAX_KEPT_BYTES >> 20} MiB of keys and names")

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        self._need(count)
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes without reading them."""
        self._at += count
        self._check_end()

    def unpack(self, layout: struct.Struct) -> int | float | bool:
        """The next value of a layout with one field."""
        self._need(layout.size)
        (value,) = layout.unpack_from(self._buffer, self._at)
        self._at += layout.size
        assert isinstance(value, int | float)
        return value

    def length(self) -> int:
        """The next length of a string or an array."""
        value = self.count()
        if value > MAX_LENGTH:
            raise self.malformed(f"a length of {value:,}")
        return value

    def count(self) -> int:
        """The next count or dimension, as wide as a length; the caller bounds it."""
        return int(self.unpack(self._length))

    def text(self, longest: int) -> str:
        """The next string, of at most ``longest`` bytes."""
        size = self.length()
        if size > longest:
            raise self.malformed(f"a name of {size:,} bytes")
        return self.decode(size)

    def decode(self, size: int) -> str:
        """The next ``size`` bytes as text."""
        raw = self.take(size)
        self.keep(size)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.malformed("text that is not UTF-8") from None

    def skip_strings(self, count: int) -> None:
        """Pass over the strings of an array: as their lengths stand between them, each is visited, about 0.1 µs."""
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise self.malformed(f"more than {MAX_STRINGS:,} strings")
        width, unpack = self._length.size, self._length.unpack_from
        left = count
        while left:
            self._need(width)
            buffer, at = self._buffer, self._at
            try:
                for waiting in range(left, 0, -1):
                    left = waiting
                    at += width + unpack(buffer, at)[0]
                left = 0
            except (struct.error, OverflowError):
                pass  # the next length lies behind the buffer: that is how the loop notices, a test costs a third more
            self._at = at
            if at - len(buffer) > MAX_LENGTH:
                raise self.malformed(f"a string of more than {MAX_LENGTH:,} bytes")
        self._check_end()

    def _check_end(self) -> None:
        if self.offset > self.size:
            raise self._ended()

    def _ended(self) -> TruncatedModel:
        return TruncatedModel(self.path, f"it ends at byte {self.size:,}, in the middle of {self.where}")

    def _need(self, count: int) -> None:
        """Have the next ``count`` bytes in the buffer."""
        if self._at + count <= len(self._buffer):
            return
        start = self.offset
        if start + count > self.size:
            raise self._ended()
        want = min(max(count, CHUNK_BYTES), self.size - start)
        self._read += want
        if self._read > MAX_READ_BYTES:
            raise self.malformed(f"its header goes on for more than {MAX_READ_BYTES >> 20} MiB")
        self._source.seek(start)
        parts: list[bytes] = []
        while want > 0:
            part = self._source.read(want)
            if not part:
                break
            parts.append(part)
            want -= len(part)
        self._buffer, self._base, self._at = b"".join(parts), start, 0
        if len(self._buffer) < count:
            raise self._ended()
