"""Stop sequences in a text that comes piece by piece. No I/O, no clock."""

from __future__ import annotations


class StopCutter:
    """Lets through what can no longer belong to a stop sequence.

    The sequence that is complete first ends the text, the longest where several end at one place: what a server that
    looks at every token would do, however the text is cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be sent, and whether a stop sequence was met; after it nothing more is fed."""
        if not self._stops:
            return text, False
        seen = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if ends:
            self._held = ""
            return seen[: min(ends)[1]], True
        keep = max((_begun(seen, stop) for stop in self._stops), default=0)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep], False

    def rest(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
