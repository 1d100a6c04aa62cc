"""The models that the user keeps loaded: one live set, which every later turn reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from app import settings


class Pins:
    """Ids of the pinned models. It lives on the loop; ``tell`` hears of every change (the host acts on it at once)."""

    def __init__(self, file: Path, names: Iterable[str], tell: Callable[[str, bool], None]) -> None:
        self._file = file
        self._names = frozenset(names)
        self._tell = tell
        self._one_at_a_time = asyncio.Lock()

    @property
    def names(self) -> frozenset[str]:
        """The ids that are pinned now."""
        return self._names

    def __contains__(self, model: object) -> bool:
        return model in self._names

    def replace(self, names: Iterable[str]) -> None:
        """The settings say something else now."""
        wanted = frozenset(names)
        changed = sorted(wanted ^ self._names)
        self._names = wanted
        for name in changed:
            self._tell(name, name in wanted)

    async def set(self, model: str, pinned: bool) -> None:
        """Pin a model or no longer, from now on and after a restart.

        What was written into the settings by hand since the start counts from now on too. Raises ``SettingsError`` or
        ``HomeError``; then nothing has changed.
        """
        async with self._one_at_a_time:
            self.replace(await asyncio.to_thread(_write, self._file, model, pinned))


def _write(file: Path, model: str, pinned: bool) -> frozenset[str]:
    """Change the settings, the order of pinning kept; returns the ids that they pin now."""
    before = settings.load(file).pinned
    after = (*(name for name in before if name != model), *((model,) if pinned else ()))
    if after != before:
        settings.change(file, "pinned", after or None)
    return frozenset(after)
