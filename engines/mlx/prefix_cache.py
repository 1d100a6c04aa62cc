"""Whose conversation lies in a child's prefix cache, and what has to happen before the next turn. Pure.

One conversation at a time: what another one left would be memory that nobody counts. Only digests are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who talks, and the history so far: digests only."""

    identity: str
    messages: tuple[str, ...]

    def extends(self, other: Conversation) -> bool:
        """Whether this is the other one gone on, its history not rewritten."""
        before = len(other.messages)
        return self.identity == other.identity and self.messages[:before] == other.messages


class Before(StrEnum):
    """What has to happen before a turn."""

    NOTHING = "nothing"
    RESET = "reset"
    BARRIER = "barrier"
    """One token asked for and awaited: an abandoned stream has then ended for certain."""
    BARRIER_AND_RESET = "barrier+reset"


@dataclass(frozen=True, slots=True)
class Ownership:
    """What is known of the cache of one child."""

    owner: Conversation | None = None
    """None: a fresh child, whose cache is empty."""
    dirty: bool = False
    """A reset failed: whatever lies there is nobody's."""
    abandoned: bool = False
    """The last stream did not reach its end."""

    def before(self, conversation: Conversation) -> Before:
        """What has to happen before a turn of this conversation."""
        stays = self.owner is None or conversation.extends(self.owner)
        reset = self.dirty or not stays
        if self.abandoned:
            return Before.BARRIER_AND_RESET if reset else Before.BARRIER
        return Before.RESET if reset else Before.NOTHING

    def owned_by(self, conversation: Conversation) -> Ownership:
        """The turn begins, and all that had to happen before succeeded."""
        return Ownership(conversation)

    def failed(self, conversation: Conversation) -> Ownership:
        """A barrier or reset failed: the turn begins all the same, and the next one tries again."""
        return Ownership(conversation, dirty=True, abandoned=self.abandoned)

    def left(self) -> Ownership:
        """A stream was abandoned."""
        return replace(self, abandoned=True)

    def emptied(self) -> Ownership:
        """The cache was reset for the sake of memory: the owner stays, since what it finds is nothing."""
        return replace(self, dirty=False, abandoned=False)


def conversation_of(body: Mapping[str, Any], header_id: str | None) -> Conversation:
    """The conversation of a request: what its client calls it, else model, system prompt and first user message.

    ``header_id`` is the request's ``x-conversation-id``; ``prompt_cache_key`` in the body outranks it.
    """
    messages = body.get("messages")
    history = list(messages) if isinstance(messages, list) else []
    named = body.get("prompt_cache_key")
    if isinstance(named, str) and named:
        identity = _digest(["named", named])
    elif header_id:
        identity = _digest(["named", header_id])
    else:
        identity = _digest([body.get("model"), _first(history, ("system", "developer")), _first(history, ("user",))])
    return Conversation(identity, tuple(_digest(message) for message in history))


def _first(messages: list[Any], roles: tuple[str, ...]) -> Any:
    found = (m.get("content") for m in messages if isinstance(m, Mapping) and m.get("role") in roles)
    return next(found, None)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
