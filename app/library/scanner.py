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
from engines.artifact.errors import ArtifactError, LinkLeadsOut, ModelMissing, UnreadableModel
from engines.artifact.facts import ModelFacts
from engines.artifact.gguf import read_facts
from engines.artifact.mlx import read_mlx
from engines.artifact.mlx_folders import MlxFolder, belongs_to_mlx, mlx_folder, mlx_folders
from engines.artifact.picker import beside, choose, families, parts_of

log = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000
"""A second's."""
WEIGHTS = ".safetensors"
"""End of the names of an MLX model's weights."""

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
    """One model below one of the folders."""

    folder: Path
    path: Path
    """What a server is given: its first file, or the folder of an MLX model."""
    files: tuple[Path, ...]
    projector: Path | None = None
    shared: bool = False
    """Other models are in the same folder: then the projector may be one of theirs."""
    mlx: bool = False
    outside: Path | None = None
    """A file of it that is a link out of the folder."""

    @property
    def weights(self) -> tuple[Path, ...]:
        """Its files that count as its size."""
        return tuple(file for file in self.files if file.suffix == WEIGHTS) if self.mlx else self.files


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
    whole = mlx_folders(folder)
    taken = {found.path for found in whole}
    models = [model for model in models if taken.isdisjoint(model.files[0].parents)]
    company = Counter(model.files[0].parent for model in models)
    for model in models:
        shared = company[model.files[0].parent] > 1
        yield _Found(folder, model.files[0], model.files, model.projector, shared)
    for found in whole:
        yield _mlx(folder, found)


def _mlx(folder: Path, found: MlxFolder) -> _Found:
    return _Found(folder, found.path, found.files, mlx=True, outside=found.outside)


def _single(path: Path) -> _Found:
    """One file that the user named, with its other parts; where some are missing, reading it says so."""
    if belongs_to_mlx(path):
        return _mlx(path.parent, mlx_folder(path.parent))
    first = choose(path)
    try:
        files = parts_of(first)
    except ModelMissing:
        files = (path,)
    projector, shared = beside(path)
    return _Found(path.parent, files[0], files, projector, shared)


def _look(model: _Found, name: str, known: Known | None) -> Known:
    stamp = _stamp(model)
    if known is not None and known.stamp == stamp:
        return known
    try:
        return Known(stamp, name, _read(model), None)
    except UnreadableModel as error:
        return Known(None, name, None, error.sentence)
    except ArtifactError as error:
        return Known(stamp, name, None, error.sentence)
    except Exception:  # one odd file must not take the whole library away
        log.exception("reading the header of %s failed", model.path)
        return Known(stamp, name, None, f"{model.path.name} can not be read; the log says why.")


def _read(model: _Found) -> ModelFacts:
    if model.outside is not None:
        raise LinkLeadsOut(model.path, f"its {model.outside.name} is a link that leads out of {model.folder}")
    return read_mlx(model.path) if model.mlx else read_facts(model.path)


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
        size = sum(max(0, _file_stamp(file)[1]) for file in model.weights)
    else:
        size = facts.weights_bytes + facts.projector_bytes
    return ModelRecord(
        id=known.id,
        name=stem if facts is None else facts.name or stem,
        path=model.path,
        stem=stem,
        size_bytes=size,
        modified=max(0, _file_stamp(model.files[0])[2]) / NANOSECONDS,
        facts=facts,
        broken=known.broken,
        repository=repository(model.files[0], model.folder),
        capabilities=() if facts is None else capabilities(facts),
    )
