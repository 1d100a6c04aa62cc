"""Reads GGUF files: the header of one file, and the facts of the model that it belongs to.

Both functions block on the disk, for milliseconds: call them from a thread. Every failure is an ``ArtifactError``.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

from engines.artifact.errors import ModelMissing, NotAModel, UnreadableModel
from engines.artifact.facts import ModelFacts
from engines.artifact.gguf_facts import facts_from, projector_from
from engines.artifact.gguf_header import ArrayStub, Header, TensorInfo, TextStub, Value, parse_header
from engines.artifact.picker import beside, parts_of

__all__ = ["ArrayStub", "Header", "TensorInfo", "TextStub", "Value", "read_facts", "read_header"]

FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""Bytes as they are (Windows), and no waiting for the writer of a pipe (elsewhere)."""


def read_header(path: Path) -> Header:
    """Read the header of one file: its keys and the list of its tensors, never their data.

    Raises ModelMissing, UnreadableModel, NotAModel, TruncatedModel, MalformedModel, UnsupportedModel.
    """
    try:
        descriptor = _open(path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotAModel(path, "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is no ordinary file")
            with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
                return parse_header(file, found.st_size, path)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableModel(path, error.strerror or type(error).__name__) from error


def read_facts(path: Path) -> ModelFacts:
    """Read the facts of the model that ``path`` belongs to: all its parts, and the projector beside it.

    A projector that is alone in the folder belongs to the model; where the folder has other models too, only if it was
    made for this one's width. Raises as ``read_header``, for any of these files.
    """
    headers = [read_header(part) for part in parts_of(path)]
    facts = facts_from(headers)
    lone, shared = beside(headers[0].path)
    if lone is None:
        return facts
    projector = projector_from(read_header(lone))
    if shared and projector.width != facts.embedding_length:
        return facts
    return dataclasses.replace(
        facts, projector=projector.path, projector_bytes=projector.size, modalities=projector.modalities
    )


def _open(path: Path) -> int:
    try:
        return os.open(path, FLAGS)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelMissing(path, f"{path} does not exist") from error
    except PermissionError as error:
        if path.is_dir():  # Windows opens no folders
            raise NotAModel(path, "it is a folder") from error
        raise
