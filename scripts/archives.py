"""Unpacking wheels, zip files and tar archives without letting any entry land outside the folder meant for it."""

from __future__ import annotations

import hashlib
import shutil
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from steps import SetupError

Choose = Callable[[PurePosixPath], PurePosixPath | None]
"""From an entry's path in the archive to its path in the folder; None leaves it out."""


def entry_path(name: str) -> PurePosixPath:
    """Return an entry's name as a path that stays below where it is unpacked.

    Raises:
        SetupError: ``archive``, for an absolute path, a drive letter, a backslash or a step up.
    """
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise SetupError("archive", f"The archive holds an entry that leaves its folder ({name!r}); not unpacked.")
    return path


def unpack(archive: Path, folder: Path, choose: Choose = lambda path: path) -> list[Path]:
    """Unpack the chosen entries of a ``.whl``, ``.zip`` or ``.tar.gz`` below ``folder``; return what was written.

    All names are checked before anything is written, the ones left out too. Modes are reduced to 0755 and 0644.

    Raises:
        SetupError: ``archive``, for entries that leave the folder, are neither file, folder nor a link to a
            neighbour, or for an archive that cannot be read.
    """
    try:
        if archive.suffix in {".whl", ".zip"}:
            return _unpack_zip(archive, folder, choose)
        return _unpack_tar(archive, folder, choose)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise SetupError("archive", f"{archive.name} cannot be unpacked: {error}.") from error


def _unpack_zip(archive: Path, folder: Path, choose: Choose) -> list[Path]:
    written = []
    with zipfile.ZipFile(archive) as source:
        entries = [(entry, entry_path(entry.filename)) for entry in source.infolist() if not entry.is_dir()]
        for entry, path in entries:
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
                raise SetupError("archive", f"{archive.name} holds something that is no file: {path}.")
            if (chosen := choose(path)) is not None:
                with source.open(entry) as content:
                    written.append(_write(content, folder / entry_path(str(chosen)), mode))
    return written


def _unpack_tar(archive: Path, folder: Path, choose: Choose) -> list[Path]:
    written = []
    with tarfile.open(archive, "r:*") as source:
        entries = [(entry, entry_path(entry.name)) for entry in source.getmembers() if entry.name not in {".", "./"}]
        links: list[tuple[Path, str]] = []
        for entry, path in entries:
            if entry.isdir():
                continue
            neighbour = entry.issym() and len(entry_path(entry.linkname).parts) == 1
            if not (entry.isreg() or neighbour):
                raise SetupError("archive", f"{archive.name} holds something that is no file: {path}.")
            if (chosen := choose(path)) is None:
                continue
            target = folder / entry_path(str(chosen))
            if neighbour:
                links.append((target, entry.linkname))
            elif (content := source.extractfile(entry)) is not None:
                with content:
                    written.append(_write(content, target, entry.mode))
    for target, name in links:  # after all files: nothing is ever written through a link
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(name)
        written.append(target)
    return written


def _write(content: IO[bytes], target: Path, mode: int) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as sink:
        shutil.copyfileobj(content, sink, 1 << 20)
    target.chmod(0o755 if mode & 0o100 else 0o644)
    return target


def collapse_plan(digests: Mapping[str, str]) -> dict[str, str]:
    """From file names and their digests: which names become links, and to which name.

    Of files with the same content the longest name stays: ``libx.so`` and ``libx.so.0`` link to ``libx.so.0.2.0``.
    """
    same = defaultdict(list)
    for name, digest in digests.items():
        same[digest].append(name)
    links = {}
    for names in same.values():
        real = max(names, key=lambda name: (len(name), name))
        links.update({name: real for name in names if name != real})
    return links


def collapse_duplicates(folder: Path) -> int:
    """Turn equal files directly in ``folder`` into relative links; return the bytes saved.

    Wheels cannot hold links, so each shared library is in there under all its names.
    """
    files = [file for file in folder.iterdir() if file.is_file() and not file.is_symlink()]
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    saved = 0
    for name, real in collapse_plan(digests).items():
        saved += (folder / name).stat().st_size
        link = folder / f".{name}.link"
        link.symlink_to(real)
        link.replace(folder / name)
    return saved
