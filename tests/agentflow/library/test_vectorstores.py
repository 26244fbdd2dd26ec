"""Vector stores and the records of their files: what is told, listed, changed, refused and let go."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import InvalidRequest
from agentflow.library import workers
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.chunkrows import ChunkRows
from agentflow.library.records import StoreRecord
from agentflow.library.refusals import NotStored, QuotaExceeded, StoreExpired
from agentflow.library.values import Attachment, FileCounts, NewStore, PageRequest, StoreChanges
from dataplane import StoredRow
from dataplane.care.erasure import erase
from tests.agentflow.library.libraries import MODEL, TENANT, Desk, opened

FOX = "The quick brown fox jumps over the lazy dog."


async def test_a_new_store_tells_what_it_was_made_with(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        new = NewStore(name="things", metadata={"team": "a"}, expires_after_days=7)
        store = await desk.library.create_store(TENANT, new)
        assert (store.name, store.metadata, store.embedder, store.status) == (
            "things",
            {"team": "a"},
            MODEL,
            "completed",
        )
        assert (store.file_counts, store.file_counts.total, store.usage_bytes) == (FileCounts(), 0, 0)
        assert store.last_active_at == store.created_at
        assert store.expires_at == store.created_at + 7 * 86_400
        assert await desk.library.store(TENANT, store.id) == store
        bare = await desk.library.create_store(TENANT, NewStore())
        assert (bare.name, bare.metadata, bare.expires_after_days, bare.expires_at) == (None, {}, None, None)


WRONG_STORES: list[tuple[dict[str, Any], str]] = [
    ({"expires_after_days": 0}, "expires_after.days"),
    ({"expires_after_days": 366}, "expires_after.days"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": "\ud800"}}, "metadata"),
    ({"name": "n" * 257}, "name"),
    ({"name": "\ud800"}, "name"),
    ({"file_ids": ("file-0",)}, "file_ids[0]"),
    ({"file_ids": ("file-0",) * 501}, "file_ids"),
]


async def test_what_cannot_be_a_store_is_refused_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for more, param in WRONG_STORES:
            with pytest.raises(InvalidRequest) as refused:
                await desk.library.create_store(TENANT, NewStore(**more))
            assert refused.value.param == param
            assert (await desk.library.stores(TENANT, PageRequest())).data == ()


async def test_an_update_changes_what_it_names_and_removes_what_it_gives_as_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store(name="old", metadata={"a": "b"}, expires_after_days=1)
        changed = await desk.library.update_store(TENANT, store, StoreChanges(name="new"))
        assert (changed.name, changed.metadata, changed.expires_after_days) == ("new", {"a": "b"}, 1)
        changed = await desk.library.update_store(TENANT, store, StoreChanges(metadata=None, expires_after_days=None))
        assert (changed.name, changed.metadata, changed.expires_at) == ("new", {}, None)
        with pytest.raises(InvalidRequest) as refused:
            await desk.library.update_store(TENANT, store, StoreChanges(expires_after_days=400))
        assert refused.value.param == "expires_after.days"
        assert await desk.library.store(TENANT, store) == changed


async def test_stores_are_listed_in_parts(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        ids = [await desk.store() for _ in range(5)]
        page = await desk.library.stores(TENANT, PageRequest(limit=2))
        assert ([one.id for one in page.data], page.has_more) == ([ids[4], ids[3]], True)
        page = await desk.library.stores(TENANT, PageRequest(limit=2, after=ids[1]))
        assert ([one.id for one in page.data], page.has_more) == ([ids[0]], False)
        with pytest.raises(InvalidRequest, match="from 1 to 100"):
            await desk.library.stores(TENANT, PageRequest(limit=101))
        with pytest.raises(NotStored) as refused:
            await desk.library.stores(TENANT, PageRequest(before="vs_none"))
        assert refused.value.param == "before"


async def test_a_deleted_store_is_gone_with_its_rows_and_its_files_stay(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store, other = await desk.store(file.id), await desk.store(file.id)
        await desk.library.create_batch(TENANT, store, (Attachment(file_id=file.id),))
        await desk.library.delete_store(TENANT, store)
        with pytest.raises(NotStored):
            await desk.library.store(TENANT, store)
        assert [one.id for one in (await desk.library.stores(TENANT, PageRequest())).data] == [other]
        assert list(desk.plane.collections(TENANT)) == [other]
        for kind in ("store", "store_file", "batch"):
            assert [name for name, _ in await desk.state.scan(TENANT, kind) if name.startswith(store)] == []
        assert (await desk.library.file(TENANT, file.id)) == file
        assert len(await desk.search(other, "fox")) == 1


async def test_attaching_again_replaces_and_keeps_the_place_in_the_list(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        long = await desk.upload(" ".join(f"word{n}" for n in range(300)))
        second = await desk.upload(FOX)
        store = await desk.store(long.id, second.id)
        before, rows = await desk.library.store_file(TENANT, store, long.id), desk.rows(store)
        again = await desk.attach(store, long.id, attributes={"a": 1}, chunking=ChunkingStrategy(100, 0))
        assert (again.created_at, again.attributes, again.status) == (before.created_at, {"a": 1}, "completed")
        assert desk.rows(store) > rows
        assert again.usage_bytes > before.usage_bytes
        await desk.attach(store, long.id)
        assert desk.rows(store) == rows  # what was too much is gone
        listed = await desk.library.store_files(TENANT, store, PageRequest(order="asc"))
        assert [one.id for one in listed.data] == [long.id, second.id]
        assert (await desk.counts(store)) == FileCounts(completed=2)


async def test_a_detached_file_is_not_found_any_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file, other = await desk.upload(FOX), await desk.upload("Another fox.")
        store = await desk.store(file.id, other.id)
        await desk.library.detach(TENANT, store, file.id)
        assert [hit.file_id for hit in await desk.search(store, "fox")] == [other.id]
        assert desk.rows(store) == 1
        assert (await desk.library.store(TENANT, store)).file_counts == FileCounts(completed=1)
        with pytest.raises(NotStored):
            await desk.library.detach(TENANT, store, file.id)
        assert (await desk.attach(store, file.id)).status == "completed"
        assert desk.rows(store) == 2


async def test_usage_counts_texts_and_vectors(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        expected = len(FOX) + 384 * 4
        assert (await desk.library.store_file(TENANT, store, file.id)).usage_bytes == expected
        assert (await desk.library.store(TENANT, store)).usage_bytes == expected
        await desk.library.detach(TENANT, store, file.id)
        assert (await desk.library.store(TENANT, store)).usage_bytes == 0


async def test_files_of_a_store_are_listed_by_status(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        good = [(await desk.upload(f"{FOX} {n}")).id for n in range(3)]
        bad = (await desk.upload(b"PK\x03\x04zip", "a.zip")).id
        store = await desk.store(good[0], bad, *good[1:])
        listed = desk.library.store_files
        assert [one.id for one in (await listed(TENANT, store, PageRequest(), "failed")).data] == [bad]
        done = await listed(TENANT, store, PageRequest(limit=2, order="asc"), "completed")
        assert ([one.id for one in done.data], done.has_more) == (good[:2], True)
        rest = await listed(TENANT, store, PageRequest(limit=2, order="asc", after=good[1]), "completed")
        assert ([one.id for one in rest.data], rest.has_more) == (good[2:], False)
        assert await desk.counts(store) == FileCounts(completed=3, failed=1)


WRONG_ATTRIBUTES: list[tuple[object, str]] = [
    ({str(n): n for n in range(17)}, "attributes"),
    ({"k" * 65: 1}, "attributes"),
    ({"k": "v" * 513}, "attributes.k"),
    ({"k": [1]}, "attributes.k"),
    ({"k": float("inf")}, "attributes.k"),
    ([1], "attributes"),
]


async def test_attributes_that_openai_refuses_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        for attributes, param in WRONG_ATTRIBUTES:
            with pytest.raises(InvalidRequest) as refused:
                await desk.library.attach(TENANT, store, Attachment(file_id=file.id, attributes=attributes))
            assert refused.value.param == param
            with pytest.raises(InvalidRequest) as refused:
                await desk.library.update_attributes(TENANT, store, file.id, attributes)
            assert refused.value.param == param
            with pytest.raises(InvalidRequest) as refused:
                one = Attachment(file_id=file.id, attributes=attributes)
                await desk.library.create_batch(TENANT, store, (Attachment(file_id=file.id), one))
            assert refused.value.param == f"files[1].{param}"


async def test_sixteen_attributes_are_all_the_callers_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        attributes = {f"key{n}": n for n in range(16)}
        store, file = await desk.store(), await desk.upload(FOX)
        assert (await desk.attach(store, file.id, attributes=attributes)).attributes == attributes
        (hit,) = await desk.search(store, "fox", filters={"type": "eq", "key": "key15", "value": 15})
        assert hit.attributes == attributes


async def test_content_gives_the_chunks_in_parts(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        text = " ".join(f"word{n}" for n in range(400))
        file = await desk.upload(text)
        store = await desk.store()
        await desk.attach(store, file.id, chunking=ChunkingStrategy(100, 0))
        whole = await desk.library.content(TENANT, store, file.id)
        assert "".join("".join(whole.texts).split()) == "".join(text.split())
        assert whole.following is None
        parts: list[str] = []
        start: int | None = 0
        while start is not None:
            part = await desk.library.content(TENANT, store, file.id, start, 7)
            parts.extend(part.texts)
            start = part.following
        assert tuple(parts) == whole.texts
        assert len(parts) > 20
        with pytest.raises(InvalidRequest):
            await desk.library.content(TENANT, store, file.id, -1)
        with pytest.raises(InvalidRequest):
            await desk.library.content(TENANT, store, file.id, 0, 1001)


async def test_quotas_of_stores_and_of_their_files_hold(tmp_path: Path) -> None:
    async with opened(tmp_path, max_tenant_stores=2, max_store_files=2) as desk:
        files = [(await desk.upload(f"{FOX} {n}")).id for n in range(3)]
        store = await desk.store(*files[:2])
        with pytest.raises(QuotaExceeded, match="may have 2 files"):
            await desk.library.attach(TENANT, store, Attachment(file_id=files[2]))
        assert (await desk.attach(store, files[1])).status == "completed"  # one that is there may come again
        await desk.store()
        with pytest.raises(QuotaExceeded, match="2 vector stores"):
            await desk.library.create_store(TENANT, NewStore())
        assert await desk.store(tenant="rival")


async def test_an_expired_store_says_so_lets_its_rows_go_and_can_be_read_and_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id, expires_after_days=1)
        await _age(desk, store)
    async with opened(tmp_path) as desk:
        await desk.library.sweep()
        await desk.idle()
        told = await desk.library.store(TENANT, store)
        assert (told.status, told.usage_bytes) == ("expired", 0)
        assert told.expires_at is not None
        assert told.expires_at <= time.time()
        assert desk.rows(store) == 0
        assert list(desk.plane.collections(TENANT)) == []
        for refused in (
            desk.search(store, "fox"),
            desk.library.attach(TENANT, store, Attachment(file_id=file.id)),
            desk.library.create_batch(TENANT, store, (Attachment(file_id=file.id),)),
            desk.library.update_store(TENANT, store, StoreChanges(expires_after_days=9)),
        ):
            with pytest.raises(StoreExpired, match="has expired, and its contents are gone"):
                await refused
        assert (await desk.library.update_store(TENANT, store, StoreChanges(name="late"))).name == "late"
        assert (await desk.library.store_file(TENANT, store, file.id)).status == "completed"
        assert (await desk.library.content(TENANT, store, file.id)).texts == ()
        await desk.library.delete_store(TENANT, store)
        assert (await desk.library.stores(TENANT, PageRequest())).data == ()


async def test_a_store_that_is_used_lives_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id, expires_after_days=1)
        await _age(desk, store, ago_s=86_400 - 30)
    async with opened(tmp_path) as desk:
        before = await desk.library.store(TENANT, store)
        assert before.status == "completed"
        assert len(await desk.search(store, "fox")) == 1
        after = await desk.library.store(TENANT, store)
        assert after.last_active_at > before.last_active_at + 80_000
        stored = await desk.state.get(TENANT, "store", store)
        assert stored is not None  # so long after the last time it is written at once
        assert msgspec.json.decode(stored.value, type=StoreRecord).last_active_ms // 1000 == after.last_active_at


async def _age(desk: Desk, store: str, ago_s: int = 86_401) -> None:
    """Set the last use of a store back, in its record and in what is remembered of it."""
    shelf = desk.library._shelves.of(TENANT).stores[store]
    record = msgspec.structs.replace(shelf.record, last_active_ms=int((time.time() - ago_s) * 1000))
    await desk.library._shelves.of(TENANT).put_store(record)
    desk.library._stores._used.clear()


async def test_a_store_whose_rows_were_erased_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        fox, note = await desk.upload(FOX), await desk.upload("A note.")
        store = (await desk.library.create_store(TENANT, NewStore(name="a"))).id
        batch = await desk.library.create_batch(
            TENANT, store, (Attachment(file_id=fox.id), Attachment(file_id=note.id))
        )
        await desk.idle()
        assert (await erase(desk.plane, TENANT, store)).done
        told = await desk.library.store(TENANT, store)
        assert (told.file_counts, told.usage_bytes, told.status) == (FileCounts(failed=2), 0, "completed")
        assert (await desk.library.stores(TENANT, PageRequest())).data == (told,)
        assert (await desk.library.batch(TENANT, store, batch.id)).file_counts == FileCounts(failed=2)
        await _is_erased(desk, store, fox.id)
        failed = await desk.library.store_files(TENANT, store, PageRequest(), "failed")
        assert {one.id for one in failed.data} == {fox.id, note.id}
        assert (await desk.library.store_files(TENANT, store, PageRequest(), "completed")).data == ()

        assert (await desk.attach(store, note.id)).status == "completed"
        await _is_erased(desk, store, fox.id)  # also now that the collection is there again
        assert await desk.counts(store) == FileCounts(completed=1, failed=1)
        assert [hit.file_id for hit in await desk.search(store, "note")] == [note.id]
    async with opened(tmp_path) as desk:
        await _is_erased(desk, store, fox.id)
        assert (await desk.attach(store, fox.id)).status == "completed"
        assert await desk.counts(store) == FileCounts(completed=2)


async def test_a_file_that_has_lost_rows_is_told_with_what_is_left_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(" ".join(f"word{n}" for n in range(2000)))
        store = await desk.store(file.id, chunking=ChunkingStrategy(100, 0))
        before, had = await desk.library.store_file(TENANT, store, file.id), desk.rows(store)
        texts = await _all_texts(desk, store, file.id)
        lost = [f"{file.id}#{number}" for number in range(3, 3 + 100)]  # more than are read at once
        assert (await erase(desk.plane, TENANT, store, lost)).done
        assert await desk.library.count_anew(TENANT, store, lost) == [file.id]
        assert await desk.library.count_anew(TENANT, store, lost) == []
        told = await desk.library.store_file(TENANT, store, file.id)
        assert (told.status, told.last_error, desk.rows(store)) == ("completed", None, had - 100)
        vector = (before.usage_bytes - sum(len(text) for text in texts)) // had
        assert before.usage_bytes - told.usage_bytes == 100 * vector + sum(len(text) for text in texts[3:103])
        assert (await desk.library.store(TENANT, store)).usage_bytes == told.usage_bytes
        assert await _all_texts(desk, store, file.id) == texts[:3] + texts[103:]
        await desk.library.update_attributes(TENANT, store, file.id, {"year": 1984})
        await desk.idle()
        (last,) = await desk.plane.get(TENANT, store, [f"{file.id}#{had - 1}"])
        assert last is not None
        assert last.attributes == {"year": 1984}
        await desk.library.detach(TENANT, store, file.id)
        await desk.idle()
        assert desk.rows(store) == 0


async def test_rows_that_are_erased_while_attributes_are_set_stay_away_and_stay_uncounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(" ".join(f"word{n}" for n in range(2000)))
        store = await desk.store(file.id, chunking=ChunkingStrategy(100, 0))
        before, had = await desk.library.store_file(TENANT, store, file.id), desk.rows(store)
        texts = await _all_texts(desk, store, file.id)
        lost = [f"{file.id}#{number}" for number in (3, 69, 70)]

        class ErasedOnceRead(ChunkRows):
            """What it has read is erased, and counted, before it is written again."""

            async def read(self, file_id: str, first: int, count: int, *, vectors: bool = False) -> list[StoredRow]:
                found = await super().read(file_id, first, count, vectors=vectors)
                if any(row.id == lost[-1] for row in found):
                    await desk.plane.delete(TENANT, store, lost)
                    await desk.library.count_anew(TENANT, store, lost)
                return found

        monkeypatch.setattr(workers, "ChunkRows", ErasedOnceRead)
        await desk.library.update_attributes(TENANT, store, file.id, {"year": 1984})
        await desk.idle()
        assert desk.rows(store) == had - len(lost)
        assert await desk.plane.get(TENANT, store, lost) == [None, None, None]
        told = await desk.library.store_file(TENANT, store, file.id)
        vector = (before.usage_bytes - sum(len(text) for text in texts)) // had
        gone = sum(vector + len(texts[number]) for number in (3, 69, 70))
        assert (told.status, told.usage_bytes) == ("completed", before.usage_bytes - gone)
        (last,) = await desk.plane.get(TENANT, store, [f"{file.id}#{had - 1}"])
        assert last is not None
        assert last.attributes == {"year": 1984}
        assert desk.library._shelves.of(TENANT).stores[store].entries[file.id].due == ""


async def _all_texts(desk: Desk, store: str, file_id: str) -> list[str]:
    """A file's chunks, read in parts."""
    texts: list[str] = []
    start = 0
    while True:
        part = await desk.library.content(TENANT, store, file_id, start, 50)
        texts += part.texts
        if part.following is None:
            return texts
        start = part.following


async def _is_erased(desk: Desk, store: str, file_id: str) -> None:
    told = await desk.library.store_file(TENANT, store, file_id)
    assert (told.status, told.usage_bytes) == ("failed", 0)
    assert told.last_error is not None
    assert (told.last_error.code, told.last_error.message[:7]) == ("server_error", "erased:")
