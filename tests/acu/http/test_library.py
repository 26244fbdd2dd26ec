"""The form of the tables of files and vector stores: an entry becomes a route whose endpoint is given the library."""

from __future__ import annotations

from typing import Any

import pytest

from acu.http import files, store_files, vector_stores
from acu.http.library import READ_REFUSALS, LibraryRoute, LibrarySource, bound, no_library
from acu.http.multipart import Uploads
from acu.http.paging import FilesQuery
from acu.http.route import Answer
from agentflow.library.refusals import DataUnavailable


async def ask(library: LibrarySource, exchange: Any) -> Any:
    """Gives back what it is given."""
    return library, exchange


async def test_an_entry_becomes_a_route_for_who_may_infer_that_finds_its_library() -> None:
    answer = Answer("It.", body=int)
    entry = LibraryRoute(
        method="GET",
        path="/v1/things/{thing}",
        endpoint=ask,
        name="getThing",
        summary="A thing.",
        answer=answer,
        refusals=READ_REFUSALS,
        query=FilesQuery,
        rate_limited=True,
    )
    (route,) = bound((entry,), no_library)
    exchange: Any = "exchange"
    assert await route.endpoint(exchange) == (no_library, "exchange")
    assert (route.method, route.path, route.name, route.scope) == ("GET", "/v1/things/{thing}", "getThing", "inference")
    assert (route.answers, route.refusals) == ({200: (answer,)}, (404,))
    assert (route.query, route.body, route.form, route.rate_limited) == (FilesQuery, None, None, True)


async def test_every_table_of_files_and_stores_is_of_this_form_and_only_a_search_asks_an_engine() -> None:
    tables = (files.TABLE, vector_stores.TABLE, store_files.FILE_TABLE, store_files.BATCH_TABLE)
    assert [len(table) for table in tables] == [4, 6, 6, 4]
    assert [entry.name for table in tables for entry in table if entry.rate_limited] == ["searchVectorStore"]
    names = [route.name for route in files.routes(no_library, Uploads(1.0))]
    assert names == ["createFile", *(entry.name for entry in files.TABLE)]


async def test_without_a_library_it_is_said_how_to_have_one() -> None:
    with pytest.raises(DataUnavailable, match="Use `acu serve`"):
        await no_library()
