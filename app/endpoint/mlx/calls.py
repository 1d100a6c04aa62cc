"""The tool calls of an answer, which come in parts. No I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


class Calls:
    """Puts them together."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Take more: of a call its name comes at first, then pieces of its arguments."""
        for delta in deltas:
            index = delta.get("index", len(self._calls))
            call = self._calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
            function = delta.get("function") or {}
            for name in ("id", "type"):
                if delta.get(name):
                    call[name] = delta[name]
            call["function"]["name"] = function.get("name") or call["function"]["name"]
            call["function"]["arguments"] += function.get("arguments") or ""

    def listed(self) -> list[dict[str, Any]]:
        """As a message has them."""
        return [self._calls[index] for index in sorted(self._calls)]

    def whole(self) -> bool:
        """Whether the arguments of all of them can be read."""
        try:
            for call in self._calls.values():
                json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            return False
        return True
