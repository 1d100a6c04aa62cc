"""An MLX child's words as its server sends them (mlx-vlm 0.7.10), and a child that keeps conversations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from app.endpoint.call import Call
from app.endpoint.calls import chat_call, worker_call
from app.endpoint.mlx.request import CONVERSATION_HEADER
from app.endpoint.workers import EMBEDDINGS_PATH, RERANK_PATH
from app.host.model import Model
from engines.artifact.facts import ModelKind
from engines.mlx.prefix_cache import Conversation
from tests.app.endpoint.upstream import Answer, FakeChild, sends
from tests.fixtures.facts import facts

FOLDER = Path("/models/tiny mlx")


def model(**changes: Any) -> Model:
    """One of this folder."""
    return Model("tiny", "Tiny", facts(format="mlx", files=(FOLDER / "model.safetensors",), **changes))


MODEL = model()
EMBEDDER = model(kind=ModelKind.EMBEDDING)
RANKER = model(kind=ModelKind.RERANK, architecture="bert")
USAGE = {
    "prompt_tokens": 24,
    "completion_tokens": 3,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 16},
}
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """Any event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(reason: str | None = None, logprobs: Any = None, **delta: Any) -> bytes:
    """One with a choice: every field is there, mostly null, and the role every time."""
    empty = dict.fromkeys(("content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name"))
    if "reasoning" in delta:
        delta["reasoning_content"] = delta["reasoning"]
    choice = {
        "index": 0,
        "finish_reason": reason,
        "delta": {"role": "assistant", **empty, **delta},
        "logprobs": logprobs,
    }
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": str(FOLDER),
            "choices": [choice],
            "usage": None,
            "timings": {"predicted_per_second": 9.5},
        }
    )


def usage_event(usage: dict[str, Any] | None = None) -> bytes:
    """The last one with a value."""
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": str(FOLDER),
            "choices": [],
            "usage": usage or USAGE,
            "timings": {"prompt_n": 24},
        }
    )


def says(*texts: str, reason: str = "stop") -> bytes:
    """A whole stream of these pieces of text."""
    return b"".join(chunk(content=text) for text in texts) + chunk(reason) + usage_event() + DONE


def refusal(prompt: int, budget: int, window: int) -> bytes:
    """For a prompt and a budget that exceed the window."""
    needs = f"Request needs {prompt + budget} context tokens ({prompt} prompt + {budget} max generation)"
    return json.dumps({"detail": f"{needs}, but MAX_KV_SIZE is {window}."}).encode()


def holds_to(window: int, prompt: int, stream: bytes | Sequence[bytes]) -> Answer:
    """Refuses what exceeds the window, as the real server does, and streams the rest."""
    pieces = (stream,) if isinstance(stream, bytes) else tuple(stream)

    async def answer(request: web.Request) -> web.StreamResponse:
        budget = json.loads(await request.read())["max_tokens"]
        if prompt + budget > window:
            return web.Response(status=400, body=refusal(prompt, budget, window), content_type="application/json")
        return await sends(*pieces)(request)

    return answer


def make_call(request: web.Request, body: bytes) -> Call:
    """The call as the routes make it."""
    value = json.loads(body)
    if request.path in {EMBEDDINGS_PATH, RERANK_PATH}:
        return worker_call(EMBEDDER if request.path == EMBEDDINGS_PATH else RANKER, request.path, value)
    conversation = request.headers.get(CONVERSATION_HEADER)
    return chat_call(MODEL, request.path, value, stream=value.get("stream") is True, conversation=conversation)


@dataclass
class KeepingChild(FakeChild):
    """Notes what it is told of its conversations."""

    told: list[Any] = field(default_factory=list)

    async def begin(self, conversation: Conversation) -> None:
        """As an MLX child's."""
        self.told.append(conversation)

    def ended(self, *, abandoned: bool, tokens: int | None = None) -> None:
        """As an MLX child's."""
        self.told.append((abandoned, tokens))
