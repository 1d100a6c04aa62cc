"""The routes of the small workers: embeddings and reranking."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from app.endpoint.body import read_json
from app.endpoint.calls import worker_call
from app.endpoint.connection import CORS
from app.endpoint.errors import ApiError
from app.endpoint.openai import OpenAiRoutes
from app.endpoint.relay import Relay
from app.endpoint.requests import EmbeddingRequest, Request, RerankRequest, check
from app.host.host import Host
from app.host.model import Model
from app.library.library import Library
from engines.artifact.facts import ModelKind

EMBEDDINGS_PATH = "/v1/embeddings"
RERANK_PATH = "/v1/rerank"


class WorkerRoutes:
    """The handlers, over the same host and names as the chats."""

    def __init__(self, host: Host, library: Library, relay: Relay, names: OpenAiRoutes) -> None:
        self._host, self._library, self._relay, self._names = host, library, relay, names

    def routes(self) -> list[web.RouteDef]:
        """What the server adds."""
        return [web.post(EMBEDDINGS_PATH, self.embeddings), web.post(RERANK_PATH, self.rerank)]

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/embeddings."""
        return await self._answer(request, EMBEDDINGS_PATH, EmbeddingRequest, ModelKind.EMBEDDING)

    async def rerank(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/rerank."""
        return await self._answer(request, RERANK_PATH, RerankRequest, ModelKind.RERANK)

    async def _answer(
        self, request: web.Request, path: str, kind: type[Request], wanted: ModelKind
    ) -> web.StreamResponse:
        body = await read_json(request)
        model = self._worker(check(kind, body).model, wanted)
        return await self._relay.whole(worker_call(model, path, body), request[CORS])

    def _worker(self, name: str | None, wanted: ModelKind) -> Model:
        """The model that is named, or the one worker of this kind. Raises ``ApiError`` that says which can."""
        able = [r for r in self._library.records if r.facts is not None and r.facts.kind is wanted and r.broken is None]
        if not name and able:
            loaded = self._host.loaded()
            return self._names.as_model(min(able, key=lambda r: (r.id not in loaded, r.id)))
        record = self._names.resolve(name)
        model = self._names.as_model(record)
        if model.facts.kind is not wanted:
            can = ", ".join(r.id for r in able)
            hint = f"These can: {can}." if can else f"There is no {wanted.value} model on this machine: add one."
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "wrong_kind_of_model",
                f"{record.name} is a {model.facts.kind.value} model and cannot do this. {hint}",
                "model",
            )
        return model
