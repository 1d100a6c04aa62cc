"""The models of this machine, as the last scan found them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.library.names import resolve
from app.library.records import ModelRecord
from app.library.scanner import ScanResult, scan


class Library:
    """Holds the records; lives on the loop, reads the disk in a thread.

    ``folders`` (the home's own and the user's) may be set anew; the next ``rescan`` takes them.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        self._found = ScanResult()
        self._one_at_a_time = asyncio.Lock()

    @property
    def records(self) -> tuple[ModelRecord, ...]:
        """All models by id, broken ones included."""
        return self._found.records

    @property
    def problems(self) -> tuple[str, ...]:
        """What the last scan could not search, as sentences."""
        return self._found.problems

    async def rescan(self) -> ScanResult:
        """Look through the folders again; the records change at once when it is done."""
        async with self._one_at_a_time:
            self._found = await asyncio.to_thread(scan, self.folders, self._found.cache)
            return self._found

    def resolve(self, name: str | None, *, loaded: Sequence[str], default: str | None) -> ModelRecord:
        """The model that ``name`` means; raises as ``names.resolve``."""
        return resolve(name, self.records, loaded=loaded, default=default)
