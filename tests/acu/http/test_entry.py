"""The form of tables: an entry becomes a route whose endpoint is given its source."""

from __future__ import annotations

from typing import Any

from acu.http.entry import READ_REFUSALS, Entry, bound
from acu.http.paging import FilesQuery
from acu.http.route import Answer


async def ask(source: str, exchange: Any) -> Any:
    """Gives back what it is given."""
    return source, exchange


async def test_an_entry_becomes_a_route_for_who_may_infer_that_finds_its_source() -> None:
    answer = Answer("It.", body=int)
    entry = Entry(
        method="GET",
        path="/v1/things/{thing}",
        endpoint=ask,
        name="getThing",
        summary="A thing.",
        answers=(answer,),
        refusals=READ_REFUSALS,
        query=FilesQuery,
        rate_limited=True,
    )
    (route,) = bound((entry,), "source")
    exchange: Any = "exchange"
    assert await route.endpoint(exchange) == ("source", "exchange")
    assert (route.method, route.path, route.name, route.scope) == ("GET", "/v1/things/{thing}", "getThing", "inference")
    assert (route.answers, route.refusals) == ({200: (answer,)}, (404,))
    assert (route.query, route.body, route.form, route.rate_limited) == (FilesQuery, None, None, True)
