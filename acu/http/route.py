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

    A `{parameter}` in a path takes one segment, which is not empty; where `takes_rest` is set, the last one takes the
    rest of the path, slashes included. `query` is a struct of the query's parameters (None: there are none, and those
    that come are no matter). `body` is the type of the JSON body (None: there is none) and `form` that of a multipart
    form, which the endpoint reads itself. `refusals` are the statuses that this route adds to those that any has. A
    `rate_limited` route is one that asks an engine: it heeds x-acu-deadline-ms, and its answers, refusals included, tell
    those who may call it what the scheduler still takes (ratelimit.py).
    """

    method: str
    path: str
    endpoint: Endpoint
    scope: Scope
    name: str
    summary: str
    answers: dict[int, tuple[Answer, ...]]
    query: Any = None
    body: Any = None
    form: Any = None
    refusals: tuple[int, ...] = ()
    rate_limited: bool = False
    takes_rest: bool = False


class Node:
    """A place in the tree of paths: what a next segment may be, and what ends here."""

    __slots__ = ("methods", "named", "names", "parameter", "rest")

    def __init__(self) -> None:
        self.named: dict[str, Node] = {}
        self.parameter: Node | None = None  # any segment
        self.rest: Node | None = None  # all segments that follow
        self.methods: dict[str, Route] = {}
        self.names: tuple[str, ...] = ()  # of the parameters on the way here


class Table:
    """Finds the route of a request. A path without parameters is one look into a dict, any other a walk down a tree."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._root = Node()
        for route in routes:
            if "{" in route.path:
                self._plant(route)
            else:
                self._exact.setdefault(route.path, {})[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        """The routes of a path by method (empty if there are none), and what the path's parameters are.

        A segment that is named goes before a parameter; there is no way back from it.
        """
        if methods := self._exact.get(path):
            return methods, {}
        if not path.startswith("/"):
            return {}, {}
        node, at, values = self._root, 1, []
        while at <= len(path):
            end = path.find("/", at)
            segment = path[at:] if end < 0 else path[at:end]
            if (below := node.named.get(segment)) is None:
                below = node.parameter or node.rest
                if below is None or not segment:
                    return {}, {}
                if below is node.rest:
                    segment = path[at:]
                values.append(segment)
            node, at = below, at + len(segment) + 1
        return node.methods, dict(zip(node.names, values, strict=False)) if node.methods else {}

    def _plant(self, route: Route) -> None:
        segments = route.path.split("/")[1:]
        node, names = self._root, []
        for number, segment in enumerate(segments, 1):
            if not segment.startswith("{"):
                node = node.named.setdefault(segment, Node())
                continue
            names.append(segment[1:-1])
            if route.takes_rest and number == len(segments):
                node.rest = node.rest or Node()
                node = node.rest
            else:
                node.parameter = node.parameter or Node()
                node = node.parameter
        node.names = tuple(names)
        node.methods[route.method] = route
