"""Opens the small files of a model's folder: bounded reads, ordinary files only, each failure an ArtifactError."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from engines.artifact.errors import MalformedModel, UnreadableModel
from engines.artifact.gguf import FLAGS

MAX_JSON_BYTES = 16 << 20
"""Ours: of a configuration. The largest seen list the quantisation of every matrix, in under 2 MiB."""
MAX_INDEX_BYTES = 64 << 20
"""Ours: of a list of weights. A model of a trillion parameters has 18 MiB."""
MAX_TEMPLATE_BYTES = 4 << 20
"""Ours: of a chat template. Real ones have tens of KiB."""


@contextmanager
def opened(folder: Path, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """One file of the folder and its size in bytes.

    Raises FileNotFoundError where it is not there, MalformedModel for what is no ordinary file, UnreadableModel.
    """
    try:
        descriptor = os.open(folder / name, FLAGS)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise MalformedModel(folder, f"its {name} is no ordinary file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                yield file, found.st_size
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableModel(folder, f"{name}: {error.strerror or type(error).__name__}") from error


def read_text(folder: Path, name: str, limit: int = MAX_TEMPLATE_BYTES) -> str | None:
    """A text file (UTF-8) of at most ``limit`` bytes; None where there is none."""
    try:
        with opened(folder, name) as (file, size):
            data = file.read(min(size, limit) + 1)  # a larger number is memory taken, whatever there is to read
    except FileNotFoundError:
        return None
    if len(data) > limit:
        raise MalformedModel(folder, f"its {name} is larger than {limit >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedModel(folder, f"its {name} is no text (byte {error.start:,})") from error


def read_object(folder: Path, name: str, limit: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """A JSON file that holds an object; None where there is none."""
    text = read_text(folder, name, limit)
    return None if text is None else parse_object(folder, name, text)


def parse_object(folder: Path, name: str, text: str | bytes) -> dict[str, Any]:
    """The object in a JSON text; raises MalformedModel for any other text."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedModel(folder, f"its {name} is no JSON (line {error.lineno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list in a list in a list ...
        raise MalformedModel(folder, f"its {name} is no JSON that can be read ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise MalformedModel(folder, f"its {name} holds no object, but {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", type(None): "nothing", bool: "a truth value"}
    return names.get(type(value), "a number")
