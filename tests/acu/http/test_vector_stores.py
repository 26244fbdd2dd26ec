"""/v1/vector_stores with the real client: from an upload to what a search finds, and what each tenant cannot see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types import FileObject

from tests.acu.http.library_serving import client, serving_library, two_tenants
from tests.acu.http.serving import Served

on_one_loop = pytest.mark.asyncio(loop_scope="module")

TEXTS = {
    "bees.md": "# Bees\n\nHoney bees live in hives and make honey from the nectar of flowers.\n",
    "trains.txt": "Steam trains run on rails, and burn coal in a firebox to make steam.\n",
    "cheese.txt": "Cheese is made of milk that was curdled with rennet, pressed and ripened.\n",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("stores")
    async with serving_library(folder, keys=two_tenants(folder)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def ai(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with client(served) as made:
        yield made


async def uploaded(ai: AsyncOpenAI) -> dict[str, FileObject]:
    return {
        name: await ai.files.create(file=(name, text.encode()), purpose="assistants") for name, text in TEXTS.items()
    }


async def done(ai: AsyncOpenAI, store_id: str) -> Any:
    """The store, once nothing is being put into it."""
    async with asyncio.timeout(20):
        while (store := await ai.vector_stores.retrieve(store_id)).file_counts.in_progress:
            await asyncio.sleep(0.02)
    return store


@on_one_loop
async def test_files_are_put_into_a_store_and_found(ai: AsyncOpenAI) -> None:
    files = await uploaded(ai)
    store = await ai.vector_stores.create(
        name="things",
        description="all sorts",
        file_ids=[files["bees.md"].id, files["trains.txt"].id],
        metadata={"team": "a"},
        expires_after={"anchor": "last_active_at", "days": 7},
        chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}},
    )
    assert (store.object, store.name, store.metadata) == ("vector_store", "things", {"team": "a"})
    assert store.file_counts.total == 2
    assert store.expires_after is not None
    assert (store.expires_after.anchor, store.expires_after.days) == ("last_active_at", 7)
    store = await done(ai, store.id)
    assert (store.status, store.file_counts.completed, store.file_counts.failed) == ("completed", 2, 0)
    assert store.usage_bytes > 0

    found = await ai.vector_stores.search(store.id, query="who makes honey from nectar?")
    assert found.object == "vector_store.search_results.page"
    assert found.search_query == ["who makes honey from nectar?"]  # type: ignore[attr-defined]
    assert [hit.filename for hit in found.data] == ["bees.md", "trains.txt"]
    best = found.data[0]
    assert best.file_id == files["bees.md"].id
    assert (best.content[0].type, "nectar" in best.content[0].text) == ("text", True)
    assert 1 >= best.score > found.data[1].score >= 0

    file = await ai.vector_stores.files.retrieve(files["bees.md"].id, vector_store_id=store.id)
    assert (file.object, file.status, file.last_error) == ("vector_store.file", "completed", None)
    assert file.chunking_strategy is not None
    assert file.chunking_strategy.to_dict() == {
        "type": "static",
        "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20},
    }
    deleted = await ai.vector_stores.delete(store.id)
    assert (deleted.object, deleted.deleted) == ("vector_store.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await ai.vector_stores.retrieve(store.id)
    assert await ai.files.retrieve(files["bees.md"].id) == files["bees.md"], "its files stay"


@on_one_loop
async def test_a_file_is_uploaded_and_waited_for_in_one_call(ai: AsyncOpenAI) -> None:
    store = await ai.vector_stores.create()
    assert (store.name, store.metadata, store.expires_after, store.expires_at) == ("", {}, None, None)
    file = await ai.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("bees.md", TEXTS["bees.md"].encode()), poll_interval_ms=20
    )
    assert file.status == "completed"
    content = await ai.vector_stores.files.content(file.id, vector_store_id=store.id)
    assert "".join(piece.text or "" for piece in content.data).strip().endswith("nectar of flowers.")
    assert content.object == "vector_store.file_content.page"
    again = await ai.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
    assert (again.id, again.status) == (file.id, "completed")
    assert (await ai.vector_stores.retrieve(store.id)).file_counts.total == 1
    gone = await ai.vector_stores.files.delete(file.id, vector_store_id=store.id)
    assert (gone.object, gone.deleted) == ("vector_store.file.deleted", True)
    assert (await ai.vector_stores.search(store.id, query="bees")).data == []
    assert (await ai.files.retrieve(file.id)).id == file.id, "the file itself stays"


@on_one_loop
async def test_a_search_keeps_to_its_filters_and_bounds(ai: AsyncOpenAI) -> None:
    files = await uploaded(ai)
    store = await ai.vector_stores.create(name="filtered")
    kinds: dict[str, dict[str, Any]] = {
        "bees.md": {"kind": "animal", "year": 2020, "alive": True},
        "trains.txt": {"kind": "machine", "year": 1825.5, "alive": False},
        "cheese.txt": {"kind": "food", "year": 1990, "alive": False},
    }
    for name, attributes in kinds.items():
        attached = await ai.vector_stores.files.create(
            vector_store_id=store.id, file_id=files[name].id, attributes=attributes
        )
        assert attached.attributes == attributes
    await done(ai, store.id)

    async def names(**options: Any) -> set[str]:
        found = await ai.vector_stores.search(store.id, query="what is made of milk?", **options)
        return {hit.filename for hit in found.data}

    assert await names() == set(TEXTS)
    assert await names(filters={"type": "eq", "key": "kind", "value": "animal"}) == {"bees.md"}
    assert await names(filters={"type": "in", "key": "kind", "value": ["food", "machine"]}) == {
        "cheese.txt",
        "trains.txt",
    }
    older: Any = {"type": "lt", "key": "year", "value": 2000}
    dead: Any = {"type": "eq", "key": "alive", "value": False}
    food: Any = {"type": "eq", "key": "kind", "value": "food"}
    assert await names(filters={"type": "and", "filters": [older, dead]}) == {"cheese.txt", "trains.txt"}
    assert await names(filters={"type": "and", "filters": [older, {"type": "or", "filters": [food]}]}) == {"cheese.txt"}
    assert await names(max_num_results=1) == {"cheese.txt"}
    assert await names(ranking_options={"ranker": "none", "score_threshold": 1.0}) == set()
    assert await names(ranking_options={"ranker": "auto", "score_threshold": 0.0}, rewrite_query=True) == set(TEXTS)
    several = await ai.vector_stores.search(store.id, query=["honey bees", "curdled milk"], max_num_results=2)
    assert {hit.filename for hit in several.data} == {"bees.md", "cheese.txt"}
    assert several.search_query == ["honey bees", "curdled milk"]  # type: ignore[attr-defined]
    assert several.data[0].attributes == kinds[several.data[0].filename]

    changed = await ai.vector_stores.files.update(
        files["bees.md"].id, vector_store_id=store.id, attributes={"kind": "insect"}
    )
    assert changed.attributes == {"kind": "insect"}
    assert await names(filters={"type": "eq", "key": "kind", "value": "insect"}) == {"bees.md"}
    cleared = await ai.vector_stores.files.update(files["bees.md"].id, vector_store_id=store.id, attributes=None)
    assert cleared.attributes == {}
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_a_deleted_file_is_no_longer_found(ai: AsyncOpenAI) -> None:
    files = await uploaded(ai)
    store = await ai.vector_stores.create(file_ids=[file.id for file in files.values()])
    await done(ai, store.id)
    await ai.files.delete(files["bees.md"].id)
    found = await ai.vector_stores.search(store.id, query="honey bees")
    assert {hit.filename for hit in found.data} == {"trains.txt", "cheese.txt"}
    with pytest.raises(openai.NotFoundError):
        await ai.vector_stores.files.retrieve(files["bees.md"].id, vector_store_id=store.id)
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_a_batch_tells_of_those_that_could_not_be_read(ai: AsyncOpenAI) -> None:
    files = await uploaded(ai)
    bad = await ai.files.create(file=("a.zip", b"PK\x03\x04 and so on"), purpose="assistants")
    store = await ai.vector_stores.create(name="batch")
    batch = await ai.vector_stores.file_batches.create_and_poll(
        store.id,
        files=[
            {"file_id": files["bees.md"].id, "attributes": {"n": 1}},
            {"file_id": files["trains.txt"].id, "chunking_strategy": {"type": "auto"}},
            {"file_id": bad.id},
        ],
        poll_interval_ms=20,
    )
    assert (batch.object, batch.status) == ("vector_store.files_batch", "completed")
    counts = batch.file_counts
    assert (counts.completed, counts.failed, counts.in_progress, counts.total) == (2, 1, 0, 3)
    listed = ai.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, limit=1)
    assert {file.id async for file in listed} == {files["bees.md"].id, files["trains.txt"].id, bad.id}
    failed = await ai.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, filter="failed")
    assert [file.id for file in failed.data] == [bad.id]
    assert failed.data[0].last_error is not None
    assert failed.data[0].last_error.code == "unsupported_file"
    assert "ZIP" in failed.data[0].last_error.message
    done_ones = await ai.vector_stores.files.list(store.id, filter="completed", order="asc")
    assert [file.id for file in done_ones.data] == [files["bees.md"].id, files["trains.txt"].id]
    cancelled = await ai.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
    assert cancelled.file_counts.completed == 2, "what is in stays in"
    assert (await ai.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)).id == batch.id
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_files_are_uploaded_and_waited_for_together(ai: AsyncOpenAI) -> None:
    store = await ai.vector_stores.create()
    batch = await ai.vector_stores.file_batches.upload_and_poll(
        store.id, files=[(name, text.encode()) for name, text in TEXTS.items()], poll_interval_ms=20
    )
    assert (batch.status, batch.file_counts.completed) == ("completed", 3)
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_stores_are_listed_in_pages_and_changed(ai: AsyncOpenAI) -> None:
    async for store in ai.vector_stores.list():
        await ai.vector_stores.delete(store.id)
    stores = [await ai.vector_stores.create(name=f"s{i}") for i in range(5)]
    ids = [store.id for store in stores]
    assert [store.id async for store in ai.vector_stores.list(limit=2)] == ids[::-1]
    assert [store.id async for store in ai.vector_stores.list(limit=2, order="asc")] == ids
    before = await ai.vector_stores.list(before=ids[3], order="asc", limit=2)
    assert [store.id for store in before.data] == ids[1:3]
    assert (before.first_id, before.last_id) == (ids[1], ids[2])  # type: ignore[attr-defined]
    changed = await ai.vector_stores.update(
        ids[0], name="new", metadata={"a": "b"}, expires_after={"anchor": "last_active_at", "days": 1}
    )
    assert (changed.name, changed.metadata) == ("new", {"a": "b"})
    assert changed.expires_at is not None
    assert await ai.vector_stores.update(ids[0]) == changed, "what is not named stays"
    cleared = await ai.vector_stores.update(ids[0], metadata=None, expires_after=None)
    assert (cleared.name, cleared.metadata, cleared.expires_at) == ("new", {}, None)
    for store_id in ids:
        await ai.vector_stores.delete(store_id)
    empty = await ai.vector_stores.list()
    assert (empty.data, empty.has_more) == ([], False)


@on_one_loop
async def test_what_one_tenant_keeps_no_other_can_see(served: Served, ai: AsyncOpenAI) -> None:
    file = await ai.files.create(file=("a.txt", b"a secret of alice"), purpose="assistants")
    store = await ai.vector_stores.create(file_ids=[file.id])
    batch = await ai.vector_stores.file_batches.create_and_poll(store.id, file_ids=[file.id], poll_interval_ms=20)
    async with client(served, "bob") as other:
        stores, files, batches = other.vector_stores, other.vector_stores.files, other.vector_stores.file_batches
        own = await stores.create(name="bob's")
        assert [found.id for found in (await stores.list()).data] == [own.id]
        for call in (
            stores.retrieve(store.id),
            stores.update(store.id, name="mine"),
            stores.search(store.id, query="secret"),
            files.create(store.id, file_id=file.id),
            files.create(own.id, file_id=file.id),
            files.retrieve(file.id, vector_store_id=store.id),
            files.update(file.id, vector_store_id=store.id, attributes={}),
            files.list(store.id),
            files.content(file.id, vector_store_id=store.id),
            files.delete(file.id, vector_store_id=store.id),
            batches.create(store.id, file_ids=[file.id]),
            batches.create(own.id, file_ids=[file.id]),
            batches.retrieve(batch.id, vector_store_id=store.id),
            batches.retrieve(batch.id, vector_store_id=own.id),
            batches.list_files(batch.id, vector_store_id=store.id),
            batches.cancel(batch.id, vector_store_id=store.id),
            stores.create(file_ids=[file.id]),
            stores.delete(store.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert (await stores.search(own.id, query="secret")).data == []
        await stores.delete(own.id)
    assert len((await ai.vector_stores.search(store.id, query="secret")).data) == 1
    await ai.vector_stores.delete(store.id)


@on_one_loop
async def test_afterwards_no_request_has_failed(served: Served) -> None:
    assert not [record for record in served.records if record["status"] >= 500]


async def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serving_library(tmp_path) as served, client(served) as ai:
        files = await uploaded(ai)
        store = await ai.vector_stores.create(name="kept", file_ids=[file.id for file in files.values()])
        await done(ai, store.id)
    async with serving_library(tmp_path) as served, client(served) as ai:
        assert [found.id for found in (await ai.vector_stores.list()).data] == [store.id]
        found = await ai.vector_stores.search(store.id, query="honey bees and nectar", max_num_results=1)
        assert [hit.filename for hit in found.data] == ["bees.md"]
        assert (await ai.files.content(files["bees.md"].id)).text == TEXTS["bees.md"]
