"""Which files of a folder are one model, and which model of a folder to take.

``group`` and ``pick`` are pure; ``choose``, ``parts_of``, ``beside`` and ``families`` list folders. Nothing here opens
a file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.artifact.errors import ModelMissing, UnreadableModel

log = logging.getLogger(__name__)

SUFFIX = ".gguf"
PROJECTOR_MARK = "mmproj"
"""Part of the name of every projector."""
PREFERENCE = ("q4_k_m", "q4_0", "q5_k_m", "q8_0", "f16")
"""Quantisations in the order in which a folder's model is picked; the others follow, the smallest first."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.DOTALL)
_QUANTS = tuple(re.compile(rf"(?<![a-z0-9]){quant}(?![a-z0-9_])", re.IGNORECASE) for quant in PREFERENCE)


@dataclass(frozen=True, slots=True)
class Part:
    """The name of one part of a split model, taken apart; ``number`` counts from 1."""

    stem: str
    number: int
    count: int
    suffix: str

    def name(self, number: int) -> str:
        """The file name of another part."""
        return f"{self.stem}-{number:05}-of-{self.count:05}{self.suffix}"


@dataclass(frozen=True, slots=True)
class Group:
    """The names that make one model, in the order of the parts, and their size in bytes."""

    names: tuple[str, ...]
    size: int
    missing: str | None = None
    """The name of the first part that is not there."""


@dataclass(frozen=True, slots=True)
class Family:
    """The files that make one model, in the order of the parts, and their size in bytes."""

    files: tuple[Path, ...]
    size: int
    missing: str | None
    """The name of the first part that is not there."""
    projector: Path | None
    """The only projector in the same folder."""


def part_of(name: str) -> Part | None:
    """Take the name of a part apart; None for a name that is no part."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    part = Part(match["stem"], int(match["number"]), int(match["count"]), match["suffix"])
    return part if 1 <= part.number <= part.count else None


def is_projector(name: str) -> bool:
    """Whether a file name is that of a projector."""
    return PROJECTOR_MARK in name.lower()


def is_model(name: str) -> bool:
    """Whether a file name is that of a model or a part of one. Hidden files are none: other systems' litter."""
    return name.lower().endswith(SUFFIX) and not name.startswith(".") and not is_projector(name)


def group(files: Sequence[tuple[str, int]]) -> list[Group]:
    """Put the names and sizes (bytes) of one folder's files together by model, in the order of the names."""
    groups: list[Group] = []
    splits: dict[tuple[str, int, str], dict[int, tuple[str, int]]] = {}
    for name, size in sorted(files):
        if not is_model(name):
            continue
        part = part_of(name)
        if part is None:
            groups.append(Group((name,), size))
        else:
            splits.setdefault((part.stem, part.count, part.suffix), {})[part.number] = (name, size)
    for (stem, count, suffix), parts in splits.items():
        names = tuple(parts[number][0] for number in sorted(parts))
        gap = next((number for number in range(1, count + 1) if number not in parts), None)
        missing = None if gap is None else Part(stem, gap, count, suffix).name(gap)
        groups.append(Group(names, sum(size for _, size in parts.values()), missing))
    return sorted(groups, key=lambda one: one.names)


def pick(files: Sequence[tuple[str, int]]) -> str | None:
    """The file to load of one folder's names and sizes (bytes): by quantisation, then the smallest, then by name.

    Of a split it is the first part; a split with parts missing comes last. None where there is no model.
    """
    candidates = [one for one in group(files) if _begins(one.names[0])]
    if not candidates:
        return None
    best = min(candidates, key=lambda one: (one.missing is not None, _rank(one.names[0]), one.size, one.names))
    return best.names[0]


def _begins(name: str) -> bool:
    """Whether a server can be given this file: not a later part."""
    part = part_of(name)
    return part is None or part.number == 1


def _rank(name: str) -> int:
    return next((rank for rank, quant in enumerate(_QUANTS) if quant.search(name)), len(_QUANTS))


def choose(path: Path) -> Path:
    """The file to load for a path that a user gave: of a folder its best model, of a part the first one.

    Raises ModelMissing where a folder has no model, UnreadableModel where it cannot be listed.
    """
    if path.is_dir():
        name = pick([(name, _size(path / name)) for name in _names(path)])
        if name is None:
            raise ModelMissing(path, f"the folder has no model whose name ends in {SUFFIX}")
        return path / name
    part = part_of(path.name)
    return path if part is None else path.with_name(part.name(1))


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` belongs to, by its name alone; raises ModelMissing for the first gap."""
    part = part_of(path.name)
    if part is None:
        return (path,)
    parts: list[Path] = []
    for number in range(1, part.count + 1):
        sibling = path.with_name(part.name(number))
        if not sibling.exists():
            raise ModelMissing(
                sibling, f"it is part {number} of {part.count} of a model, and all must be in {path.parent}"
            )
        parts.append(sibling)
    return tuple(parts)


def beside(path: Path) -> tuple[Path | None, bool]:
    """The only projector in the folder of a model, and whether the folder has other models too.

    Raises UnreadableModel where the folder cannot be listed.
    """
    names = _names(path.parent)
    return _lone_projector(path.parent, names), len(group([(name, 0) for name in names])) > 1


def families(directory: Path) -> list[Family]:
    """Every model under a folder, in the order of the paths.

    No link leads out of the folder: a folder that is a link is not entered, a file that is one counts only where its
    target lies under ``directory``. A subfolder that cannot be listed is one WARNING. Raises ModelMissing or
    UnreadableModel for ``directory`` itself.
    """
    if not directory.exists():
        raise ModelMissing(directory, "there is no such folder")
    _names(directory)
    root = directory.resolve()
    found: list[Family] = []
    for folder, subfolders, names in os.walk(directory, onerror=_warn):
        subfolders.sort()
        here = Path(folder)
        files = [name for name in names if _is_gguf(name) and _stays(here / name, root)]
        projector = _lone_projector(here, files)
        for one in group([(name, _size(here / name)) for name in files]):
            paths = tuple(here / name for name in one.names)
            found.append(Family(paths, one.size, one.missing, projector))
    return sorted(found, key=lambda family: family.files[0].parts)


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if _is_gguf(name)]  # noqa: PTH208
    except OSError as error:
        raise UnreadableModel(folder, f"the folder cannot be listed ({error.strerror})") from error


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def _size(path: Path) -> int:
    """Bytes; 0 for a link to nothing, which reading it then reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _stays(path: Path, root: Path) -> bool:
    """Whether a file is, through any link, under ``root``."""
    return not path.is_symlink() or path.resolve().is_relative_to(root)


def _lone_projector(folder: Path, names: Sequence[str]) -> Path | None:
    projectors = [name for name in names if is_projector(name) and not name.startswith(".")]
    return folder / projectors[0] if len(projectors) == 1 else None


def _warn(error: OSError) -> None:
    log.warning("A folder cannot be searched for models: %s (%s)", error.filename, error.strerror)
