"""A child's stream of a chat, turned into OpenAI's chunks: bytes in, chunks out. No I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.mlx.refusal import failed, unreadable
from app.endpoint.mlx.stop import StopCutter
from app.endpoint.stream import DONE, split_events
from app.host.model import Model

DATA = b"data: "
KEPT = ("id", "object", "created")
"""What a chunk keeps of the child's."""
Chunk = dict[str, Any]


class Ended(StrEnum):
    """How a stream ended."""

    DONE = "done"
    """The child's came to its end."""
    STOPPED = "stopped"
    """At a stop sequence: the child would go on."""


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of some bytes; after an end or an error nothing more is fed."""

    chunks: tuple[Chunk, ...] = ()
    ended: Ended | None = None
    error: ApiError | None = None


class ChatStream:
    """The translation of one answer."""

    def __init__(self, model: Model, asked: ChatAsked) -> None:
        self._model = model
        self._cutter = StopCutter(asked.stops)
        self._rest = b""
        self._begun = False
        self._frame: Chunk = {}
        self.generated = 0
        """Chunks with something generated: one a token, but for tokens that only together are a character."""
        self.usage: Mapping[str, Any] | None = None
        """The child's count, once it came."""
        self.timings: Mapping[str, Any] | None = None
        """The child's times, in the chunk of its count."""

    def feed(self, data: bytes) -> Step:
        """Translate what came."""
        events, self._rest = split_events(self._rest + data)
        chunks: list[Chunk] = []
        for event in events:
            if event == DONE:
                return Step(tuple(chunks), Ended.DONE)
            if not event.startswith(DATA):
                continue
            try:
                value = json.loads(event[len(DATA) :])
                if "error" in value:
                    return Step(tuple(chunks), error=failed(str(value["error"]), self._model))
                stopped = self._take(value, chunks)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError):
                return Step(tuple(chunks), error=unreadable())
            if stopped:
                return Step(tuple(chunks), Ended.STOPPED)
        return Step(tuple(chunks))

    def usage_chunk(self, usage: Mapping[str, Any]) -> Chunk:
        """The last chunk, for a client that asked for it."""
        timings = {} if self.timings is None else {"timings": self.timings}
        return {**self._frame, "choices": [], "usage": usage, **timings}

    def _take(self, value: Mapping[str, Any], chunks: list[Chunk]) -> bool:
        """Translate one event; whether it was cut at a stop sequence."""
        self._frame = {name: value[name] for name in KEPT} | {"model": self._model.id}
        if not value["choices"]:
            self.usage, self.timings = value["usage"], value.get("timings")
            return False
        choice = value["choices"][0]
        given, reason = choice["delta"], choice["finish_reason"]
        delta: Chunk = {}
        if reasoning := given.get("reasoning_content") or given.get("reasoning"):
            delta["reasoning_content"] = reasoning
        calls, content = given.get("tool_calls"), given.get("content")
        if not _readable(reasoning, content, calls):
            raise TypeError
        if reasoning or content or calls:
            self.generated += 1
        text, stopped = self._cutter.feed(content) if content else ("", False)
        if not stopped and (calls or reason is not None):
            text += self._cutter.rest()
        if text:
            delta["content"] = text
        if calls and not stopped:
            delta["tool_calls"] = calls
        logprobs = None if stopped else choice.get("logprobs")
        if delta or logprobs is not None:
            chunks.append(self._chunk(delta, None, logprobs))
        if stopped or reason is not None:
            chunks.append(self._chunk({}, "stop" if stopped else reason, None))
        return stopped

    def _chunk(self, delta: Chunk, reason: str | None, logprobs: Any) -> Chunk:
        role = {} if self._begun else {"role": "assistant"}
        self._begun = True
        choice = {"index": 0, "delta": {**role, **delta}, "finish_reason": reason}
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return {**self._frame, "choices": [choice]}


def _readable(reasoning: Any, content: Any, calls: Any) -> bool:
    """Whether what is new in an event has the types that it must have."""
    texts = all(text is None or isinstance(text, str) for text in (reasoning, content))
    return texts and (calls is None or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)))
