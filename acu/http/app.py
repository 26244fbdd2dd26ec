"""Face: from an HTTP request to an answer, whatever happens on the way.

`handle` is all that the server calls. In order: name the request, find its route, decide whether the caller may come
in, read the body within its bounds and price it, call the endpoint; and whatever that raises becomes an answer in
OpenAI's error shape. When the client goes away, the server cancels `handle`; the endpoint's own `finally` closes the
run, and the request is told of with status 499.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from acu.http import (
    admin,
    chat,
    completions,
    conversations,
    data,
    embeddings,
    files,
    health,
    models,
    openapi,
    responses,
    runs,
    store_files,
    vector_stores,
)
from acu.http.audit import Hooks, Journal
from acu.http.auth import Gate, Keys, MissingScope
from acu.http.bodies import Bodies
from acu.http.errors import HttpError, translate
from acu.http.exchange import END_REASON, Exchange, Peer
from acu.http.library import LibrarySource, no_library
from acu.http.multipart import Uploads
from acu.http.route import Route, Table
from acu.http.settings import HttpSettings
from acu.http.wire.decode_cost import check_cost
from agentflow.service import Service

CLIENT_GONE = 499
LONGEST_SHOWN = 128  # characters of an unknown path


class Face:
    """The whole HTTP face of one daemon. `draining` makes every answer the last of its connection.

    `library` gives the library for files and vector stores, or raises DataUnavailable while, or where, there is none.
    """

    def __init__(
        self,
        settings: HttpSettings,
        service: Service,
        keys: Keys | None = None,
        hooks: Hooks | None = None,
        library: LibrarySource = no_library,
    ) -> None:
        self.settings = settings
        self.draining = False
        self._hooks = Hooks() if hooks is None else hooks
        self._journal = Journal(self._hooks)
        self._gate = Gate(keys, settings.allowed_hosts)
        self._bodies = Bodies(settings)
        self._service = service
        self._uploads = Uploads(settings.body_timeout_s)
        self._table = Table(_routes(service, self._hooks, library, self._uploads))

    async def handle(self, request: web.BaseRequest, peer: Peer, *, last: bool = False) -> web.StreamResponse:
        """Answer one request, the `last` of its connection or not. Raises only when the connection is gone."""
        exchange = Exchange(request, peer, closing=last or self.draining)
        try:
            return await self._answer(exchange)
        except (asyncio.CancelledError, ConnectionError):
            exchange.status = CLIENT_GONE
            exchange.end_reason = exchange.end_reason or request.get(END_REASON, "client_gone")
            raise
        finally:
            self._journal.request_ended(exchange.record())

    async def _answer(self, exchange: Exchange) -> web.StreamResponse:
        try:
            exchange.take_request_id()
            route = self._route(exchange)
            if isinstance(route, web.Response):
                return route
            exchange.caller = self._gate.admit(exchange.request, exchange.peer, route.scope)
            if route.rate_limited:
                exchange.capacity = self._service.capacity
                exchange.take_trace()
            if route.body is None:
                return await route.endpoint(exchange)
            with self._bodies.of(exchange.request) as body:
                exchange.body = await body.read()
                await check_cost(exchange.body)
                return await route.endpoint(exchange)
        except ConnectionError:
            raise
        except MissingScope as error:
            exchange.caller = error.caller  # who was turned away is what an audit asks for
            return self._refuse(exchange, error)
        except Exception as error:  # noqa: BLE001  # the last line of defence: it becomes a 500 and a log line
            return self._refuse(exchange, error)

    def refuse(self, request: web.BaseRequest, peer: Peer, error: HttpError) -> web.Response:
        """Answer a request that could not be parsed."""
        exchange = Exchange(request, peer, closing=True)
        response = self._refuse(exchange, error)
        self._journal.request_ended(exchange.record())
        return response

    def cut(self, error: HttpError, peer: Peer) -> None:
        """Tell of a connection that was ended before there was a request."""
        self._journal.connection_cut(error, peer)

    def _route(self, exchange: Exchange) -> Route | web.Response:
        request = exchange.request
        methods, exchange.path_arguments = self._table.find(request.path)
        if not methods:
            near = self._near(request.path)
            hint = f". Did you mean {near}?" if near else ""
            raise HttpError(404, f"Unknown path: {request.path[:LONGEST_SHOWN]}{hint}", code="unknown_path")
        method = "GET" if request.method == "HEAD" else request.method
        route = methods.get(method)
        if route is None:
            return self._no_such_method(exchange, methods)
        exchange.route = route.path
        return route

    def _near(self, path: str) -> str | None:
        """The path that was meant by one with `/v1` left out, or written twice, as by a client with another base URL."""
        for meant in (f"/v1{path}", path.removeprefix("/v1")):
            if len(path) <= LONGEST_SHOWN and self._table.find(meant)[0]:
                return meant
        return None

    def _no_such_method(self, exchange: Exchange, methods: dict[str, Route]) -> web.Response:
        request = exchange.request
        exchange.route = next(iter(methods.values())).path
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
        if request.method == "OPTIONS":
            self._gate.refuse_web_pages(request, exchange.peer)
            return exchange.answer(b"", "application/json", status=204, headers={"Allow": allowed})
        raise HttpError(
            405,
            f"{request.method[:32]} is not a method of {exchange.route}; {allowed} are.",
            code="method_not_allowed",
            headers={"Allow": allowed},
        )

    def _refuse(self, exchange: Exchange, error: Exception) -> web.Response:
        refusal = translate(error)
        if refusal.status == 500:
            logging.getLogger(__name__).error(
                "request failed", extra={"request_id": exchange.id, "route": exchange.route}, exc_info=error
            )
        exchange.error_code = refusal.code
        response = exchange.json(refusal.body(), status=refusal.status, headers=refusal.headers)
        if refusal.close:
            response.force_close()
        return response


def _routes(service: Service, hooks: Hooks, library: LibrarySource, uploads: Uploads) -> tuple[Route, ...]:
    """The table. The document of the routes is itself one of them."""
    routes = (
        *chat.routes(service),
        *completions.routes(service),
        *responses.routes(service),
        *conversations.routes(service),
        *embeddings.routes(service),
        *models.routes(service),
        *files.routes(library, uploads),
        *vector_stores.routes(library),
        *store_files.file_routes(library),
        *store_files.batch_routes(library),
        *runs.routes(service),
        *health.routes(service, hooks),
        *admin.routes(service, hooks),
        *data.routes(hooks.data),
    )
    return (*routes, *openapi.routes(routes))
