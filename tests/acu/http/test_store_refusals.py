"""/v1/vector_stores with bodies, ids and deadlines that are wrong: what each gets, and that nothing fails for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.acu.http.hostile import request
from tests.acu.http.library_serving import client, serving_library, two_tenants
from tests.acu.http.raw import Reply, talk
from tests.acu.http.serving import Served

on_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("refusals")
    async with serving_library(folder, keys=two_tenants(folder)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def ai(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with client(served) as made:
        yield made


def call(method: str, path: str, body: Any = None) -> bytes:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "Authorization: Bearer sk-alice-0123456789\r\n"
    return request(raw, method=method, path=f"/v1/vector_stores{path}", extra=extra)


DEEP: Any = {"type": "eq", "key": "a", "value": 1}
for _ in range(200):
    DEEP = {"type": "and", "filters": [DEEP]}
WRONG: dict[str, tuple[str, Any, str, str]] = {
    "an unknown field": ("", {"names": "x"}, "unknown_parameter", "names"),
    "a name of no text": ("", {"name": 1}, "invalid_type", "name"),
    "a long name": ("", {"name": "x" * 257}, "invalid_value", "name"),
    "NUL in a name": ("", {"name": "a\0b"}, "invalid_value", "name"),
    "17 pairs": ("", {"metadata": {str(i): "x" for i in range(17)}}, "invalid_value", "metadata"),
    "501 files": ("", {"file_ids": ["file-1"] * 501}, "invalid_value", "file_ids"),
    "no days": ("", {"expires_after": {"anchor": "last_active_at", "days": 0}}, "invalid_value", "expires_after.days"),
    "another anchor": (
        "",
        {"expires_after": {"anchor": "created_at", "days": 1}},
        "invalid_value",
        "expires_after.anchor",
    ),
    "another strategy": ("", {"chunking_strategy": {"type": "wild"}}, "invalid_value", "chunking_strategy.type"),
    "chunks too small": (
        "",
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 9, "chunk_overlap_tokens": 0}}},
        "invalid_value",
        "chunking_strategy.static.max_chunk_size_tokens",
    ),
    "an overlap too large": (
        "",
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}}},
        "invalid_value",
        "chunking_strategy.static.chunk_overlap_tokens",
    ),
    "no query": ("/{store}/search", {}, "missing_required_parameter", "query"),
    "an empty query": ("/{store}/search", {"query": ""}, "invalid_value", "query"),
    "no queries": ("/{store}/search", {"query": []}, "invalid_value", "query"),
    "NUL in a query": ("/{store}/search", {"query": ["a", "\0"]}, "invalid_value", "query[1]"),
    "51 results": ("/{store}/search", {"query": "x", "max_num_results": 51}, "invalid_value", "max_num_results"),
    "no results": ("/{store}/search", {"query": "x", "max_num_results": 0}, "invalid_value", "max_num_results"),
    "a score above 1": (
        "/{store}/search",
        {"query": "x", "ranking_options": {"score_threshold": 1.1}},
        "invalid_value",
        "ranking_options.score_threshold",
    ),
    "a filter of no kind": ("/{store}/search", {"query": "x", "filters": {"type": "like"}}, "invalid_value", "filters"),
    "a deep filter": ("/{store}/search", {"query": "x", "filters": DEEP}, "invalid_value", "filters"),
    "a filter as text": ("/{store}/search", {"query": "x", "filters": "a = 1"}, "invalid_type", "filters"),
    "no file": ("/{store}/files", {}, "missing_required_parameter", "file_id"),
    "17 attributes": (
        "/{store}/files",
        {"file_id": "{file}", "attributes": {str(i): i for i in range(17)}},
        "invalid_value",
        "attributes",
    ),
    "an attribute of no kind": (
        "/{store}/files",
        {"file_id": "{file}", "attributes": {"a": {"b": 1}}},
        "invalid_value",
        "attributes",
    ),
    "attributes as a list": ("/{store}/files/{file}", {"attributes": []}, "invalid_type", "attributes"),
    "no attributes": ("/{store}/files/{file}", {}, "missing_required_parameter", "attributes"),
    "an empty batch": ("/{store}/file_batches", {}, "invalid_value", "file_ids"),
    "a batch of two forms": (
        "/{store}/file_batches",
        {"file_ids": ["a"], "files": [{"file_id": "b"}]},
        "invalid_value",
        "files",
    ),
    "a batch of nothing": ("/{store}/file_batches", {"files": []}, "invalid_value", "files"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(served: Served) -> tuple[str, str]:
    """The ids of a store and of a file in it."""
    async with client(served) as ai:
        file = await ai.files.create(file=("a.txt", b"x"), purpose="assistants")
        return (await ai.vector_stores.create(file_ids=[file.id])).id, file.id


@on_one_loop
@pytest.mark.parametrize(("path", "body", "code", "param"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_with_a_body_is_told_with_its_parameter(
    served: Served, kept: tuple[str, str], path: str, body: Any, code: str, param: str
) -> None:
    store_id, file_id = kept
    raw = json.dumps(body).replace("{file}", file_id).encode()
    reply = await talk(served, iter([call("POST", path.format(store=store_id, file=file_id), raw)]))
    assert (reply.status, reply.error.get("code")) == (400, code), reply.body
    assert str(reply.error.get("param")).startswith(param), reply.body


@on_one_loop
@pytest.mark.parametrize("name", ["%00", "..%2f..", "%ff%fe", "x" * 5000, "vs_%20", "%F0%9F%98%80"])
async def test_an_id_that_is_none_is_not_found(served: Served, ai: AsyncOpenAI, name: str) -> None:
    store = await ai.vector_stores.create()
    for path in (f"/{name}", f"/{name}/files", f"/{store.id}/files/{name}", f"/{store.id}/file_batches/{name}"):
        reply: Reply = await talk(served, iter([call("GET", path)]))
        assert reply.status == 404, reply
    reply = await talk(served, iter([call("POST", f"/{store.id}/files", {"file_id": "a\0/../b"})]))
    assert reply.status == 404, reply
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_a_search_tells_what_the_scheduler_still_takes_and_heeds_a_deadline(
    served: Served, ai: AsyncOpenAI
) -> None:
    store = await ai.vector_stores.create()
    reply = await talk(served, iter([call("POST", f"/{store.id}/search", {"query": "x"})]))
    assert reply.status == 200
    assert int(reply.headers["x-ratelimit-remaining-requests"]) > 0
    raw = call("POST", f"/{store.id}/search", {"query": "x"}).replace(
        b"\r\n\r\n", b"\r\nx-acu-deadline-ms: 0\r\n\r\n", 1
    )
    refused = await talk(served, iter([raw]))
    assert (refused.status, refused.error["param"]) == (400, "x-acu-deadline-ms")
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_afterwards_no_request_has_failed(served: Served) -> None:
    assert not [record for record in served.records if record["status"] >= 500]
