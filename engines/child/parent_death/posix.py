"""macOS and other Unix: no such signal exists; the lifeline alone ties the child to us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LifelineOnly:
    """The child ends at the end of its stdin, which the kernel closes with us."""

    def popen_options(self) -> Mapping[str, Any]:
        """A new session keeps the terminal's Ctrl-C away from the child."""
        return {"start_new_session": True}

    def adopt(self, pid: int) -> None:
        """Nothing to do."""
