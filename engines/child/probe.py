"""Does the child serve, and is it ours? Until that is known the key of its spawn is sent to nobody."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import httpx
import psutil

POLL_SECONDS = 0.05
HEALTH_SECONDS = 5.0
"""Bound of one health request."""
TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak to this machine only, without TLS. The default reads all certificates of the system: 40 ms
during which the loop stands still, for every client that is made."""


class Refused(Exception):
    """What answers on the port is not our child, or does not accept our key."""


class NotServing(Exception):
    """The first request was not answered with a success; carries status and text."""


def control_client(port: int) -> httpx.AsyncClient:
    """A client for control calls, one connection for all of them: each costs a llama-server a thread and its memory.

    ``trust_env=False``: a proxy variable must not catch loopback. It has no key; see ``trust``.
    """
    url = f"http://127.0.0.1:{port}"
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=TRUSTS_NOBODY, timeout=HEALTH_SECONDS)


def trust(client: httpx.AsyncClient, key: str) -> None:
    """From now on the client sends the key."""
    client.headers["authorization"] = f"Bearer {key}"


async def until_ours_listens(client: httpx.AsyncClient, pid: int, port: int) -> None:
    """Wait until our child is who listens on the port. The caller bounds the wait. Raises ``Refused`` as below."""
    while True:
        ours = await asyncio.to_thread(listens, pid, port)
        if ours:
            return
        if ours is None and await _answers(client):
            return
        await asyncio.sleep(POLL_SECONDS)


async def until_healthy(client: httpx.AsyncClient) -> None:
    """Wait until a server that was trusted with its key is ready. The caller bounds the wait. Raises ``Refused``."""
    while True:
        try:
            answer = await client.get("/health", timeout=None)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.is_success:
            return
        if answer is not None and answer.status_code == httpx.codes.UNAUTHORIZED:
            raise Refused(str(answer.status_code))
        await asyncio.sleep(POLL_SECONDS)


async def until_ours_is_healthy(client: httpx.AsyncClient, pid: int, port: int) -> None:
    """Poll ``/health`` until it is 200 and our child is who listens there.

    Another program that took the port before our child may answer 200 to everything; our child then ends by itself
    when it cannot bind. The caller bounds the wait and races it against that. Raises ``Refused`` where the system
    does not tell who listens and the server answers without a key.
    """
    while True:
        if await _is_healthy(client):
            ours = await asyncio.to_thread(listens, pid, port)
            if ours is None:
                await _must_want_a_key(client)
            if ours is not False:
                return
        await asyncio.sleep(POLL_SECONDS)


def listens(pid: int, port: int) -> bool | None:
    """Whether the process or a descendant listens on a port; None where the system does not tell. Blocking."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == port for p in family for c in p.net_connections("tcp")
        )
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return None


async def first_request(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> None:
    """One small request that proves the key and warms the model. Raises ``Refused`` or ``NotServing``."""
    answer = await client.post(path, json=dict(body), timeout=None)
    if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND}:
        raise Refused(str(answer.status_code))
    if not answer.is_success:
        raise NotServing(f"{answer.status_code}: {answer.text[:500]}")


async def _is_healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False  # not bound yet


async def _answers(client: httpx.AsyncClient) -> bool:
    """Where the system does not tell who listens: a server that wants a key. Raises ``Refused`` for one that does
    not."""
    try:
        answer = await client.get("/health")
    except httpx.TransportError:
        return False  # not bound yet
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        raise Refused(f"{answer.status_code} without a key")
    return True


async def _must_want_a_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/props")
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        raise Refused(f"{answer.status_code} without a key")
