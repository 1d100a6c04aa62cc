"""The bound of a running child: sent, confirmed, or read back. The child's word counts, never ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

PATH = "/v1/settings"
KEY = "max_kv_size"
SETTINGS_SECONDS = 2.0
"""Bound of one request (specified)."""
NO_LIMIT = 0
"""What lifts the bound."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """What a child holds to after a bound was sent to it."""

    known: bool
    """False: it did not say, before or after; what held before is all there is."""
    window: int | None
    """Tokens; None is no bound. Meaningless where it is not known."""
    confirmed: bool
    """It took the bound at once."""
    problem: str = ""
    """Status or class of the exception, where the bound was not confirmed."""


def confirms(answer: object, wanted: int) -> bool:
    """Whether the answer to a PATCH says that ``wanted`` holds now; refused values come with 200 too. Pure."""
    if not isinstance(answer, Mapping):
        return False
    return _mapping(answer.get("applied")).get(KEY) == wanted and said(answer) == (True, wanted or None)


def said(answer: object) -> tuple[bool, int | None]:
    """Whether an answer tells the bound, and the bound in tokens; None is none. Pure."""
    current = _mapping(answer.get("current")) if isinstance(answer, Mapping) else {}
    if KEY not in current:
        return False, None
    value = current[KEY]
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return True, value or None
    return False, None


async def enforce(client: httpx.AsyncClient, wanted: int | None) -> Enforced:
    """Have the child hold to ``wanted`` tokens (None: to no bound). Never raises for what the child does."""
    number = NO_LIMIT if wanted is None else wanted
    try:
        answer = await client.patch(PATH, json={KEY: number}, timeout=SETTINGS_SECONDS)
        if answer.is_success and confirms(answer.json(), number):
            return Enforced(known=True, window=wanted, confirmed=True)
        problem = str(answer.status_code)
    except (httpx.HTTPError, ValueError) as error:
        problem = type(error).__name__
    return replace(await read(client), confirmed=False, problem=problem)


async def read(client: httpx.AsyncClient) -> Enforced:
    """What the child holds to. Never raises for what the child does."""
    try:
        answer = await client.get(PATH, timeout=SETTINGS_SECONDS)
        known, window = said(answer.json()) if answer.is_success else (False, None)
        problem = "" if known else str(answer.status_code)
    except (httpx.HTTPError, ValueError) as error:
        known, window, problem = False, None, type(error).__name__
    return Enforced(known, window, confirmed=known, problem=problem)


def warning(model: str, wanted: int | None, found: Enforced) -> str | None:
    """The WARNING for a bound that was not confirmed; None for one that was. Neither key nor body is in it. Pure."""
    if found.confirmed:
        return None
    asked = "no bound" if wanted is None else f"a bound of {wanted:,} tokens"
    if not found.known:
        return f"{model} did not confirm {asked} ({found.problem}), and does not say what it holds to: none is recorded"
    holds = "none" if found.window is None else f"{found.window:,} tokens"
    return f"{model} did not confirm {asked} ({found.problem}); read back, it holds to {holds}, and that is recorded"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
