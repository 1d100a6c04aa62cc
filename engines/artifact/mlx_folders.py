"""Which folders are MLX models, and what a download left in one. Lists folders, opens no file but ``refs/main``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.artifact.mlx_hub import HUB_CACHE, MAIN, REFS, SNAPSHOTS
from engines.artifact.mlx_tokenizer import TOKENIZER_CONFIG, has_tokenizer
from engines.artifact.mlx_weights import PICKLES, SUFFIX, weight_files

CONFIG = "config.json"
INDEX_SUFFIX = ".safetensors.index.json"
PIPELINE = "model_index.json"
"""Marks a pipeline of several models that makes pictures: it and what is below it is no model for text."""
DOWNLOADS = Path(".cache", "huggingface", "download")
"""Where the hub's client keeps what it downloads into an ordinary folder."""
PARTIAL = (".incomplete", ".part", ".crdownload", ".download", ".aria2")
"""Ends of the names of unfinished downloads."""
PICKLE_MARKS = ("pytorch_model", "consolidated")
"""Begins of the names of pickled weights; other ``.bin`` files are no weights."""
REVISION_CHARACTERS = 256
"""Ours: most that is read of ``refs/main``; a revision has 40."""


@dataclass(frozen=True, slots=True)
class MlxFolder:
    """A folder that is a model, whole or broken, and its files."""

    path: Path
    files: tuple[Path, ...]
    """Everything directly in it: the weights first."""
    outside: Path | None
    """A file that is a link out of the folder that was searched."""


def mlx_folders(directory: Path) -> list[MlxFolder]:
    """Every MLX model under a folder, itself included, in the order of the paths.

    A folder that is a link is not entered. Nothing below a model's folder is looked at; of the revisions of a
    repository in the hub's cache the current one counts. ``directory`` itself may be full of links: it was named.
    """
    root = directory.resolve()
    found: list[MlxFolder] = []
    for folder, subfolders, names in os.walk(directory):
        here = Path(folder)
        if PIPELINE in names:
            subfolders.clear()
        elif is_model_folder(names, downloading=unfinished(here, names) is not None):
            subfolders.clear()
            found.append(_folder(here, names, None if here == directory else root))
        elif here.name == SNAPSHOTS and HUB_CACHE.fullmatch(here.parent.name):
            subfolders[:] = _current(here, subfolders)
        else:
            subfolders.sort()
    return sorted(found, key=lambda one: one.path.parts)


def mlx_folder(path: Path) -> MlxFolder:
    """The model in one folder that the user named, whatever is in it."""
    return _folder(path, sorted(entry.name for entry in path.iterdir() if not entry.is_dir()), None)


def belongs_to_mlx(path: Path) -> bool:
    """Whether a file that the user named stands for the MLX model that its folder is."""
    return path.name == CONFIG or path.name.endswith((SUFFIX, INDEX_SUFFIX))


def is_model_folder(names: Sequence[str], *, downloading: bool = False) -> bool:
    """Whether these files are an MLX model, or one with something missing. GGUF files make it a folder of those.

    A configuration alone is none (other programs keep thousands), nor are weights alone (pictures' models).
    """
    if any(name.lower().endswith(".gguf") for name in names):
        return False
    weights = bool(weight_files(names)) or any(name.endswith(INDEX_SUFFIX) for name in names)
    if CONFIG not in names:
        models = any(name.startswith("model") for name in weight_files(names))
        return models and (TOKENIZER_CONFIG in names or has_tokenizer(names))
    pickled = any(name.startswith(PICKLE_MARKS) and name.endswith(PICKLES) for name in names)
    return weights or pickled or downloading


def unfinished(folder: Path, names: Sequence[str]) -> str | None:
    """The name of a part that a download into this folder left; None where there is none."""
    partial = next((name for name in names if name.endswith(PARTIAL)), None)
    if partial is not None or (CONFIG not in names and not weight_files(names)):
        return partial
    places = [folder / DOWNLOADS]
    if folder.parent.name == SNAPSHOTS:
        places.append(folder.parent.parent / "blobs")
    return next((name for place in places for name in _listed(place) if name.endswith(PARTIAL)), None)


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except OSError:  # it is not there, which is the usual case
        return


def _folder(here: Path, names: Sequence[str], root: Path | None) -> MlxFolder:
    ordered = sorted(names, key=lambda name: (not name.endswith(SUFFIX), name))
    files = tuple(here / name for name in ordered)
    outside = None
    if root is not None:
        leads = (file for file in files if file.is_symlink() and not file.resolve().is_relative_to(root))
        outside = next(leads, None)
    return MlxFolder(here, files, outside)


def _current(snapshots: Path, revisions: Sequence[str]) -> list[str]:
    """The revision that ``refs/main`` names, else the newest one."""
    try:
        with (snapshots.parent / REFS / MAIN).open("r", encoding="ascii", errors="replace") as file:
            main = file.read(REVISION_CHARACTERS).strip()
    except OSError:
        main = ""
    if main in revisions:
        return [main]
    return sorted(revisions, key=lambda name: (_changed(snapshots / name), name))[-1:]


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # gone meanwhile
        return -1
