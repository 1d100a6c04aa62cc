"""The management routes: status, events, loading and unloading. For this machine only."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from aiohttp import web

from app.endpoint.connection import CORS
from app.endpoint.errors import from_unserved
from app.endpoint.openai import OpenAiRoutes
from app.endpoint.stream import StreamAnswer
from app.events import Event, EventBus
from app.host.host import Host
from app.host.refused import Unserved
from app.library.library import Library

EVENT_ID = re.compile(r"[0-9]{1,19}")
"""Ours have 16 digits; anything else is of nobody and resumes nothing."""


class ManagementRoutes:
    """The handlers, over the same host and library as everything else."""

    def __init__(self, host: Host, library: Library, bus: EventBus, names: OpenAiRoutes) -> None:
        self._host, self._library, self._bus, self._names = host, library, bus, names

    def routes(self) -> list[web.RouteDef]:
        """What the server adds."""
        return [
            web.get("/api/status", self.status),
            web.get("/api/events", self.events, allow_head=False),
            web.post("/api/models/rescan", self.rescan),
            web.post("/api/models/{id:.+}/load", self.load),
            web.post("/api/models/{id:.+}/unload", self.unload),
        ]

    async def status(self, request: web.Request) -> web.Response:
        """Engine, children, waiting turns and notices."""
        return web.json_response(asdict(self._host.status()))

    async def load(self, request: web.Request) -> web.Response:
        """Load a model and answer when it serves."""
        record = self._names.resolve(request.match_info["id"])
        try:
            await self._host.load(self._names.as_model(record))
        except Unserved as error:
            raise from_unserved(error) from error
        return web.json_response({"model": record.id, "state": "ready"})

    async def unload(self, request: web.Request) -> web.Response:
        """Have a model gone, after its answer."""
        record = self._names.resolve(request.match_info["id"])
        self._host.unload(record.id)
        return web.json_response({"model": record.id, "state": "stopping"})

    async def rescan(self, request: web.Request) -> web.Response:
        """Look at the model folders again."""
        await self._library.rescan()
        return web.json_response(
            {
                "models": [record.id for record in self._library.records if record.broken is None],
                "broken": {record.id: record.broken for record in self._library.records if record.broken is not None},
                "problems": list(self._library.problems),
            }
        )

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Everything that happens, as server-sent events; ``Last-Event-ID`` resumes."""
        last = request.headers.get("last-event-id", "")
        resume_after = int(last) if EVENT_ID.fullmatch(last) else None
        cors = request[CORS]
        answer = StreamAnswer(request, cors)
        with self._bus.subscribe(resume_after) as subscription:
            await answer.commit({})
            await answer.comment("events")
            try:
                async for event in subscription:
                    await answer.events(event_bytes(event))
            finally:
                answer.release()
        return await answer.finish()


def event_bytes(event: Event) -> bytes:
    """One event on the wire."""
    data: dict[str, Any] = {"at": event.at, **event.data}
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
