"""A child must not outlive us, however we end. One module per system, chosen here.

Besides this there are the lifeline (the end of the child's stdin) and the ledger (the next start sweeps).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol


class ParentDeath(Protocol):
    """How one system ties a child to its parent."""

    def popen_options(self) -> Mapping[str, Any]:
        """Keyword arguments for ``subprocess.Popen``; it must be called on the thread that lives longest."""

    def adopt(self, pid: int) -> None:
        """Tie a child that was just started. Raises ``OSError``."""


def for_this_system() -> ParentDeath:
    """The implementation for the running system."""
    if sys.platform == "win32":
        from engines.child.parent_death.windows import KillOnJobClose

        return KillOnJobClose()
    if sys.platform == "linux":
        from engines.child.parent_death.linux import DeathSignal

        return DeathSignal()
    from engines.child.parent_death.posix import LifelineOnly

    return LifelineOnly()
