"""A request's JSON body: bounded in size, time and depth, and an error that names the place."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from app.endpoint.errors import ApiError
from app.endpoint.guard import check_json

PLAIN = "identity"
"""The ``Content-Encoding`` of a body that is not compressed."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Room for a few images as data URLs."""
BODY_SECONDS = 60.0
"""A client that takes longer to send it is gone or hostile."""
THREAD_BYTES = 1024 * 1024
"""A larger body is parsed in a thread: the loop belongs to the streams and the tray."""
MAX_DEPTH = 128
"""Objects and arrays inside each other. Ours: real tool schemas stay below 30, and a server's own recursion ends."""


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as an object. Raises ``ApiError``."""
    check_json(request.content_type)
    encoding = request.headers.get("content-encoding", PLAIN)
    if encoding.lower() != PLAIN:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "compression_not_supported",
            "The body is compressed. Send it without Content-Encoding.",
        )
    too_large = ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        f"The body is larger than {MAX_BODY_BYTES // (1024 * 1024)} MiB. Send less.",
    )
    if request.content_length is not None and request.content_length > MAX_BODY_BYTES:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.content.iter_any():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", f"The body did not arrive within {BODY_SECONDS:.0f} s."
        ) from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "body_broken", "The body's chunks are broken. Send it whole, with its length."
        ) from None
    raw = b"".join(parts)
    return await asyncio.to_thread(parse, raw) if size > THREAD_BYTES else parse(raw)


def parse(raw: bytes) -> dict[str, Any]:
    """JSON text to an object. Raises ``ApiError`` 400 that says where it is malformed. Pure."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _malformed(f"it is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python's own bound for the digits of a whole number
        raise _malformed("it holds a number with thousands of digits") from None
    if not isinstance(value, dict):
        raise _malformed(f"it must be an object, not {_NAMES[type(value)]}")
    if not within_depth(value, MAX_DEPTH):
        raise _too_deep()
    return value


def within_depth(value: object, depth: int) -> bool:
    """Whether no more than ``depth`` objects and arrays stand inside each other. Pure."""
    level = [value]
    for _ in range(depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return True
    return False


def encode(body: Mapping[str, Any]) -> bytes:
    """The JSON text for a child. Raises ``ApiError`` 400 for a text that UTF-8 cannot hold. Pure."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise _malformed("it holds half of a surrogate pair; send whole characters") from None


_NAMES = {list: "an array", str: "a text", int: "a number", float: "a number", bool: "true or false"}
_NAMES[type(None)] = "null"


def _malformed(why: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid_json", f"The body is not the JSON that is expected: {why}.")


def _too_deep() -> ApiError:
    return _malformed(f"it is nested more than {MAX_DEPTH} levels deep")


def _no_constant(name: str) -> NoReturn:
    raise _malformed(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _malformed(f"the number {text[:20]} is too large")
    return value
