"""What an MLX child says instead of an answer, put into our shape. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from app.endpoint.errors import ApiError, overflow
from app.endpoint.mlx.request import in_our_words
from app.endpoint.requests import place_of
from app.host.model import Model

OVERFLOW = re.compile(
    r"Request needs \d+ context tokens \((?P<prompt>\d+) prompt \+ (?P<budget>-?\d+) max generation\), "
    r"but MAX_KV_SIZE is (?P<window>\d+)\."
)
UNEXPECTED = "An unexpected error occurred: "
"""How it reports what failed while it prepared the prompt: nothing was generated yet."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """Prompt and budget exceed the window. All are tokens."""

    prompt: int
    budget: int
    window: int


def too_long(body: bytes) -> TooLong | None:
    """The numbers of a refusal for length; None for every other answer."""
    detail = _detail(body)
    found = OVERFLOW.search(detail) if isinstance(detail, str) else None
    return None if found is None else TooLong(int(found["prompt"]), int(found["budget"]), int(found["window"]))


def refused(status: int, body: bytes, model: Model) -> ApiError:
    """Any other refusal before the answer began."""
    detail = _detail(body)
    if isinstance(detail, list) and detail:
        return _invalid(detail[0])
    if not isinstance(detail, str) or not detail:
        return _failed(f"The model's server answered {status} without a word. Ask again.")
    message = in_our_words(detail, model)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and message.startswith(UNEXPECTED):
        # Seen: a template that takes no such message, media of a kind that the model does not take.
        why = message.removeprefix(UNEXPECTED)
        return ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"The model cannot take this request: {why}")
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.UNAUTHORIZED:
        return ApiError(status, "invalid_request", f"The model's server refused the request: {message}")
    return _failed(f"The model's server failed ({status}: {message}). Ask again.")


def window_changed() -> ApiError:
    """It refuses for length a budget that its own numbers left room for."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "window_changed",
        "The context window became smaller while the request was made. Ask again.",
    )


def failed(message: str, model: Model, *, in_call: bool = False) -> ApiError:
    """It failed in the middle of an answer, ``in_call`` in that of a tool call that can only be read whole."""
    found = OVERFLOW.search(message)
    if found is not None and int(found["prompt"]) >= int(found["window"]):
        return overflow(int(found["prompt"]), int(found["window"]))
    if in_call:
        return _failed(f"The answer ended in a broken tool call ({in_our_words(message, model)}). Ask again.")
    return _failed(f"The model's server failed ({in_our_words(message, model)}). Ask again.")


def unheard() -> ApiError:
    """It left out all that the model said: so it does with a tool call that it cannot read."""
    return _failed("The model answered with a tool call that its server cannot read. Ask again.")


def unreadable() -> ApiError:
    """It sent what is no event of a chat."""
    return _failed("The model's server sent an answer that cannot be read. Ask again.")


def _invalid(first: Any) -> ApiError:
    """The first of the fields that its own check refused."""
    try:
        place = place_of(tuple(first["loc"][1:]))
        why = str(first["msg"])
    except (TypeError, KeyError, AttributeError):
        place, why = "body", "its server cannot take it"
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"{place}: {why}.", place)


def _failed(sentence: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_GATEWAY, "engine_failed", sentence)


def _detail(body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document.get("detail") if isinstance(document, dict) else None
