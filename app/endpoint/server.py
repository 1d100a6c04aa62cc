"""The endpoint's server: routes behind the guard, on a port of ours."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from aiohttp import web

from app.endpoint import guard
from app.endpoint.connection import CORS, HEADER_SECONDS, Connection
from app.endpoint.errors import ApiError, from_fault, json_error

log = logging.getLogger(__name__)

PORTS = range(27182, 27200)
"""The first free one of these is ours unless the settings name another."""
SHUTDOWN_SECONDS = 1.0
"""How long a stop waits for answers that were told to end."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortUnavailable(Exception):
    """No port to serve on; ``sentence`` says what to do."""

    code = "port_unavailable"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on ``port``, or on the first free one of ours when it is 0. Raises ``PortUnavailable``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = (port,) if port else PORTS
    problem: OSError | None = None
    for candidate in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows: nobody may share the port behind our back
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            problem = error
            continue
        listener.setblocking(False)
        return listener
    where = f"port {port}" if port else f"ports {PORTS.start} to {PORTS.stop - 1}"
    raise PortUnavailable(
        f"The endpoint cannot use {where} on {host} ({problem.strerror if problem else 'none left'}). "
        "Close the program that has it, or set another port or host in the settings."
    )


class EndpointServer:
    """Serves until ``stop``. Make and use it on the loop."""

    def __init__(
        self,
        routes: Iterable[web.RouteDef],
        rules: guard.GuardRules,
        listener: socket.socket,
        header_seconds: float = HEADER_SECONDS,
    ) -> None:
        self._rules = rules
        self._header_seconds = header_seconds
        self._listener = listener
        self._answering: set[asyncio.Task[object]] = set()
        application = web.Application(middlewares=[self._guarded])
        application.router.add_get("/health", health)
        application.router.add_routes(routes)
        self._runner = web.AppRunner(
            application,
            handler_cancellation=True,  # a client that leaves frees its slot at once
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._listener.getsockname()[1])

    def settle(self, rules: guard.GuardRules) -> None:
        """Who may ask from now on."""
        self._rules = rules

    async def start(self) -> None:
        """Begin to serve."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, self._header_seconds), sock=self._listener
        )

    async def stop(self) -> None:
        """Take no new requests, end the answers that are being given, close every connection."""
        if self._server is not None:
            self._server.close()
        if self._answering:  # the host has told them why: they say so to their clients
            await asyncio.wait(self._answering, timeout=SHUTDOWN_SECONDS)
        for task in self._answering:
            task.cancel()
        await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begun()
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        request[CORS] = {}
        try:
            response = await self._checked(request, handler)
        except ApiError as error:
            response = json_error(error)
        except web.HTTPException as error:
            response = json_error(_routing_error(request, error))
            if "allow" in error.headers:
                response.headers["allow"] = error.headers["allow"]
        except ConnectionError:  # the client left while it was written to; nobody reads an answer
            raise
        except Exception as error:
            log.exception("%s %s failed by a fault of ours", request.method, request.path)
            response = json_error(from_fault(error))
        finally:
            self._answering.discard(task)
            connection.ended()
        if not response.prepared:
            response.headers.update(request[CORS])
        return response

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        guard.check_host(request.headers.get("host"), self._rules)
        origin = request.headers.get("origin")
        guard.check_origin(origin, self._rules)
        request[CORS] = guard.cors_headers(origin)
        if request.method == "OPTIONS":
            return web.Response(status=HTTPStatus.NO_CONTENT, headers=guard.preflight_headers())
        if request.path == "/health":
            return await handler(request)
        guard.check_key(request.headers, self._rules)
        if request.path.startswith("/api/"):
            guard.check_management(request.remote)
        return await handler(request)


async def health(request: web.Request) -> web.Response:
    """Public; needs no model."""
    return web.json_response({"status": "ok"})


def _routing_error(request: web.Request, error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPNotFound):
        return ApiError(error.status, "route_not_found", f"There is no {request.path}. The base URL ends with /v1.")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(error.status, "method_not_allowed", f"{request.path} takes {allowed}, not {request.method}.")
    return ApiError(error.status, "invalid_request", f"The request cannot be served: {error.reason}.")
