"""What outlives a child: the windows of its model, and the record of an unload. Pure; in memory, gone at exit.

Three carries: a respawn keeps the live ``BrakeState`` whole (use ``Decision.state``, read nothing here); an unload
leaves a record for the next spawn of the same model; and every change of a cap or of a window that hurt is written
to the model's window memory, which every other spawn reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engines.memory.brake import REMEMBERED_SECONDS, BrakeState, Episode, WindowMemory


@dataclass(frozen=True, slots=True)
class UnloadRecord:
    """What an unload, or a respawn that failed, leaves for the next spawn of ``alias``."""

    alias: str
    cap: int | None
    hurt: int | None
    episode: Episode
    at: float

    def holds(self, now: float) -> bool:
        """Whether it still counts."""
        return now - self.at < REMEMBERED_SECONDS

    def seed(self) -> BrakeState:
        """A state that starts reduced, in the same episode, in which nothing acts any more.

        Cap and window that hurt count from the record's time: that is when they were last written.
        """
        memory = WindowMemory(
            self.cap, None if self.cap is None else self.at, self.hurt, None if self.hurt is None else self.at
        )
        return BrakeState(memory, episode=replace(self.episode, armed=False, seeded=True))


@dataclass(frozen=True, slots=True)
class BrakeMemory:
    """Everything that is remembered, by the alias of the model. Its methods return the next one."""

    windows: Mapping[str, WindowMemory] = field(default_factory=dict)
    unloads: Mapping[str, UnloadRecord] = field(default_factory=dict)

    def start(self, alias: str, now: float) -> BrakeState:
        """What a spawn of ``alias`` starts with; its ``cap`` folds into the window. Not for a brake respawn."""
        record = self.unloads.get(alias)
        if record is not None and record.holds(now):
            return record.seed()
        return BrakeState(self.windows.get(alias, WindowMemory()).at(now))

    def reloads(self, alias: str, now: float) -> bool:
        """Whether the next spawn of ``alias`` is the reload after an unload: a notice with the reason ``memory``."""
        record = self.unloads.get(alias)
        return record is not None and record.holds(now)

    def wrote(self, alias: str, state: BrakeState) -> BrakeMemory:
        """After every decision: keep the cap and the window that hurt of ``state``; neither deletes the entry."""
        others = {key: value for key, value in self.windows.items() if key != alias}
        return replace(self, windows=others if state.memory.empty else others | {alias: state.memory})

    def unloaded(self, alias: str, state: BrakeState, now: float) -> BrakeMemory:
        """The brake unloaded ``alias``, or its respawn failed: leave a record of ``state``."""
        memory = state.memory.at(now)
        record = UnloadRecord(alias, memory.cap, memory.hurt, state.pressure, now)
        return replace(self, unloads={**self.unloads, alias: record})

    def spawned(self, alias: str, *, large: bool) -> BrakeMemory:
        """A child of ``alias`` serves: its record is used up, and a large model's spawn forgets all others too."""
        kept = {} if large else {key: value for key, value in self.unloads.items() if key != alias}
        return replace(self, unloads=kept)

    def unloads_forgotten(self) -> BrakeMemory:
        """An idle child was reaped, or the application closes: records go, the windows stay."""
        return replace(self, unloads={})
