"""A child's stream of a chat, turned into OpenAI's chunks: bytes in, chunks out. No I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.mlx.calls import Calls
from app.endpoint.mlx.refusal import failed, unheard, unreadable
from app.endpoint.mlx.stop import StopCutter
from app.endpoint.stream import DONE, split_events
from app.host.model import Model

DATA = b"data: "
KEPT = ("id", "object", "created")
"""What a chunk keeps of the child's."""
ENDED_IN_CALL = "Generation ended with an incomplete tool call."
"""What it says at the end of an answer whose last call is not closed (mlx_vlm/tools/streaming.py, 0.7.10): it fails
then, and says the call's text once more, as content."""
CALLS_DIFFER = "Streamed tool arguments do not match the completed call."
"""What it says at the end of an answer that quotes another call in its thinking (the same): it takes that for one."""
SILENT_TOKENS = 6
"""An answer without a word may have so many: the marks of an empty thought, newlines, the end. A tool call has more."""
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
        self._tools = asked.tools
        self._calls = Calls()
        self._late = ""
        """Content after a call, until the next event shows that it is no unfinished call said once more."""
        self._silent: Chunk | None = None
        """The end of an answer without a word, until its tokens are known."""
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
        try:
            for event in events:
                if ended := self._event(event, chunks):
                    return Step(tuple(chunks), ended)
        except ApiError as error:
            return Step(tuple(chunks), error=error)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return Step(tuple(chunks), error=unreadable())
        return Step(tuple(chunks))

    def usage_chunk(self, usage: Mapping[str, Any]) -> Chunk:
        """The last chunk, for a client that asked for it."""
        timings = {} if self.timings is None else {"timings": self.timings}
        return {**self._frame, "choices": [], "usage": usage, **timings}

    def _event(self, event: bytes, chunks: list[Chunk]) -> Ended | None:
        """Translate one event. Raises ``ApiError``, and what reading an event that is no chat's raises."""
        if event == DONE:
            self._tell_silence(chunks)
            return Ended.DONE
        if not event.startswith(DATA):
            return None
        value = json.loads(event[len(DATA) :])
        if "error" in value:
            return self._fail(str(value["error"]), chunks)
        self._frame = {name: value[name] for name in KEPT} | {"model": self._model.id}
        stopped = self._tell_late(chunks) or self._take(value, chunks)
        return Ended.STOPPED if stopped else None

    def _fail(self, message: str, chunks: list[Chunk]) -> Ended:
        """The child's error: an answer that was cut in a call ends as any other that was cut. Raises ``ApiError``."""
        whole, reason = self._calls.whole(), None
        if self._calls and message in {ENDED_IN_CALL, CALLS_DIFFER}:
            reason = "tool_calls" if whole and message == CALLS_DIFFER else "length"
        if reason != "length" and self._tell_late(chunks):
            return Ended.STOPPED
        if reason is None:
            raise failed(message, self._model, in_call=not whole)
        self._say({}, reason, None, chunks)
        return Ended.DONE

    def _tell_late(self, chunks: list[Chunk]) -> bool:
        """Say the content that was kept back; whether it was cut at a stop sequence."""
        late, self._late = self._late, ""
        return bool(late) and self._say({"content": late}, None, None, chunks)

    def _take(self, value: Mapping[str, Any], chunks: list[Chunk]) -> bool:
        """Translate one value; whether it was cut at a stop sequence."""
        if not value["choices"]:
            self.usage, self.timings = value["usage"], value.get("timings")
            self._tell_silence(chunks)
            return False
        choice = value["choices"][0]
        given, reason = choice["delta"], choice["finish_reason"]
        said = {
            "reasoning_content": given.get("reasoning_content") or given.get("reasoning"),
            "content": given.get("content"),
            "tool_calls": given.get("tool_calls"),
        }
        said = {name: what for name, what in said.items() if what}
        if not _readable(said):
            raise TypeError
        self.generated += bool(said)
        self._calls.add(said.get("tool_calls", ()))
        if self._calls and reason is None:
            self._late = said.pop("content", "")
        return self._say(said, reason, choice.get("logprobs"), chunks)

    def _say(self, said: Chunk, reason: str | None, logprobs: Any, chunks: list[Chunk]) -> bool:
        """Append the chunks of what is new; whether it was cut at a stop sequence."""
        calls = said.get("tool_calls")
        text, stopped = self._cutter.feed(said.get("content", ""))
        if not stopped and (calls or reason is not None):
            text += self._cutter.rest()
        delta = {name: what for name, what in (said | {"content": text}).items() if what}
        if stopped:
            logprobs = None
            delta.pop("tool_calls", None)
        if delta or logprobs is not None:
            chunks.append(self._chunk(delta, None, logprobs))
        if stopped:
            chunks.append(self._chunk({}, "stop", None))
        elif reason is not None:
            last = self._chunk({}, reason, None)
            if self._tools and reason == "stop" and not self.generated:
                self._silent = last
            else:
                chunks.append(last)
        return stopped

    def _tell_silence(self, chunks: list[Chunk]) -> None:
        """End an answer without a word. Raises ``ApiError`` where its tokens say that there were words."""
        last, self._silent = self._silent, None
        if last is None:
            return
        if self.usage is not None and self.usage["completion_tokens"] > SILENT_TOKENS:
            raise unheard()
        chunks.append(last)

    def _chunk(self, delta: Chunk, reason: str | None, logprobs: Any) -> Chunk:
        role = {} if self._begun else {"role": "assistant"}
        self._begun = True
        choice = {"index": 0, "delta": {**role, **delta}, "finish_reason": reason}
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return {**self._frame, "choices": [choice]}


def _readable(said: Mapping[str, Any]) -> bool:
    """Whether what is new in an event has the types that it must have."""
    calls = said.get("tool_calls", [])
    texts = all(isinstance(said.get(name, ""), str) for name in ("reasoning_content", "content"))
    return texts and isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
