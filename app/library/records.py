"""One model of this machine as a value, and how its names come from its files. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.mlx_hub import HUB_CACHE, model_name

SUFFIX_DIGITS = 8
"""Hexadecimal digits that tell models of one name apart: 32 bits of their path's digest."""
RESERVED_IDS = frozenset({"auto"})
"""Names that mean something else than a model."""

_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_REPOSITORY_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model that was found, whole or broken."""

    id: str
    """Stable and safe in a URL; unique, also when case is ignored."""
    name: str
    """As its header calls it; several quantisations of one model share it."""
    path: Path
    """The file (or folder) a server is given."""
    stem: str
    """The file's name without its ending and its part number; the folder's name of an MLX model."""
    size_bytes: int
    """All parts and the projector, on disk."""
    modified: float = 0.0
    """When its first file was changed last: Unix time in seconds."""
    facts: ModelFacts | None = None
    """None when the model is broken."""
    broken: str | None = None
    """A sentence that says why it can not be used."""
    aliases: tuple[str, ...] = ()
    enabled: bool = True
    repository: str | None = None
    """``owner/name`` where the folders look like one."""
    capabilities: tuple[str, ...] = ()
    """Of ``chat``, ``embedding``, ``rerank``, ``vision``, ``tools``."""


def file_stem(path: PurePath) -> str:
    """The file's name without ``.gguf`` and part number; a folder's name as it is, of the hub's the repository's."""
    return _SPLIT.sub("", path.stem if path.suffix.lower() == ".gguf" else model_name(path))


def capabilities(facts: ModelFacts) -> tuple[str, ...]:
    """What the model can do, from its header: its kind, its projector, its chat template."""
    found = [facts.kind.value]
    if facts.kind is ModelKind.CHAT:
        if "image" in facts.modalities:
            found.append("vision")
        if facts.chat_template is not None and re.search(r"\btools\b", facts.chat_template):
            found.append("tools")
    return tuple(found)


def repository(path: PurePath, folder: PurePath) -> str | None:
    """``owner/name`` of a model by one of its files: by the hub's cache layout, or by two folders below ``folder``."""
    for part in reversed(path.parts):
        if cached := HUB_CACHE.fullmatch(part):
            return "/".join(part for part in cached.groups() if part)
    if not path.is_relative_to(folder):
        return None
    above = path.relative_to(folder).parts[:-1]
    if len(above) >= 2 and all(_REPOSITORY_PART.fullmatch(part) for part in above[:2]):
        return f"{above[0]}/{above[1]}"
    return None


def assign_ids(stems: Mapping[Path, str], former: Mapping[Path, str]) -> dict[Path, str]:
    """An id for every model, by path.

    A model keeps the id of the ``former`` scan. The others are named after their stems, in the order of their
    paths; the second of a name gets a suffix that depends on nothing but its path.
    """
    found = {path: former[path] for path in stems if path in former}
    taken = {known.casefold() for known in found.values()} | RESERVED_IDS
    for path in sorted(stems.keys() - found.keys()):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stems[path]).strip("-.") or "model"
        digest = hashlib.sha256(path.as_posix().encode(errors="surrogateescape")).hexdigest()
        candidates = (plain, *(f"{plain}-{digest[:size]}" for size in range(SUFFIX_DIGITS, len(digest) + 1)))
        chosen = next(candidate for candidate in candidates if candidate.casefold() not in taken)
        taken.add(chosen.casefold())
        found[path] = chosen
    return found
