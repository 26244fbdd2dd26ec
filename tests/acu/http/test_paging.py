"""Queries and pages of lists."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET, Struct
from yarl import URL

from acu.http.errors import BadRequest
from acu.http.paging import (
    ContentQuery,
    FilesQuery,
    StoreFilesQuery,
    StoresQuery,
    decode_query,
    ends,
    given,
    page_request,
)
from agentflow.library.values import PageRequest


class Item(Struct, frozen=True):
    id: str


def decode(query: str, kind: Any) -> Any:
    return decode_query(URL(f"/v1/files?{query}", encoded=True).query, kind)


def test_an_empty_query_has_openais_defaults() -> None:
    assert page_request(decode("", FilesQuery)) == PageRequest(limit=10_000, order="desc")
    assert page_request(decode("", StoresQuery)) == PageRequest(limit=20, order="desc")
    assert decode("", StoreFilesQuery).filter is UNSET
    assert decode("", ContentQuery) == ContentQuery(page=0, limit=256)


def test_all_of_a_query_is_read() -> None:
    query = decode("limit=7&order=asc&after=a&before=b&filter=failed", StoreFilesQuery)
    assert page_request(query) == PageRequest(limit=7, order="asc", after="a", before="b")
    assert query.filter == "failed"
    assert given(decode("purpose=batch&after=a%20%C3%A9", FilesQuery).after) == "a é"


@pytest.mark.parametrize("word", ["null", "true", "0", "1e3"])
def test_what_looks_like_another_type_stays_text(word: str) -> None:
    assert decode(f"after={word}", StoresQuery).after == word


@pytest.mark.parametrize(
    ("kind", "query", "param"),
    [
        (StoresQuery, "limit=101", "limit"),
        (StoresQuery, "limit=-1", "limit"),
        (StoresQuery, "limit=1.5", "limit"),
        (StoresQuery, "limit=1_0", "limit"),
        (StoresQuery, "limit=" + "9" * 5000, "limit"),
        (StoresQuery, "purpose=batch", "purpose"),
        (StoresQuery, "after=" + "x" * 129, "after"),
        (StoresQuery, "after=x&after=x", "after"),
        (StoresQuery, "before=%00", "before"),
        (StoreFilesQuery, "filter=done", "filter"),
        (ContentQuery, "page=-1", "page"),
        (ContentQuery, "limit=1001", "limit"),
    ],
)
def test_what_is_wrong_with_a_query_is_told_with_its_parameter(kind: Any, query: str, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(query, kind)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_page_tells_its_ends() -> None:
    assert ends([]) == (None, None)
    items = [Item(name) for name in "abc"]
    assert ends(items[:1]) == ("a", "a")
    assert ends(items) == ("a", "c")
