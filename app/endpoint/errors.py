"""Every error that leaves the endpoint, in OpenAI's shape.

``{"error": {"message", "type", "code", "param"}}`` with a fitting status and a sentence that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from app.host.refused import Unserved
from app.library.names import ModelBroken, ModelNotFound

RETRY_AFTER_SECONDS = 5
"""What a refused client is told to wait (start value)."""
TAIL_LINES = 20
TAIL_CHARACTERS = 2000
"""How much of what a dead server printed last stands in an error."""


@dataclass(eq=False)
class ApiError(Exception):
    """One refusal. ``numbers`` stand beside the message as values, ``tail`` is what a dead server printed last."""

    status: int
    code: str
    message: str
    param: str | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    tail: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        """OpenAI's word for the kind of error."""
        if self.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return "permission_error"
        return "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"

    def body(self, *, with_status: bool = False) -> dict[str, Any]:
        """The JSON body; in a stream it carries the status that could not be sent any more."""
        error: dict[str, Any] = {"message": self.message, "type": self.type, "code": self.code, "param": self.param}
        error.update(self.numbers)
        if tail := last_lines(self.tail):
            error["tail"] = tail
        if with_status:
            error["status"] = self.status
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Headers beside the body."""
        match self.status:
            case HTTPStatus.SERVICE_UNAVAILABLE:
                return {"retry-after": str(RETRY_AFTER_SECONDS)}
            case HTTPStatus.UNAUTHORIZED:
                return {"www-authenticate": "Bearer"}
        return {}

    def event(self) -> bytes:
        """The error as the last event of a stream."""
        return b"event: error\ndata: " + json.dumps(self.body(with_status=True)).encode() + b"\n\n"


def json_error(error: ApiError) -> web.Response:
    """An error that could still be sent as a status."""
    return web.json_response(error.body(), status=error.status, headers=error.headers())


def from_fault(error: Exception) -> ApiError:
    """A fault of ours; the caller logs it."""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal_error",
        f"Plimsoll failed ({type(error).__name__}). The log says more; please report it.",
    )


def from_unserved(error: Unserved) -> ApiError:
    """The host would not serve the turn."""
    return ApiError(error.status, error.code, error.sentence, tail=error.tail)


def last_lines(tail: str) -> str:
    """The end of it, as much as an error may carry: whole lines, but for one that alone is too long. Pure."""
    lines = tail.rstrip().splitlines()[-TAIL_LINES:]
    while len(lines) > 1 and len("\n".join(lines)) > TAIL_CHARACTERS:
        del lines[0]
    return "\n".join(lines)[-TAIL_CHARACTERS:]


def from_library(error: ModelNotFound | ModelBroken) -> ApiError:
    """The model cannot be had under that name."""
    if isinstance(error, ModelBroken):
        return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, error.sentence, "model")
    return ApiError(HTTPStatus.NOT_FOUND, error.code, error.sentence, "model")


def overflow(prompt_tokens: int, window: int, reduced_from: int | None = None) -> ApiError:
    """A prompt that does not fit; ``reduced_from`` is the planned window when the brake lowered it."""
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "context_length_exceeded",
        f"The prompt has {prompt_tokens:,} tokens and the context window holds {window:,}{lowered(reduced_from)}. "
        "Shorten the prompt or choose a model with a larger window.",
        "messages",
        {"prompt_tokens": prompt_tokens, "context_window": window},
    )


def lowered(reduced_from: int | None) -> str:
    """What a sentence about a window adds when the brake lowered it."""
    return f" (lowered from {reduced_from:,} because memory ran short)" if reduced_from is not None else ""


def from_child(status: int, body: bytes, *, begun: bool = False, reduced_from: int | None = None) -> ApiError:
    """A llama-server's refusal, put right: its statuses blame itself for what the request did wrong. Pure.

    ``begun``: it had taken the request and was answering; then it is to blame indeed. ``reduced_from``: the window
    without the brake, where the brake lowered it.
    """
    try:
        error = json.loads(body)["error"]
        message = str(error["message"])
        if error.get("type") == "exceed_context_size_error":
            return overflow(int(error["n_prompt_tokens"]), int(error["n_ctx"]), reduced_from)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(
            HTTPStatus.BAD_GATEWAY, "engine_failed", f"The model's server answered {status} without a word. Ask again."
        )
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.UNAUTHORIZED:
        return ApiError(status, "invalid_request", f"The model's server refused the request: {message}")
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return ApiError(HTTPStatus.BAD_REQUEST, "not_supported", f"This model cannot do that: {message}")
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and not begun:
        # Seen: wrong types, tools that are no list, a template that takes no such message, media without a projector.
        return ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"The model cannot take this request: {message}")
    return ApiError(
        HTTPStatus.BAD_GATEWAY, "engine_failed", f"The model's server failed ({status}: {message}). Ask again."
    )
