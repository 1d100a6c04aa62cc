"""Does the child serve, and is it ours?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

POLL_SECONDS = 0.05
HEALTH_SECONDS = 5.0
"""Bound of one health request."""


class Refused(Exception):
    """What answers on the port does not accept our key: it is somebody else's server."""


class NotServing(Exception):
    """The first request was not answered with a success; carries status and text."""


def control_client(port: int, key: str) -> httpx.AsyncClient:
    """A client for control calls. ``trust_env=False``: a proxy variable must not catch loopback."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"authorization": f"Bearer {key}"},
        trust_env=False,
        timeout=HEALTH_SECONDS,
    )


async def until_healthy(client: httpx.AsyncClient) -> None:
    """Poll ``/health`` until it is 200. The caller bounds it and races it against the child's death."""
    while True:
        try:
            if (await client.get("/health")).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not bound yet
        await asyncio.sleep(POLL_SECONDS)


async def first_request(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> None:
    """One small request that proves the key and warms the model. Raises ``Refused`` or ``NotServing``."""
    answer = await client.post(path, json=dict(body), timeout=None)
    if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND}:
        raise Refused(str(answer.status_code))
    if not answer.is_success:
        raise NotServing(f"{answer.status_code}: {answer.text[:500]}")
