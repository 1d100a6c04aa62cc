"""Changed settings act while the application runs, as each key promises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from app.settings import Environment, Settings, SettingsError, describe, load

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""How often the file is looked at: a look is one system call."""
AT_THE_NEXT_START = frozenset(key.key for key in describe() if key.acts == "at the next start")


def acting(before: Settings, after: Settings) -> Settings:
    """What holds from now on: the new settings, but for the keys that act at the next start. Pure."""
    return after.model_copy(update={key: getattr(before, key) for key in AT_THE_NEXT_START})


class SettingsWatch:
    """Looks at the file and hands changed settings on; ``refuse`` gets the sentence for a file with a mistake."""

    def __init__(
        self,
        path: Path,
        current: Settings,
        overrides: Environment,
        apply: Callable[[Settings], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._path, self._current, self._overrides = path, current, overrides
        self._apply, self._refuse = apply, refuse
        self._stamp = self._look()

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.poll()

    async def poll(self) -> None:
        """Look once."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            found = self._overrides.over(await asyncio.to_thread(load, self._path))
        except SettingsError as error:
            self._refuse(error.sentence)
            return
        wanted = acting(self._current, found)
        if wanted != self._current:
            self._current = wanted
            log.info("changed settings act from now on")
            self._apply(wanted)

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
