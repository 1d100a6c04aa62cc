"""A model as the host needs it: a value that the library hands down."""

from __future__ import annotations

from dataclasses import dataclass

from app.host.vocabulary import Traits
from engines.artifact.facts import ModelFacts, ModelKind

SMALL_WORKER_BYTES = 3_000_000_000
"""An embedding or rerank worker up to this size may stay beside a large model."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model that can be run. ``id`` is also what the child calls itself."""

    id: str
    name: str
    facts: ModelFacts
    pinned: bool = False

    @property
    def traits(self) -> Traits:
        """What the schedule has to know."""
        worker = self.facts.kind is not ModelKind.CHAT and self.facts.weights_bytes <= SMALL_WORKER_BYTES
        return Traits(small=worker, pinned=self.pinned)
