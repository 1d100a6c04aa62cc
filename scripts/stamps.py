"""Stamps: small JSON files that say what was put somewhere, so that a second set-up has nothing to do.

A stamp that is missing, unreadable or different means: do the work again. It is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

Facts = Mapping[str, str | int]

_READ_BYTES = 1 << 20


def read(stamp: Path) -> dict[str, str | int]:
    """Return the facts in ``stamp``; none when there is no readable one."""
    try:
        found = json.loads(stamp.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str | int)}


def write(stamp: Path, facts: Facts) -> None:
    """Write ``facts`` so that no reader ever sees half of them."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    draft = stamp.with_name(stamp.name + ".new")
    draft.write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n", "utf-8")
    draft.replace(stamp)


def digest_of_files(*files: Path) -> str:
    """Return one SHA-256 (hex) over the contents of ``files``, in their order."""
    together = hashlib.sha256()
    for file in files:
        together.update(bytes.fromhex(sha256_of(file)))
    return together.hexdigest()


def sha256_of(file: Path) -> str:
    """Return the SHA-256 (hex) of a file of any size."""
    found = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(_READ_BYTES):
            found.update(block)
    return found.hexdigest()
