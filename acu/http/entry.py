"""Entry: a route whose endpoint does not yet have what it works with.

A table is data: an endpoint in it is a function that is given a source with each exchange, such as the service or the library.
`bound` makes the routes of a table for one source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from aiohttp import web
from msgspec import Struct

from acu.http.exchange import Exchange
from acu.http.route import Answer, Route

# What endpoints that read, write, take a body or a form may answer with besides what any may.
READ_REFUSALS = (404,)
WRITE_REFUSALS = (404, 507)
BODY_REFUSALS = (404, 408, 413, 415, 417, 507)
FORM_REFUSALS = (408, 413, 415, 417, 507)

SourceT = TypeVar("SourceT")


class Entry(Struct, Generic[SourceT], frozen=True, kw_only=True):
    """An entry of a table. Whoever may infer may call it; `answers` are its good ones, with status 200. The rest is Route's."""

    method: str
    path: str
    endpoint: Callable[[SourceT, Exchange], Awaitable[web.StreamResponse]]
    name: str
    summary: str
    answers: tuple[Answer, ...]
    refusals: tuple[int, ...]
    query: Any = None
    body: Any = None
    form: Any = None
    rate_limited: bool = False


def bound(table: tuple[Entry[SourceT], ...], source: SourceT) -> tuple[Route, ...]:
    """The routes of a table, whose endpoints are given `source`."""
    return tuple(
        Route(
            method=entry.method,
            path=entry.path,
            endpoint=partial(entry.endpoint, source),
            scope="inference",
            name=entry.name,
            summary=entry.summary,
            answers={200: entry.answers},
            query=entry.query,
            body=entry.body,
            form=entry.form,
            refusals=entry.refusals,
            rate_limited=entry.rate_limited,
        )
        for entry in table
    )
