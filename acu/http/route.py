"""A route: a path and a method, who may call it, what it takes and what it may answer.

The same table drives the dispatch and the OpenAPI document, so that neither can know a route the other does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import Struct

from acu.http.auth import Scope
from acu.http.exchange import Exchange

Endpoint = Callable[[Exchange], Awaitable[web.StreamResponse]]


class Answer(Struct, frozen=True):
    """A successful answer: its content type and, for JSON, its type."""

    description: str
    content_type: str = "application/json"
    body: Any = None


class Route(Struct, frozen=True, kw_only=True):
    """One entry of the table.

    A path may end in one `{parameter}`, which takes the rest of the path, slashes included. `body` is the type of the JSON
    body (None: there is none), `refusals` the statuses that this route adds to those that any has. The answers of a
    `rate_limited` route, refusals included, tell those who may call it what the scheduler still takes (ratelimit.py).
    """

    method: str
    path: str
    endpoint: Endpoint
    scope: Scope
    name: str
    summary: str
    answers: dict[int, tuple[Answer, ...]]
    body: Any = None
    refusals: tuple[int, ...] = ()
    rate_limited: bool = False


class Table:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            stem, brace, _ = route.path.partition("{")
            (self._prefixes if brace else self._exact).setdefault(stem, {})[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], str]:
        """The routes of a path by method (empty if there are none), and what the path's parameter is."""
        if methods := self._exact.get(path):
            return methods, ""
        for stem, methods in self._prefixes.items():
            if path.startswith(stem) and len(path) > len(stem):
                return methods, path[len(stem) :]
        return {}, ""
