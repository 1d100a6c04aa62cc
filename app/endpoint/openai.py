"""OpenAI's routes: models, chats and completions."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from app.endpoint.body import read_json
from app.endpoint.call import CHAT_PATH, COMPLETIONS_PATH
from app.endpoint.calls import chat_call
from app.endpoint.connection import CORS
from app.endpoint.errors import ApiError, from_library
from app.endpoint.mlx.request import CONVERSATION_HEADER
from app.endpoint.relay import Relay
from app.endpoint.requests import ChatRequest, Common, CompletionRequest, check, check_media
from app.host.host import Host
from app.host.model import Model
from app.host.status import ChildStatus
from app.library.library import Library
from app.library.names import ModelBroken, ModelNotFound
from app.library.records import ModelRecord
from engines import EngineError
from engines.artifact.facts import ModelKind


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the user settled about models."""

    default_model: str | None = None
    pinned: Container[str] = frozenset()
    """Ids of the models to keep loaded; asked anew for every turn, since the user may change them."""


class OpenAiRoutes:
    """The handlers, over the host and the library."""

    def __init__(self, host: Host, library: Library, relay: Relay, chosen: Chosen) -> None:
        self._host, self._library, self._relay = host, library, relay
        self.chosen = chosen

    def routes(self) -> list[web.RouteDef]:
        """What the server adds."""
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{id:.+}", self.model),
            web.post(CHAT_PATH, self.chat),
            web.post(COMPLETIONS_PATH, self.completions),
        ]

    async def models(self, request: web.Request) -> web.Response:
        """Every enabled model, loaded or not."""
        children = {child.model: child for child in self._host.status().children}
        rows = [self._row(record, children.get(record.id)) for record in self._library.records if _listed(record)]
        return web.json_response({"object": "list", "data": rows})

    async def model(self, request: web.Request) -> web.Response:
        """One model, by any of its names."""
        record = self.resolve(request.match_info["id"])
        children = {child.model: child for child in self._host.status().children}
        return web.json_response(self._row(record, children.get(record.id)))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await read_json(request)
        checked = check(ChatRequest, body)
        model = self._chat_model(checked.model)
        check_media(checked.messages, frozenset(model.facts.modalities))
        return await self._answer(request, CHAT_PATH, body, checked, model)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body = await read_json(request)
        checked = check(CompletionRequest, body)
        return await self._answer(request, COMPLETIONS_PATH, body, checked, self._chat_model(checked.model))

    def resolve(self, name: str | None) -> ModelRecord:
        """The model a request means. Raises ``ApiError``."""
        try:
            return self._library.resolve(name, loaded=self._host.loaded(), default=self.chosen.default_model)
        except (ModelNotFound, ModelBroken) as error:
            raise from_library(error) from error

    def as_model(self, record: ModelRecord) -> Model:
        """A record as the host wants it. A broken one never gets here: its name does not resolve."""
        assert record.facts is not None
        return Model(record.id, record.name, record.facts, pinned=record.id in self.chosen.pinned)

    def _chat_model(self, name: str | None) -> Model:
        record = self.resolve(name)
        model = self.as_model(record)
        if model.facts.kind is not ModelKind.CHAT:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "wrong_kind_of_model",
                f"{record.name} is a model for {model.facts.kind.value} and cannot chat. "
                "GET /v1/models names those that can.",
                "model",
            )
        return model

    async def _answer(
        self, request: web.Request, path: str, body: dict[str, Any], checked: Common, model: Model
    ) -> web.StreamResponse:
        conversation = request.headers.get(CONVERSATION_HEADER)
        call = chat_call(model, path, body, stream=bool(checked.stream), conversation=conversation)
        headers = request[CORS]
        if call.stream:
            return await self._relay.stream(request, call, headers)
        return await self._relay.whole(call, headers)

    def _row(self, record: ModelRecord, child: ChildStatus | None) -> dict[str, Any]:
        planned = None
        if child is None:
            try:
                planned = self._host.plan(self.as_model(record)).window.planned
            except EngineError:
                planned = None  # no engine here: the model is still on this machine
        facts = record.facts
        return {
            "id": record.id,
            "object": "model",
            "created": int(record.modified),
            "owned_by": "plimsoll",
            "name": record.name,
            "aliases": list(record.aliases),
            "context_window": child.window.allocated or child.window.planned if child is not None else planned,
            "trained_context_window": facts.trained_window if facts is not None else None,
            "state": child.state.value if child is not None else "unloaded",
            "capabilities": list(record.capabilities),
        }


def _listed(record: ModelRecord) -> bool:
    return record.enabled and record.broken is None
