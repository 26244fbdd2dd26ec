"""What memory knows of a tenant is what is stored, whatever was asked at once and whoever left in the middle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentflow.engine.script import Script
from agentflow.errors import AgentFlowError
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.library import Library
from agentflow.library.records import Records
from agentflow.library.refusals import DataDamaged
from agentflow.library.shelf import Shelf, Shelves
from agentflow.library.values import Attachment, FileCounts, NewStore, PageRequest, StoreChanges
from tests.agentflow.library.libraries import TENANT, Desk, opened

CALLS = 90


@pytest.mark.parametrize("seed", [2, 17])
async def test_many_calls_at_once_leave_memory_records_and_rows_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with opened(tmp_path, Script(embed_s=0.01), embed_batch=4, ingest_files=3) as desk:
        files = [(await desk.upload(" ".join(f"w{seed}{n}x{word}" for word in range(150)))).id for n in range(6)]
        stores = [await desk.store() for _ in range(3)]
        batches: list[tuple[str, str]] = []

        async def call() -> None:
            await asyncio.sleep(chance.random())
            making = asyncio.ensure_future(_any(chance, desk.library, files, stores, batches))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() / 100)
                making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            if not making.cancelled() and (error := making.exception()) is not None:
                assert isinstance(error, AgentFlowError), error

        await asyncio.gather(*(call() for _ in range(CALLS)))
        await desk.library._changes.close()
        await desk.idle()
        await _check(desk)
    async with opened(tmp_path, embed_batch=4) as desk:
        assert desk.library.backlog == 0
        await _check(desk)


async def _any(
    chance: random.Random, library: Library, files: list[str], stores: list[str], batches: list[tuple[str, str]]
) -> None:
    """Some call. Most are right, some come too late."""
    file, store = chance.choice(files), chance.choice(stores)
    attachment = Attachment(
        file_id=file,
        attributes={"n": chance.randrange(3)},
        chunking=chance.choice([None, ChunkingStrategy(100, 0), ChunkingStrategy(200, 50)]),
    )

    async def batch() -> None:
        made = await library.create_batch(TENANT, store, (attachment, Attachment(file_id=chance.choice(files))))
        batches.append((store, made.id))

    async def cancel() -> None:
        if batches:
            await library.cancel_batch(TENANT, *chance.choice(batches))

    async def renew_store() -> None:
        stores.remove(store)
        await library.delete_store(TENANT, store)
        stores.append((await library.create_store(TENANT, NewStore(file_ids=(file,)))).id)

    async def delete_file() -> None:
        if len(files) > 3:
            files.remove(file)
            await library.delete_file(TENANT, file)

    calls: list[tuple[int, Callable[[], Awaitable[object]]]] = [
        (6, lambda: library.attach(TENANT, store, attachment)),
        (4, lambda: library.detach(TENANT, store, file)),
        (4, lambda: library.update_attributes(TENANT, store, file, {"n": chance.randrange(3)})),
        (2, lambda: library.update_store(TENANT, store, StoreChanges(metadata={"a": str(chance.random())}))),
        (3, batch),
        (2, cancel),
        (1, renew_store if len(stores) > 2 else batch),
        (1, delete_file),
    ]
    weights, kinds = zip(*calls, strict=True)
    await chance.choices(kinds, weights)[0]()


async def _check(desk: Desk) -> None:
    shelf = desk.library._shelves.of(TENANT)
    stored = Shelves(Records(desk.state))
    await stored.load()
    assert _image(shelf) == _image(stored.of(TENANT))
    assert set(desk.plane.collections(TENANT)) <= set(shelf.stores)
    for store_id, store in shelf.stores.items():
        assert store.record.due == ""
        rows = 0
        for entry in store.entries.values():
            assert entry.due == ""
            texts = (await desk.library.content(TENANT, store_id, entry.file_id)).texts
            assert len(texts) == entry.rows
            assert (entry.rows > 0) == (entry.status == "completed")
            rows += len(texts)
            for number in range(3):
                filters = {"type": "eq", "key": "n", "value": number}
                found = await desk.search(store_id, texts[0], max_num_results=50, filters=filters) if texts else ()
                assert any(hit.file_id == entry.file_id for hit in found) == (
                    bool(texts) and entry.attributes.get("n") == number
                )
        assert desk.rows(store_id) == rows
        counted: Counter[str] = Counter(entry.status for entry in store.entries.values())
        assert store.counts() == FileCounts(**counted)
        assert store.usage_bytes == sum(entry.usage_bytes for entry in store.entries.values())
    on_disk = {path.name for path in (desk.folder / "files").rglob("file-*")}
    assert on_disk == set(shelf.files)


def _image(shelf: Shelf) -> object:
    stores = {
        store_id: (store.record, list(store.entries.values()), dict(sorted(store.batches.items())), store.usage_bytes)
        for store_id, store in shelf.stores.items()
    }
    return list(shelf.files.values()), shelf.bytes, stores, list(stores)


async def test_a_record_that_cannot_be_read_is_named_and_nothing_is_guessed(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store()
        await desk.state.put(TENANT, "store", store, b'{"id": 1')
    with pytest.raises(DataDamaged, match=f"the store record '{store}' cannot be read"):
        async with opened(tmp_path):
            pass


async def test_fields_of_a_later_release_are_passed_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store(name="kept")
        stored = await desk.state.get(TENANT, "store", store)
        assert stored is not None
        await desk.state.put(TENANT, "store", store, stored.value[:-1] + b',"later":[1]}')
    async with opened(tmp_path) as desk:
        assert [one.name for one in (await desk.library.stores(TENANT, PageRequest())).data] == ["kept"]
