"""One answer out of the chunks of a stream. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.endpoint.mlx.calls import Calls
from app.endpoint.mlx.stream import Chunk


class WholeChat:
    """Collects the chunks of ``ChatStream``."""

    def __init__(self) -> None:
        self._frame: Chunk = {}
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._logprobs: list[Any] = []
        self._reason: str | None = None

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Take more of it."""
        for chunk in chunks:
            self._frame = {name: chunk[name] for name in ("id", "created", "model")}
            for choice in chunk["choices"]:
                self._add(choice)

    def answer(self, usage: Mapping[str, Any] | None, timings: Mapping[str, Any] | None) -> dict[str, Any]:
        """The ``chat.completion``. ``usage`` is None where the tokens could not be counted."""
        message: Chunk = {"role": "assistant", "content": "".join(self._content) or None}
        if not self._calls:
            message["content"] = message["content"] or ""
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls.listed()
        choice: Chunk = {"index": 0, "message": message, "finish_reason": self._reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        counted = {"usage": usage, "timings": timings}
        return {
            **self._frame,
            "object": "chat.completion",
            "choices": [choice],
            **{name: value for name, value in counted.items() if value is not None},
        }

    def _add(self, choice: Chunk) -> None:
        delta = choice["delta"]
        self._content.append(delta.get("content", ""))
        if reasoning := delta.get("reasoning_content"):
            self._reasoning.append(reasoning)
        self._calls.add(delta.get("tool_calls", ()))
        if logprobs := choice.get("logprobs"):
            self._logprobs += logprobs.get("content") or ()
        self._reason = choice["finish_reason"] or self._reason
