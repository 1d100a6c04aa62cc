"""Finds the models in folders. Blocks on the disk: run it in a thread.

Only headers are read, and only those of files that are new or changed since the scan before.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.library.records import ModelRecord, assign_ids, capabilities, file_stem, repository
from engines.artifact.errors import ArtifactError, ModelMissing, UnreadableModel
from engines.artifact.facts import ModelFacts
from engines.artifact.gguf import read_facts
from engines.artifact.picker import beside, choose, families, parts_of

log = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000
"""A second's."""

Stamp = tuple[tuple[str, int, int] | bool, ...]
"""What a model's facts depend on: path, size (bytes) and time of change (ns) of every file, and its company."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a scan found out about one model."""

    stamp: Stamp | None
    """None where the next scan has to look again: the system refused, which says nothing about the file."""
    id: str
    facts: ModelFacts | None
    broken: str | None


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The models of all folders by id, and what the next scan may rely on."""

    records: tuple[ModelRecord, ...] = ()
    problems: tuple[str, ...] = ()
    """A sentence for every folder that could not be searched."""
    cache: Mapping[Path, Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of one model below one of the folders."""

    folder: Path
    files: tuple[Path, ...]
    projector: Path | None
    shared: bool
    """Other models are in the same folder: then the projector may be one of theirs."""

    @property
    def path(self) -> Path:
        return self.files[0]


def scan(folders: Sequence[Path], cache: Mapping[Path, Known]) -> ScanResult:
    """Look through folders (or single files) with what the scan before knew, ``{}`` for nothing.

    A model that can not be used is listed with the reason; one that two folders lead to is listed once.
    """
    problems: list[str] = []
    found: dict[str, _Found] = {}
    for folder in folders:
        try:
            for model in _search(folder):
                found.setdefault(os.path.realpath(model.path), model)
        except ModelMissing:
            problems.append(f"{folder} is not there. Connect its disk, or take it out of the models folders.")
        except (UnreadableModel, OSError) as error:
            reason = error.detail if isinstance(error, UnreadableModel) else error.strerror
            problems.append(f"{folder} can not be searched: {reason}. Make it readable for you.")
    models = {model.path: model for model in found.values()}
    stems = {path: file_stem(path) for path in models}
    ids = assign_ids(stems, {path: known.id for path, known in cache.items()})
    fresh = {path: _look(model, ids[path], cache.get(path)) for path, model in models.items()}
    records = (_record(model, stems[path], fresh[path]) for path, model in models.items())
    return ScanResult(tuple(sorted(records, key=lambda record: record.id)), tuple(problems), fresh)


def _search(folder: Path) -> Iterator[_Found]:
    if folder.is_file():
        yield _single(folder)
        return
    models = families(folder)
    company = Counter(model.files[0].parent for model in models)
    for model in models:
        yield _Found(folder, model.files, model.projector, company[model.files[0].parent] > 1)


def _single(path: Path) -> _Found:
    """One file that the user named, with its other parts; where some are missing, reading it says so."""
    first = choose(path)
    try:
        files = parts_of(first)
    except ModelMissing:
        files = (path,)
    projector, shared = beside(path)
    return _Found(path.parent, files, projector, shared)


def _look(model: _Found, name: str, known: Known | None) -> Known:
    stamp = _stamp(model)
    if known is not None and known.stamp == stamp:
        return known
    try:
        return Known(stamp, name, read_facts(model.path), None)
    except UnreadableModel as error:
        return Known(None, name, None, error.sentence)
    except ArtifactError as error:
        return Known(stamp, name, None, error.sentence)
    except Exception:  # one odd file must not take the whole library away
        log.exception("reading the header of %s failed", model.path)
        return Known(stamp, name, None, f"{model.path.name} can not be read; the log says why.")


def _stamp(model: _Found) -> Stamp:
    files = model.files if model.projector is None else (*model.files, model.projector)
    return (*(_file_stamp(file) for file in files), model.shared)


def _file_stamp(file: Path) -> tuple[str, int, int]:
    try:
        found = file.stat()
    except OSError:  # gone, or a link to nothing: reading it says so
        return str(file), -1, -1
    return str(file), found.st_size, found.st_mtime_ns


def _record(model: _Found, stem: str, known: Known) -> ModelRecord:
    facts = known.facts
    if facts is None:
        size = sum(max(0, _file_stamp(file)[1]) for file in model.files)
    else:
        size = facts.weights_bytes + facts.projector_bytes
    return ModelRecord(
        id=known.id,
        name=stem if facts is None else facts.name or stem,
        path=model.path,
        stem=stem,
        size_bytes=size,
        modified=max(0, _file_stamp(model.path)[2]) / NANOSECONDS,
        facts=facts,
        broken=known.broken,
        repository=repository(model.path, model.folder),
        capabilities=() if facts is None else capabilities(facts),
    )
