"""Who may ask: the checks before anything else is looked at. Pure functions over headers.

A local server is reachable by every web page that the user opens; ``Host`` and ``Origin`` keep those out.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from app.endpoint.errors import ApiError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GuardRules:
    """What is allowed besides loopback. ``key`` None: nobody needs one."""

    hosts: frozenset[str] = frozenset()
    """Host names and addresses, lower case, without a port."""
    origins: frozenset[str] = frozenset()
    """Whole origins, ``https://example.org``; ``*`` allows all."""
    key: str | None = None


def host_name(header: str) -> str | None:
    """The name of a ``Host`` header or an authority, lower case, without its port; None when it is malformed."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def is_loopback(name: str) -> bool:
    """Whether a host name or address means this machine and nothing else."""
    if name in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_host(header: str | None, rules: GuardRules) -> None:
    """Refuse a ``Host`` that is neither loopback nor configured: the sign of a rebound DNS name."""
    name = host_name(header) if header else None
    if name is None or not (is_loopback(name) or name in rules.hosts):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "host_not_allowed",
            f"The host {header!r} is not allowed. Use http://127.0.0.1, or add the name to allowed_hosts.",
        )


def origin_allowed(origin: str, rules: GuardRules) -> bool:
    """Whether a browser's page from ``origin`` may ask."""
    if "*" in rules.origins or origin in rules.origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    name = host_name(parts.netloc)
    return parts.scheme in {"http", "https"} and name is not None and is_loopback(name)


def check_origin(origin: str | None, rules: GuardRules) -> None:
    """Refuse a foreign page. Programs send no ``Origin``."""
    if origin is not None and not origin_allowed(origin, rules):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "origin_not_allowed",
            f"Pages from {origin!r} may not use this endpoint. Add the origin to allowed_origins to let them.",
        )


def check_key(headers: Mapping[str, str], rules: GuardRules) -> None:
    """Compare the key, in constant time."""
    if rules.key is None:
        return
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    # Bytes of a header that are not UTF-8 arrive as surrogates.
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), rules.key.encode()):
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            "invalid_api_key",
            "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`; it is api_key in the settings.",
        )


def check_json(content_type: str) -> None:
    """JSON only: a form that a foreign page posts is never one."""
    if content_type != "application/json":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "json_only",
            f"The body is {content_type!r}. Send JSON with the header `Content-Type: application/json`.",
        )


def check_management(remote: str | None) -> None:
    """Management is for this machine only."""
    if remote is None or not is_loopback(remote.removeprefix("::ffff:")):
        raise ApiError(HTTPStatus.FORBIDDEN, "local_only", "This route answers only on the machine itself.")


def cors_headers(origin: str | None) -> dict[str, str]:
    """What lets an allowed page read the answer."""
    if origin is None:
        return {}
    return {
        "access-control-allow-origin": origin,
        "vary": "Origin",
        "access-control-expose-headers": "x-plimsoll-model, x-plimsoll-window, x-plimsoll-trained-window, "
        "x-plimsoll-notice, x-plimsoll-queue-ms, x-plimsoll-load-ms, x-plimsoll-max-tokens",
    }


def preflight_headers() -> dict[str, str]:
    """What a browser asks before it sends JSON. SDKs send headers of their own; ``*`` leaves out authorization."""
    return {
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": "*, authorization, content-type, x-api-key, last-event-id",
        "access-control-max-age": "600",
    }


def rules_from(
    *, bind: str, hosts: Iterable[str], origins: Iterable[str], key: str | None, interfaces: Iterable[str]
) -> GuardRules:
    """The rules for an endpoint bound to ``bind``: on all interfaces each of their addresses is a name of ours."""
    names = {name.lower() for name in hosts}
    if not is_loopback(bind):
        names.update(name.lower() for name in interfaces) if _is_any(bind) else names.add(bind.lower())
    return GuardRules(frozenset(names), frozenset(origins), key)


def _is_any(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_unspecified
    except ValueError:
        return False
