"""The layout of the Hugging Face cache: ``models--owner--name/snapshots/revision``. Pure."""

from __future__ import annotations

import re
from pathlib import PurePath

HUB_CACHE = re.compile(r"models--(?:(?P<owner>.+?)--)?(?P<name>.+)")
"""The name of a repository's folder in the cache."""
SNAPSHOTS = "snapshots"
REFS = "refs"
MAIN = "main"
"""The file below ``refs`` that holds the revision to use."""


def model_name(folder: PurePath) -> str:
    """What a model's folder is called: of a snapshot, whose own name is a digest, the repository's name."""
    if folder.parent.name == SNAPSHOTS:
        cached = HUB_CACHE.fullmatch(folder.parent.parent.name)
        if cached is not None:
            return cached["name"]
    return folder.name or str(folder)
