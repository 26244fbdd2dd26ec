"""Background work: files become rows, failures are told, and what a crash cut off is taken up again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.engine.script import Script
from agentflow.errors import InvalidRequest
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.records import EntryRecord
from agentflow.library.values import Attachment, FileCounts, NewStore, PageRequest
from tests.agentflow.library.libraries import PATIENCE_S, TENANT, Desk, opened
from tests.agentflow.library.pdf_files import pdf

FOX = "The quick brown fox jumps over the lazy dog."
SLOW = Script(embed_s=0.1)
VERY_SLOW = Script(embed_s=0.4)


def many_words(words: int = 2000, name: str = "word") -> str:
    return " ".join(f"{name}{n}" for n in range(words))


async def test_every_request_for_vectors_passes_the_scheduler_with_low_priority(tmp_path: Path) -> None:
    async with opened(tmp_path, embed_batch=4) as desk:
        store = await desk.store((await desk.upload(many_words())).id)
        runs = [run for run in desk.ended if run.caller.name == "library"]
        assert len(runs) >= desk.rows(store) // 4 > 1
        assert {(run.priority, run.caller.tenant, run.kind) for run in runs} == {(10, TENANT, "embed")}
        await desk.search(store, "word")
        assert desk.ended[-1].priority == 0


UNREADABLE = [
    (b"PK\x03\x04" + b"\0" * 100, "a.docx", "unsupported_file", "ZIP archive"),
    (b"\x89PNG\r\n", "a.png", "unsupported_file", "image"),
    (b"caf\xe9", "a.txt", "invalid_file", "UTF-8"),
    (b"%PDF-1.7 and no more", "a.pdf", "invalid_file", "a.pdf"),
    (b"{broken", "a.json", "invalid_file", "a.json"),
    (b"   \n ", "a.md", "invalid_file", "no text"),
]


async def test_a_file_that_cannot_be_read_fails_with_its_reason(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        bad = [await desk.upload(content, filename) for content, filename, _, _ in UNREADABLE]
        good = await desk.upload(FOX)
        store = await desk.store(*(one.id for one in bad), good.id)
        for file, (_, _, code, words) in zip(bad, UNREADABLE, strict=True):
            failed = await desk.library.store_file(TENANT, store, file.id)
            assert failed.status == "failed"
            assert failed.last_error is not None
            assert failed.last_error.code == code
            assert words in failed.last_error.message
        assert await desk.counts(store) == FileCounts(completed=1, failed=len(bad))
        assert desk.rows(store) == 1


async def test_pages_of_a_pdf_are_lines_of_a_chunk(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(pdf(["one page", "another page"]), "a.pdf")
        store = await desk.store(file.id)
        assert (await desk.library.content(TENANT, store, file.id)).texts == ("one page\nanother page",)
        assert (await desk.search(store, "another page"))[0].text == "one page\nanother page"


@pytest.mark.parametrize(("slots", "alone", "beside_others"), [(1, 1, 1), (2, 2, 1), (4, 4, 3)])
async def test_one_slot_is_kept_for_others_where_there_are_others(
    tmp_path: Path, slots: int, alone: int, beside_others: int
) -> None:
    async with opened(tmp_path, ingest_files=slots) as desk:
        await desk.upload(FOX)
        assert desk.library._workers._most_slots() == alone
        await desk.upload(FOX, tenant="rival")
        assert desk.library._workers._most_slots() == beside_others


async def test_one_tenants_slow_files_do_not_hold_up_anothers(tmp_path: Path) -> None:
    async with opened(tmp_path, VERY_SLOW, ingest_files=2, embed_batch=1) as desk:
        theirs = await desk.upload(FOX, tenant="rival")
        slow = [await desk.upload(many_words(4000)) for _ in range(3)]  # half a minute each
        held = await desk.library.create_store(TENANT, NewStore(file_ids=tuple(file.id for file in slow)))
        store = await desk.library.create_store("rival", NewStore(file_ids=(theirs.id,)))
        async with asyncio.timeout(PATIENCE_S):
            while not (await desk.counts(store.id, "rival")).completed:
                await asyncio.sleep(0.01)
        assert await desk.counts(held.id) == FileCounts(in_progress=3)


async def test_a_file_whose_bytes_are_gone_fails_as_the_servers_fault(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        desk.library.file_path(TENANT, file.id).unlink()
        failed = await desk.attach(await desk.store(), file.id)
        assert failed.status == "failed"
        assert failed.last_error is not None
        assert failed.last_error.code == "server_error"


DAMAGE = [
    (FOX.replace("fox", "cat").encode(), "has another SHA-256"),
    (FOX.encode()[:-1], f"has {len(FOX) - 1} bytes, and was uploaded with {len(FOX)}"),
    (b"\xff" * len(FOX), "has another SHA-256"),  # which its reader would refuse as the caller's fault
]


@pytest.mark.parametrize(("content", "what"), DAMAGE, ids=["other words", "cut short", "no text any more"])
async def test_a_file_that_is_damaged_on_disk_fails_as_such_and_becomes_no_rows(
    tmp_path: Path, content: bytes, what: str
) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        desk.library.file_path(TENANT, file.id).write_bytes(content)
        store = await desk.store()
        failed = await desk.attach(store, file.id)
        assert (failed.status, failed.usage_bytes, desk.rows(store)) == ("failed", 0, 0)
        assert failed.last_error is not None
        assert failed.last_error.code == "server_error"
        assert failed.last_error.message.startswith(f"The file {file.id!r} is damaged: it {what}. Restore it")
        desk.library.file_path(TENANT, file.id).write_bytes(FOX.encode())
        assert (await desk.attach(store, file.id)).status == "completed"


async def test_a_file_that_failed_leaves_no_rows_of_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(many_words())
        store = await desk.store(file.id)
        assert desk.rows(store) > 10
        desk.library.file_path(TENANT, file.id).write_bytes(b"\x89PNG")
        assert (await desk.attach(store, file.id)).status == "failed"
        assert desk.rows(store) == 0
        assert await desk.search(store, "word1") == ()


async def test_a_pdf_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(pdf(["first page", "second page"]), "two.pdf")
        store = await desk.store(file.id)
        text = "".join((await desk.library.content(TENANT, store, file.id)).texts)
        assert "first page" in text
        assert "second page" in text


async def test_a_model_that_is_loading_is_waited_for(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(start_s=0.2)) as desk:
        file = await desk.upload(FOX)
        made = await desk.library.create_store(TENANT, NewStore(file_ids=(file.id,)))
        assert made.status == "in_progress"
        assert made.file_counts == FileCounts(in_progress=1)
        await desk.idle()
        assert await desk.counts(made.id) == FileCounts(completed=1)


async def test_attributes_that_change_while_a_file_is_put_in_hold_in_the_end(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW, embed_batch=4) as desk:
        file, store = await desk.upload(many_words(1000)), await desk.store()
        await desk.library.attach(TENANT, store, Attachment(file_id=file.id, attributes={"lang": "en"}))
        await _some_rows(desk, store)
        told = await desk.library.update_attributes(TENANT, store, file.id, {"lang": "fr"})
        assert (told.status, told.attributes) == ("in_progress", {"lang": "fr"})
        await desk.idle()
        everything = desk.rows(store)
        found = await desk.search(store, "word", max_num_results=50, filters=_is("lang", "fr"))
        assert len(found) == everything
        assert await desk.search(store, "word", filters=_is("lang", "en")) == ()


async def test_a_batch_counts_its_own_files_and_lists_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        before, *ids = [(await desk.upload(f"{FOX} {n}")).id for n in range(4)]
        bad = (await desk.upload(b"\x89PNG", "a.png")).id
        store = await desk.store(before)
        attachments = (
            *(Attachment(file_id=id_, attributes={"n": n}) for n, id_ in enumerate(ids)),
            Attachment(file_id=bad),
        )
        batch = await desk.library.create_batch(TENANT, store, attachments)
        assert (batch.status, batch.file_counts) == ("in_progress", FileCounts(in_progress=4))
        await desk.idle()
        batch = await desk.library.batch(TENANT, store, batch.id)
        assert (batch.status, batch.file_counts) == ("completed", FileCounts(completed=3, failed=1))
        files = await desk.library.batch_files(TENANT, store, batch.id, PageRequest(order="asc"))
        assert [(one.id, one.attributes) for one in files.data] == [(id_, {"n": n}) for n, id_ in enumerate(ids)] + [
            (bad, {})
        ]
        failed = await desk.library.batch_files(TENANT, store, batch.id, PageRequest(), "failed")
        assert [one.id for one in failed.data] == [bad]
        assert (await desk.library.cancel_batch(TENANT, store, batch.id)).status == "completed"  # it has ended
        await desk.library.detach(TENANT, store, ids[0])
        assert (await desk.library.batch(TENANT, store, batch.id)).file_counts == FileCounts(completed=2, failed=1)


async def test_a_batch_takes_1_to_500_files_and_all_or_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store, file = await desk.store(), await desk.upload(FOX)
        for attachments, param in [
            ((), "files"),
            ((Attachment(file_id=file.id),) * 501, "files"),
            ((Attachment(file_id=file.id), Attachment(file_id="file-none")), "files[1].file_id"),
        ]:
            with pytest.raises(InvalidRequest) as refused:
                await desk.library.create_batch(TENANT, store, attachments)
            assert refused.value.param == param
        assert await desk.counts(store) == FileCounts()


async def test_a_cancelled_batch_stops_its_files_and_clears_their_rows(tmp_path: Path) -> None:
    async with opened(tmp_path, VERY_SLOW, embed_batch=4) as desk:
        ids = [(await desk.upload(many_words(600, f"w{n}x"))).id for n in range(4)]
        store = await desk.store()
        batch = await desk.library.create_batch(TENANT, store, tuple(Attachment(file_id=id_) for id_ in ids))
        await _some_rows(desk, store)
        cancelled = await desk.library.cancel_batch(TENANT, store, batch.id)
        assert (cancelled.status, cancelled.file_counts) == ("cancelled", FileCounts(cancelled=4))
        await desk.idle()
        assert desk.rows(store) == 0
        assert await desk.counts(store) == FileCounts(cancelled=4)
        assert (await desk.attach(store, ids[0])).status == "completed"


async def test_a_file_whose_first_rows_are_erased_while_it_is_put_in_fails(tmp_path: Path) -> None:
    async with opened(tmp_path, VERY_SLOW, embed_batch=4) as desk:
        file, store = await desk.upload(many_words(600)), await desk.store()
        await desk.library.attach(TENANT, store, Attachment(file_id=file.id))
        await _some_rows(desk, store)
        await desk.plane.drop_collection(TENANT, store)
        await desk.idle()
        failed = await desk.library.store_file(TENANT, store, file.id)
        assert failed.status == "failed"
        assert failed.last_error is not None
        assert "are gone: attach the file again" in failed.last_error.message
        assert await desk.counts(store) == FileCounts(failed=1)


async def test_a_file_is_deleted_while_it_is_put_in(tmp_path: Path) -> None:
    async with opened(tmp_path, VERY_SLOW, embed_batch=4) as desk:
        file, store = await desk.upload(many_words(500)), await desk.store()
        await desk.library.attach(TENANT, store, Attachment(file_id=file.id))
        await _some_rows(desk, store)
        await desk.library.delete_file(TENANT, file.id)
        assert desk.library.backlog == 0
        assert desk.rows(store) == 0
        assert await desk.counts(store) == FileCounts()


async def test_a_store_is_deleted_while_files_are_put_in(tmp_path: Path) -> None:
    async with opened(tmp_path, VERY_SLOW, embed_batch=4) as desk:
        ids = [(await desk.upload(many_words(600, f"w{n}x"))).id for n in range(4)]
        store = await desk.store()
        await desk.library.create_batch(TENANT, store, tuple(Attachment(file_id=id_) for id_ in ids))
        await _some_rows(desk, store)
        await desk.library.delete_store(TENANT, store)
        await desk.idle()
        assert desk.plane.collections(TENANT) == {}
        assert await desk.state.scan(TENANT, "store_file") == []


async def test_one_who_brings_many_files_does_not_hold_up_another(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(embed_s=0.05), ingest_files=1) as desk:
        many = [(await desk.upload(f"{FOX} {n}")).id for n in range(10)]
        one = (await desk.upload(FOX, tenant="other")).id
        store, other = await desk.store(), await desk.store(tenant="other")
        await desk.library.create_batch(TENANT, store, tuple(Attachment(file_id=id_) for id_ in many))
        await desk.library.attach("other", other, Attachment(file_id=one))
        async with asyncio.timeout(PATIENCE_S):
            while not (await desk.counts(other, "other")).completed:
                await asyncio.sleep(0.005)
        assert (await desk.counts(store)).completed <= 3


async def test_what_a_stop_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "whole", embed_batch=4) as desk:
        file = await desk.upload(many_words())
        store = await desk.store(file.id)
        whole = (await desk.library.content(TENANT, store, file.id)).texts
    async with opened(tmp_path / "cut", SLOW, embed_batch=4) as desk:
        file, store = await desk.upload(many_words()), await desk.store()
        await desk.library.attach(TENANT, store, Attachment(file_id=file.id, attributes={"a": 1}))
        await _some_rows(desk, store)
    async with opened(tmp_path / "cut", embed_batch=4) as desk:
        await desk.idle()
        done = await desk.library.store_file(TENANT, store, file.id)
        assert (done.status, done.attributes) == ("completed", {"a": 1})
        assert (await desk.library.content(TENANT, store, file.id)).texts == whole
        assert desk.rows(store) == len(whole)


@pytest.mark.parametrize("due", ["ingest", "rewrite", "clear", "remove"])
async def test_a_start_does_what_a_record_says_is_due(tmp_path: Path, due: str) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(many_words(300))
        store = await desk.store()
        await desk.attach(store, file.id, chunking=ChunkingStrategy(100, 0), attributes={"a": 1})
        rows = desk.rows(store)
        name = f"{store}/{file.id}"
        stored = await desk.state.get(TENANT, "store_file", name)
        assert stored is not None
        entry = msgspec.json.decode(stored.value, type=EntryRecord)
        changes: dict[str, dict[str, Any]] = {
            "ingest": {"status": "in_progress", "chunking": ChunkingStrategy(400, 0)},
            "rewrite": {"attributes": {"a": 2}},
            "clear": {"status": "cancelled"},
            "remove": {},
        }
        entry = msgspec.structs.replace(entry, due=due, **changes[due])
        await desk.state.put(TENANT, "store_file", name, msgspec.json.encode(entry))
    async with opened(tmp_path) as desk:
        await desk.idle()
        found = await desk.search(store, "word", max_num_results=50, filters=_is("a", 2 if due == "rewrite" else 1))
        assert len(found) == desk.rows(store)
        assert desk.rows(store) == {"ingest": -(-rows // 4), "rewrite": rows, "clear": 0, "remove": 0}[due]
        assert (await desk.counts(store)).total == (0 if due == "remove" else 1)
    async with opened(tmp_path) as desk:
        assert desk.library.backlog == 0


async def test_a_start_detaches_files_whose_deletion_was_cut_off(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        await desk.state.delete(TENANT, "file", file.id)
    async with opened(tmp_path) as desk:
        await desk.idle()
        assert await desk.counts(store) == FileCounts()
        assert desk.rows(store) == 0
        assert list((tmp_path / "files").rglob("file-*")) == []


CHILD = """
import asyncio, sys
from pathlib import Path
from agentflow.engine.script import Script
from agentflow.library.values import Attachment
from tests.agentflow.library.libraries import TENANT, opened
from tests.agentflow.library.test_ingest import many_words

async def main():
    async with opened(Path(sys.argv[1]), Script(embed_s=0.01), embed_batch=4) as desk:
        ids = [(await desk.upload(many_words(400, f"w{n}x"))).id for n in range(6)]
        store = await desk.store()
        batch = await desk.library.create_batch(TENANT, store, tuple(Attachment(file_id=id_) for id_ in ids))
        print(store, batch.id, flush=True)
        done = -1
        while True:
            counts = await desk.counts(store)
            if counts.completed != done:
                done = counts.completed
                print(done, flush=True)
            await asyncio.sleep(0.002)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [0, 4])
async def test_kill_9_in_the_middle_loses_no_file_and_doubles_no_row(tmp_path: Path, after: int) -> None:
    store, batch_id = await asyncio.to_thread(_killed, tmp_path, after)
    async with opened(tmp_path) as desk:
        await desk.idle()
        batch = await desk.library.batch(TENANT, store, batch_id)
        assert (batch.status, batch.file_counts) == ("completed", FileCounts(completed=6))
        rows = 0
        for one in (await desk.library.batch_files(TENANT, store, batch_id, PageRequest(order="asc"))).data:
            texts = (await desk.library.content(TENANT, store, one.id)).texts
            name = (await desk.search(store, texts[0], max_num_results=1, ranker="none"))[0].file_id
            assert name == one.id
            rows += len(texts)
        assert desk.rows(store) == rows


def _killed(folder: Path, after: int) -> list[str]:
    """The ids of a store and a batch of a process that was killed soon after so many files had been put in."""
    with subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ids = child.stdout.readline().split()
        while int(child.stdout.readline()) < after:
            pass
        time.sleep(0.03)
        os.kill(child.pid, signal.SIGKILL)
    return ids


async def _some_rows(desk: Desk, store: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not desk.rows(store):
            await asyncio.sleep(0.005)


def _is(key: str, value: object) -> dict[str, object]:
    return {"type": "eq", "key": key, "value": value}
