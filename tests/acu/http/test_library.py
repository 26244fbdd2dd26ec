"""The tables of files and vector stores, and a face that has no library."""

from __future__ import annotations

import pytest

from acu.http import files, store_files, vector_stores
from acu.http.library import no_library
from acu.http.multipart import Uploads
from agentflow.library.refusals import DataUnavailable


async def test_every_table_of_files_and_stores_is_of_this_form_and_only_a_search_asks_an_engine() -> None:
    tables = (files.TABLE, vector_stores.TABLE, store_files.FILE_TABLE, store_files.BATCH_TABLE)
    assert [len(table) for table in tables] == [4, 6, 6, 4]
    assert [entry.name for table in tables for entry in table if entry.rate_limited] == ["searchVectorStore"]
    names = [route.name for route in files.routes(no_library, Uploads(1.0))]
    assert names == ["createFile", *(entry.name for entry in files.TABLE)]


async def test_without_a_library_it_is_said_how_to_have_one() -> None:
    with pytest.raises(DataUnavailable, match="Use `acu serve`"):
        await no_library()
