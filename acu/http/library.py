"""Where the endpoints of files and vector stores find the library, and the form of their tables.

A table is data: an endpoint in it is a function that is given the library's source with each exchange. `bound` makes the
routes of a table for one source.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Struct

from acu.http.exchange import Exchange
from acu.http.route import Answer, Route
from agentflow.library.refusals import DataUnavailable

if TYPE_CHECKING:  # it brings the whole data plane with it, which a face without one does not need
    from agentflow.library.library import Library

LibrarySource = Callable[[], Awaitable["Library"]]
"""Gives the library, which may be opened first; or raises DataUnavailable with the reason and when to ask again."""

# What endpoints that read, write, take a body or a form may answer with besides what any may.
READ_REFUSALS = (404,)
WRITE_REFUSALS = (404, 507)
BODY_REFUSALS = (404, 408, 413, 415, 417, 507)
FORM_REFUSALS = (408, 413, 415, 417, 507)

LibraryEndpoint = Callable[[LibrarySource, Exchange], Awaitable[web.StreamResponse]]


class LibraryRoute(Struct, frozen=True, kw_only=True):
    """An entry of a table. Whoever may infer may call it; `answer` is its only good one, with status 200. The rest is Route's."""

    method: str
    path: str
    endpoint: LibraryEndpoint
    name: str
    summary: str
    answer: Answer
    refusals: tuple[int, ...]
    query: Any = None
    body: Any = None
    form: Any = None
    rate_limited: bool = False


def bound(table: tuple[LibraryRoute, ...], library: LibrarySource) -> tuple[Route, ...]:
    """The routes of a table, whose endpoints are given `library`."""
    return tuple(
        Route(
            method=entry.method,
            path=entry.path,
            endpoint=partial(entry.endpoint, library),
            scope="inference",
            name=entry.name,
            summary=entry.summary,
            answers={200: (entry.answer,)},
            query=entry.query,
            body=entry.body,
            form=entry.form,
            refusals=entry.refusals,
            rate_limited=entry.rate_limited,
        )
        for entry in table
    )


async def no_library() -> Library:
    """The source of a face that was given none."""
    raise DataUnavailable(
        "This server was started without a data plane, and keeps no files and no vector stores. Use `acu serve`.",
        retry_after_s=math.inf,
    )
