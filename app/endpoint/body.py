"""A request's JSON body: bounded in size and time, and an error that names the place."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, NoReturn

from aiohttp import web

from app.endpoint.errors import ApiError
from app.endpoint.guard import check_json

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Room for a few images as data URLs."""
BODY_SECONDS = 60.0
"""A client that takes longer to send it is gone or hostile."""
THREAD_BYTES = 1024 * 1024
"""A larger body is parsed in a thread: the loop belongs to the streams and the tray."""


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as an object. Raises ``ApiError``."""
    check_json(request.content_type)
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
    raw = b"".join(parts)
    return await asyncio.to_thread(parse, raw) if size > THREAD_BYTES else parse(raw)


def parse(raw: bytes) -> dict[str, Any]:
    """JSON text to an object. Raises ``ApiError`` 400 that says where it is malformed. Pure."""
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _malformed(f"it is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    if not isinstance(value, dict):
        raise _malformed(f"it must be an object, not {type(value).__name__}")
    return value


def _malformed(why: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid_json", f"The body is not the JSON that is expected: {why}.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
