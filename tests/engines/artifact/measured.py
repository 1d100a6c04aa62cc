"""Counts what a reader costs: bytes and calls of reading, and memory at the highest point."""

from __future__ import annotations

import gc
import io
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from engines.artifact.errors import ArtifactError


class CountedBytes(io.BytesIO):
    """A file in memory that counts how it is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.calls = 0
        self.read_bytes = 0
        self.furthest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.calls += 1
        self.read_bytes += len(found)
        self.furthest = max(self.furthest, self.tell())
        return found


@dataclass
class Memory:
    """Bytes at the highest point."""

    peak: int = 0


@contextmanager
def traced() -> Iterator[Memory]:
    """Measure what Python allocates inside."""
    memory = Memory()
    gc.collect()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def failure_of(call: Callable[..., object], *arguments: object) -> ArtifactError:
    """The error that a call ends with, which is a sentence for a person."""
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    error = caught.value
    assert str(error) == error.sentence
    assert error.sentence.startswith(f"{error.path.name} {error.what}: ")
    assert error.sentence.endswith(error.advice)
    return error
