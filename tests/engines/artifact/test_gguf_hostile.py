"""The header reader on files that are broken or mean harm: one clear error, in bounded memory and time."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.artifact import gguf
from engines.artifact.errors import (
    ArtifactError,
    MalformedModel,
    ModelMissing,
    NotAModel,
    TruncatedModel,
    UnreadableModel,
    UnsupportedModel,
)
from engines.artifact.gguf import read_facts, read_header
from engines.artifact.gguf_facts import facts_from
from engines.artifact.gguf_header import Header, parse_header
from engines.artifact.stream import CHUNK_BYTES, MAX_KEPT_BYTES, MAX_READ_BYTES, MAX_STRINGS
from tests.engines.artifact.measured import CountedBytes, failure_of, traced
from tests.engines.artifact.test_gguf import EVERY_TYPE
from tests.fixtures.headers import (
    ARRAY,
    BOOL,
    F16,
    FLOAT32,
    INT32,
    STRING,
    UINT8,
    UINT32,
    Entry,
    Listed,
    Raw,
    Tensor,
    Vocabulary,
    Writer,
)

V3 = Writer()
NAME = Path("model.gguf")
PEAK_BYTES = 1024 * 1024
HUGE = (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
LATIN_1 = "Grüße".encode("latin-1")


def parse(data: bytes) -> Header:
    return parse_header(CountedBytes(data), len(data), NAME)


def with_value(kind: int, data: bytes) -> bytes:
    return V3.header({"general.architecture": "llama", "key": Raw(kind, data)})[0]


def array(element: int, count: int, data: bytes = b"") -> bytes:
    return with_value(ARRAY, V3.pack("IQ", element, count) + data)


def with_tensors(*tensors: bytes, metadata: dict[str, Entry] | None = None, data: int = 4096) -> bytes:
    entries = b"".join(V3.entry(key, value) for key, value in (metadata or {}).items())
    return V3.start(len(tensors), len(metadata or {})) + entries + b"".join(tensors) + bytes(data)


NESTED = array(ARRAY, 1, V3.pack("IQ", ARRAY, 1) * 1000)

HOSTILE: dict[str, tuple[bytes, type[ArtifactError]]] = {
    "empty": (b"", TruncatedModel),
    "half a magic": (b"GG", TruncatedModel),
    "a magic and nothing": (b"GGUF", TruncatedModel),
    "a web page": (b"<!DOCTYPE html><html>", NotAModel),
    "one wrong byte": (b"X", NotAModel),
    "the magic before GGUF": (b"ggml" + bytes(100), NotAModel),
    "the magic backwards": (b"FUGG" + bytes(100), NotAModel),
    "version 0": (b"GGUF" + bytes(100), MalformedModel),
    "version 4": (Writer(4).header({"a": 1})[0], UnsupportedModel),
    "big-endian": (Writer(order=">").header(EVERY_TYPE)[0], UnsupportedModel),
    "big-endian version 2": (Writer(2, ">").header(EVERY_TYPE)[0], UnsupportedModel),
    **{f"{count} keys": (V3.start(0, count) + bytes(100), MalformedModel) for count in HUGE},
    **{f"{count} tensors": (V3.start(count, 0) + bytes(100), MalformedModel) for count in HUGE},
    "more keys than there are": (V3.start(0, 2) + V3.entry("a", 1), TruncatedModel),
    "2**32 - 1 keys of version 1": (Writer(1).start(0, 2**32 - 1), MalformedModel),
    **{f"a key of {size} bytes": (V3.start(0, 1) + V3.pack("Q", size), MalformedModel) for size in HUGE},
    "a key of 65536 bytes": (V3.header({"k" * 65_536: 1})[0], MalformedModel),
    "an empty key": (V3.header({"": 1})[0], MalformedModel),
    "the same key twice": (V3.start(0, 2) + V3.entry("a", 1) * 2, MalformedModel),
    "a key that is no UTF-8": (V3.start(0, 1) + V3.entry(LATIN_1, 1), MalformedModel),
    "a value that is no UTF-8": (with_value(STRING, V3.text(LATIN_1)), MalformedModel),
    "a type that does not exist": (with_value(13, bytes(8)), MalformedModel),
    **{f"a text of {size} bytes": (with_value(STRING, V3.pack("Q", size)), MalformedModel) for size in HUGE},
    "a text longer than the file": (with_value(STRING, V3.pack("Q", 1000)), TruncatedModel),
    "a very long text longer than the file": (with_value(STRING, V3.pack("Q", 2**30)), TruncatedModel),
    **{f"{count} numbers": (array(FLOAT32, count), MalformedModel) for count in HUGE},
    **{f"{count} texts": (array(STRING, count), MalformedModel) for count in HUGE},
    "more numbers than the file has": (array(FLOAT32, 2**30), TruncatedModel),
    "more kept numbers than the file has": (array(FLOAT32, 4096), TruncatedModel),
    "more texts than the file has": (array(STRING, 4_000_000, V3.text("a") * 10), TruncatedModel),
    "more texts than any vocabulary": (array(STRING, MAX_STRINGS + 1, bytes(1000)), MalformedModel),
    **{
        f"a text of {size} bytes among texts": (array(STRING, 2, V3.pack("Q", size) + bytes(99)), MalformedModel)
        for size in HUGE
    },
    "a text among texts that leaves the file": (array(STRING, 1, V3.pack("Q", 1000)), TruncatedModel),
    "an array of arrays": (array(ARRAY, 1, V3.pack("IQ", UINT32, 1) + bytes(4)), MalformedModel),
    "arrays a thousand deep": (NESTED, MalformedModel),
    "an array of nothing that exists": (array(13, 0), MalformedModel),
    "an alignment of 0": (V3.header({"general.alignment": 0})[0], MalformedModel),
    "an alignment of 48": (V3.header({"general.alignment": 48})[0], MalformedModel),
    "an alignment in words": (V3.header({"general.alignment": "32"})[0], MalformedModel),
    "an alignment of no number": (V3.header({"general.alignment": Listed(INT32, (32,))})[0], MalformedModel),
    "a tensor of 5 dimensions": (with_tensors(V3.tensor("a", (1,) * 5, F16, 0)), MalformedModel),
    "a tensor of 2**32 - 1 dimensions": (with_tensors(V3.text("a") + b"\xff" * 4), MalformedModel),
    "dimensions that overflow": (with_tensors(V3.tensor("a", (2**32, 2**32), F16, 0)), MalformedModel),
    "a dimension that is negative": (with_tensors(V3.tensor("a", (2**64 - 1,), F16, 0)), MalformedModel),
    "a negative dimension beside none": (with_tensors(V3.tensor("a", (0, 2**63), F16, 0)), MalformedModel),
    "rows that are no whole blocks": (with_tensors(V3.tensor("a", (255,), 12, 0)), MalformedModel),
    "a name of 256 bytes": (with_tensors(V3.tensor("a" * 256, (1,), F16, 0)), MalformedModel),
    "a tensor's name that is no UTF-8": (with_tensors(V3.tensor(LATIN_1, (1,), F16, 0)), MalformedModel),
    "two tensors of a name": (with_tensors(*(V3.tensor("a", (0,), F16, 0) for _ in "ab")), MalformedModel),
    "data that overlaps": (with_tensors(*(V3.tensor(name, (9,), F16, 0) for name in "ab")), MalformedModel),
    "data out of place": (with_tensors(V3.tensor("a", (9,), F16, 2**63)), MalformedModel),
    "data that is not there": (with_tensors(V3.tensor("a", (10**6,), F16, 0)), TruncatedModel),
    "data of 2**63 bytes": (with_tensors(V3.tensor("a", (2**62,), F16, 0)), TruncatedModel),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_clear_error_in_bounded_memory(case: str) -> None:
    data, expected = HOSTILE[case]
    source = CountedBytes(data)

    with traced() as memory:
        error = failure_of(parse_header, source, len(data), NAME)

    assert type(error) is expected
    assert len(error.sentence) < 500
    assert memory.peak < PEAK_BYTES
    assert source.read_bytes <= len(data) + 4 * CHUNK_BYTES


def whole_file(version: int) -> bytes:
    metadata: dict[str, Entry] = {key: value for key, value in EVERY_TYPE.items() if key not in ("long text", "many")}
    head, size = Writer(version).header(
        metadata | {"tokens": Vocabulary(300)}, (Tensor("a"), Tensor("b", (256, 3), 12))
    )
    return head + bytes(size)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_cut_anywhere_is_truncated_and_nothing_else(version: int) -> None:
    data = whole_file(version)
    parse(data)
    needed = len(data) - 16  # the padding behind the last tensor is not needed: 3 rows of 144 bytes to a multiple of 32

    for end in range(0, needed, 37):
        assert type(failure_of(parse, data[:end])) is TruncatedModel, end
    parse(data[:needed])


def test_a_file_that_shrinks_while_it_is_read_is_truncated() -> None:
    data = whole_file(3)
    source = CountedBytes(data[:500])

    assert type(failure_of(parse_header, source, len(data), NAME)) is TruncatedModel


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([V3.entry(f"key {number}", "x" * 60_000) for number in range(300)], "keys and names"),
        ([V3.entry(f"key {number}", Listed(UINT8, (1,) * 4096)) for number in range(300)], "keys and names"),
        ([V3.entry(f"{number}", 1) for number in range(65_530)], "keys and names"),
    ],
    ids=["texts", "lists", "keys"],
)
def test_a_header_that_would_fill_the_memory_is_refused(entries: list[bytes], word: str) -> None:
    data = V3.start(0, len(entries)) + b"".join(entries)

    with traced() as memory:
        error = failure_of(parse, data)

    assert type(error) is MalformedModel
    assert word in error.sentence
    assert memory.peak < 2 * MAX_KEPT_BYTES


class Endless:
    """A file of 2**62 bytes: an array of texts, each a little longer than the reader's buffer."""

    start = V3.start(0, 1) + V3.text("key") + V3.pack("IIQ", ARRAY, STRING, MAX_STRINGS)

    def __init__(self) -> None:
        self.read_bytes = 0

    def seek(self, offset: int, /) -> int:
        return offset

    def read(self, size: int, /) -> bytes:
        begin = b"" if self.read_bytes else self.start
        self.read_bytes += size
        return (begin + V3.pack("Q", CHUNK_BYTES) + bytes(size))[:size]


def test_a_header_that_goes_on_for_ever_is_refused() -> None:
    source = Endless()

    error = failure_of(parse_header, source, 2**62, NAME)

    assert type(error) is MalformedModel
    assert f"{MAX_READ_BYTES >> 20} MiB" in error.sentence
    assert source.read_bytes <= MAX_READ_BYTES


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    cases: list[tuple[Path, type[ArtifactError]]] = [
        (tmp_path / "none.gguf", ModelMissing),
        (tmp_path / "none" / "none.gguf", ModelMissing),
        (tmp_path / "a\0b.gguf", ModelMissing),
        (tmp_path, NotAModel),
        (tmp_path / ("x" * 300), UnreadableModel),
    ]
    for path, expected in cases:
        assert type(failure_of(read_header, path)) is expected
        assert type(failure_of(read_facts, path)) is expected


def test_a_file_in_place_of_a_folder_is_a_missing_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"GGUF")

    assert type(failure_of(read_header, tmp_path / "file" / "model.gguf")) is ModelMissing


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes in folders")
def test_a_pipe_or_a_socket_is_no_model_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.gguf"))

        assert type(failure_of(read_header, tmp_path / "pipe.gguf")) is NotAModel
        assert type(failure_of(read_header, tmp_path / "socket.gguf")) is UnreadableModel


def test_a_link_to_nothing_and_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")

    assert type(failure_of(read_header, tmp_path / "gone.gguf")) is ModelMissing
    assert type(failure_of(read_header, tmp_path / "loop.gguf")) is UnreadableModel


def refusing(number: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_file_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = V3.write(tmp_path / "model.gguf", EVERY_TYPE)
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))

    error = failure_of(read_header, path)

    assert type(error) is UnreadableModel
    assert "Permission denied" in error.sentence


def test_a_folder_is_no_model_on_windows_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows answers the opening of a folder with "permission denied"."""
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))

    assert type(failure_of(read_header, tmp_path)) is NotAModel


def test_a_failing_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = V3.write(tmp_path / "model.gguf", EVERY_TYPE)
    monkeypatch.setattr(gguf, "parse_header", refusing(errno.EIO))

    error = failure_of(read_header, path)

    assert type(error) is UnreadableModel
    assert "Input/output error" in error.sentence


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    good = V3.write(tmp_path / "good.gguf", EVERY_TYPE)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(good.read_bytes()[:100])
    before = os.dup(0)
    os.close(before)

    for _ in range(3):
        read_header(good)
        failure_of(read_header, bad)
        failure_of(read_header, tmp_path)

    after = os.dup(0)
    os.close(after)
    assert after == before


def attempt(data: bytes) -> None:
    """No other failure than an ArtifactError gets out of here."""
    try:
        facts_from([parse(data)])
    except ArtifactError:
        return


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_any_bytes_are_facts_or_an_error(data: bytes) -> None:
    attempt(data)
    for version in (1, 2, 3):
        attempt(b"GGUF" + V3.pack("I", version) + data)


SOUND = [
    Writer(version).header(
        {
            "general.architecture": "gemma3",
            "general.file_type": 15,
            "gemma3.block_count": 2,
            "gemma3.embedding_length": 8,
            "gemma3.attention.head_count": Listed(INT32, (2, 2)),
            "gemma3.attention.sliding_window": 4,
            "gemma3.attention.sliding_window_pattern": Listed(BOOL, (True, False)),
            "tokenizer.ggml.tokens": ["a", "bc", "def"],
        },
        (Tensor("a", (4,)), Tensor("b", (2, 2))),
    )[0]
    + bytes(64)
    for version in (1, 2, 3)
]


@given(
    st.sampled_from(SOUND),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=400)
def test_any_change_of_a_sound_file_is_facts_or_an_error(data: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    for at, removed, added in edits:
        data = data[:at] + added + data[at + removed :]
    attempt(data)
