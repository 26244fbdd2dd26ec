"""The library from end to end: files go in, passages come out, and nobody sees what is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.engine.script import Script
from agentflow.errors import ContextLengthExceeded, InvalidRequest
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.records import FileRecord
from agentflow.library.refusals import EmbedderChanged, NotStored
from agentflow.library.values import Attachment, NewStore, PageRequest, SearchRequest
from dataplane.errors import StorageFull
from tests.agentflow.library.libraries import PATIENCE_S, TENANT, Desk, opened
from tests.agentflow.library.pdf_files import pdf

FOX = "The quick brown fox jumps over the lazy dog. " * 3
TIDE = "Spring tides come when the sun and the moon pull in one line. " * 3


async def test_a_passage_of_a_markdown_file_and_one_of_a_pdf_are_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        notes = await desk.upload(f"# Animals\n\n{FOX}")
        paper = await desk.upload(pdf(["Spring tides come when sun and moon pull in one line."]), "tides.pdf")
        store = await desk.store(notes.id, paper.id)
        assert await desk.counts(store) == (await desk.library.store(TENANT, store)).file_counts
        assert (await desk.counts(store)).completed == 2
        first = (await desk.search(store, "sun and moon pull"))[0]
        assert (first.file_id, first.filename) == (paper.id, "tides.pdf")
        assert "moon pull in one line" in first.text
        assert 0.3 < first.score <= 1.0
        assert (await desk.search(store, "quick brown fox jumps"))[0].file_id == notes.id


async def test_the_text_of_a_chunk_finds_it_with_a_score_of_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        text = "A sentence of its own kind."
        store = await desk.store((await desk.upload(text)).id, (await desk.upload(FOX)).id)
        for ranker in ("auto", "none", "default-2024-11-15"):
            best = (await desk.search(store, text, ranker=ranker))[0]
            assert best.text == text
            assert best.score == pytest.approx(1.0, abs=1e-5)


async def test_a_threshold_leaves_out_what_is_not_near(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        text = "A sentence of its own kind."
        store = await desk.store((await desk.upload(text)).id, (await desk.upload(FOX)).id)
        assert len(await desk.search(store, text)) == 2
        assert [hit.text for hit in await desk.search(store, text, score_threshold=0.9)] == [text]
        assert await desk.search(store, "zzz qqq", score_threshold=1.0) == ()


async def test_the_full_text_finds_a_word_that_vectors_pass_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        long = "Many words about many things that have nothing to do with it. " * 10
        needle = await desk.upload(long + "E4711")
        others = [await desk.upload(f"error code number {n}") for n in range(6)]
        store = await desk.store(needle.id, *(one.id for one in others))
        by_vector = await desk.search(store, "error code E4711", max_num_results=3, ranker="none")
        assert needle.id not in [hit.file_id for hit in by_vector]
        fused = await desk.search(store, "E4711", max_num_results=3)
        assert needle.id in [hit.file_id for hit in fused]


async def _library_of_chunks(desk: Desk, needle: str) -> str:
    """The id of a store with 80 chunks that are like each other, and one that is like none of them but for its words."""
    likes = "\n\n".join(
        f"error code number {n:04} of the machine 机器 that stands in the yard 院子里" for n in range(80)
    )
    needle += " zzz" * 15
    sizes = ChunkingStrategy(max_chunk_size_tokens=100, chunk_overlap_tokens=0)
    store = await desk.store()
    await desk.attach(store, (await desk.upload(likes)).id, chunking=sizes)
    await desk.attach(store, (await desk.upload(needle)).id, chunking=sizes)
    return store


@pytest.mark.parametrize("word", ["E4711", "锅炉"])
async def test_scores_fall_along_the_list_and_a_threshold_cuts_its_end(tmp_path: Path, word: str) -> None:
    async with opened(tmp_path) as desk:
        store = await _library_of_chunks(desk, word)
        query = f"the code {word} of a machine in the yard"
        for ranker in ("auto", "none"):
            found = await desk.search(store, query, ranker=ranker)
            scores = [hit.score for hit in found]
            assert len(found) == 10
            assert scores == sorted(scores, reverse=True)
            assert all(0 <= score <= 1 for score in scores)
            for threshold in (scores[0], scores[3], 0.4, 1.0):
                cut = await desk.search(store, query, ranker=ranker, score_threshold=threshold)
                assert cut == tuple(hit for hit in found if hit.score >= threshold)
        near = await desk.search(store, query, ranker="none")
        assert word not in "".join(hit.text for hit in near)


@pytest.mark.parametrize("word", ["E4711", "锅炉"])
async def test_what_only_its_words_find_and_what_only_its_vector_finds_have_half_of_the_score(
    tmp_path: Path, word: str
) -> None:
    async with opened(tmp_path) as desk:
        store = await _library_of_chunks(desk, word)
        query = f"reror odec bumner fo eht chamine ttha sdants ni teh dray {word}"  # letters of the many
        for wanted in (2, 10):
            first, second = (await desk.search(store, query, max_num_results=wanted))[:2]
            assert {word in first.text, word in second.text} == {True, False}
            assert [first.score, second.score] == pytest.approx([0.5, 0.5])
        assert len(await desk.search(store, query, score_threshold=0.5)) == 2


async def test_several_queries_are_answered_as_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        fox, tide = await desk.upload(FOX), await desk.upload(TIDE)
        filler = [await desk.upload(f"filler {n} {'abcdefghij'[n] * 40}") for n in range(4)]
        store = await desk.store(fox.id, tide.id, *(one.id for one in filler))
        found = await desk.search(store, "the quick brown fox", "the sun and the moon", max_num_results=2)
        assert {hit.file_id for hit in found} == {fox.id, tide.id}


async def test_filters_choose_by_the_attributes_that_a_file_has_now(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store()
        english, french = await desk.upload(FOX), await desk.upload(FOX)
        await desk.attach(store, english.id, attributes={"lang": "en", "year": 2020, "draft": False})
        await desk.attach(store, french.id, attributes={"lang": "fr", "year": 1999})

        async def found(filters: object) -> set[str]:
            return {hit.file_id for hit in await desk.search(store, "fox", filters=filters)}

        assert await found({"type": "eq", "key": "lang", "value": "fr"}) == {french.id}
        assert await found({"type": "gte", "key": "year", "value": 2000}) == {english.id}
        before = len(desk.ended)
        changed = await desk.library.update_attributes(TENANT, store, french.id, {"lang": "de"})
        assert changed.attributes == {"lang": "de"}
        assert len(desk.ended) == before  # nothing was embedded anew
        assert await found({"type": "eq", "key": "lang", "value": "fr"}) == set()
        assert await found({"type": "eq", "key": "lang", "value": "de"}) == {french.id}
        (hit,) = await desk.search(store, "fox", filters={"type": "eq", "key": "lang", "value": "de"})
        assert hit.attributes == {"lang": "de"}


WRONG_SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({"filters": {"type": "near", "key": "a", "value": 1}}, "filters.type"),
    ({"filters": {"type": "and", "filters": [{"type": "gt", "key": "a", "value": "x"}]}}, "filters.filters[0].value"),
    ({"filters": [1]}, "filters"),
    ({"max_num_results": 0}, "max_num_results"),
    ({"max_num_results": 51}, "max_num_results"),
    ({"score_threshold": 1.5}, "ranking_options.score_threshold"),
    ({"score_threshold": float("nan")}, "ranking_options.score_threshold"),
    *(({"queries": queries}, "query") for queries in [(), ("",), ("a", " \n"), ("\ud800",), ("x",) * 17]),
]


async def test_a_wrong_search_is_refused_and_the_field_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store()
        for wrong, param in WRONG_SEARCHES:
            with pytest.raises(InvalidRequest) as refused:
                await desk.library.search(TENANT, store, SearchRequest(**{"queries": ("x",), **wrong}))
            assert refused.value.param == param, wrong
        with pytest.raises(ContextLengthExceeded) as refused:
            await desk.search(store, "longer than the embedder takes" * 300)
        assert refused.value.param == "query"


async def test_an_empty_store_finds_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        assert await desk.search(await desk.store(), "anything") == ()


async def test_ids_of_any_form_are_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        library = desk.library
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        for foreign in ["vs_0", "", "\0", "\ud800", "../../etc/passwd", "a/b", "x" * 40_000]:
            calls = [
                library.file(TENANT, foreign),
                library.delete_file(TENANT, foreign),
                library.files(TENANT, PageRequest(after=foreign)) if foreign else library.file(TENANT, foreign),
                library.store(TENANT, foreign),
                library.delete_store(TENANT, foreign),
                library.attach(TENANT, foreign, Attachment(file_id=file.id)),
                library.attach(TENANT, store, Attachment(file_id=foreign)),
                library.create_store(TENANT, NewStore(file_ids=(foreign,))),
                library.store_file(TENANT, store, foreign),
                library.detach(TENANT, store, foreign),
                library.content(TENANT, store, foreign),
                library.batch(TENANT, store, foreign),
                library.cancel_batch(TENANT, store, foreign),
                library.update_attributes(TENANT, store, foreign, {}),
                desk.search(foreign, "x"),
            ]
            for call in calls:
                with pytest.raises(NotStored) as refused:
                    await call
                assert len(str(refused.value).encode()) < 400
            with pytest.raises(NotStored):
                library.file_path(TENANT, foreign)


async def test_a_second_tenant_sees_nothing_and_is_told_the_same_as_of_what_nobody_has(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        library, other = desk.library, "rival"
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        batch = await library.create_batch(TENANT, store, (Attachment(file_id=file.id),))
        await desk.idle()
        mine = await desk.store(tenant=other)
        calls: list[tuple[Callable[[str], Awaitable[object]], str]] = [
            (lambda id_: library.file(other, id_), file.id),
            (lambda id_: library.delete_file(other, id_), file.id),
            (lambda id_: library.store(other, id_), store),
            (lambda id_: library.delete_store(other, id_), store),
            (lambda id_: desk.search(id_, "fox", tenant=other), store),
            (lambda id_: library.attach(other, mine, Attachment(file_id=id_)), file.id),
            (lambda id_: library.batch(other, mine, id_), batch.id),
        ]
        for call, id_ in calls:
            with pytest.raises(NotStored) as theirs:
                await call(id_)
            unknown = id_[:-4] + "0000"
            with pytest.raises(NotStored) as nobodys:
                await call(unknown)
            assert str(theirs.value) == str(nobodys.value).replace(unknown, id_)
        assert (await library.files(other, PageRequest())).data == ()
        assert [one.id for one in (await library.stores(other, PageRequest())).data] == [mine]
        assert await desk.search(mine, "fox", tenant=other) == ()
        assert len(await desk.search(store, "fox")) == 1


async def test_a_store_of_another_embedding_model_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
    async with opened(tmp_path, model="other-embed") as desk:
        with pytest.raises(EmbedderChanged, match="'bytes-embed', and 'other-embed' is served now"):
            await desk.search(store, "fox")
        with pytest.raises(EmbedderChanged):
            await desk.library.attach(TENANT, store, Attachment(file_id=file.id))
        await desk.library.delete_store(TENANT, store)


async def test_a_store_of_other_files_of_the_same_model_says_so(tmp_path: Path) -> None:
    one, two = "1" * 16, "2" * 16
    async with opened(tmp_path) as desk:  # as an earlier release, which knew no fingerprints
        old = await desk.store((await desk.upload(FOX)).id)
    async with opened(tmp_path, fingerprint=one) as desk:
        new = await desk.store((await desk.upload(FOX)).id)
        assert len(await desk.search(old, "fox")) == len(await desk.search(new, "fox")) == 1  # known from here on
    async with opened(tmp_path, fingerprint=two) as desk:
        for store in (old, new):
            with pytest.raises(EmbedderChanged, match="was made with other files of the embedding model 'bytes-embed'"):
                await desk.search(store, "fox")
    async with opened(tmp_path, model="other-embed", fingerprint=one) as desk:  # the same files by another name
        assert len(await desk.search(new, "fox")) == 1


async def test_a_file_that_waited_while_the_model_was_changed_is_not_put_among_the_old_vectors(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(start_s=3600.0)) as desk:
        file = await desk.upload(FOX)
        store = (await desk.library.create_store(TENANT, NewStore(file_ids=(file.id,)))).id
    async with opened(tmp_path, model="other-embed") as desk:
        await desk.idle()
        entry = await desk.library.store_file(TENANT, store, file.id)
        assert entry.status == "failed"
        assert entry.last_error is not None
        assert "'other-embed' is served now" in entry.last_error.message


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX, expires_after_s=7200)
        store = await desk.store(name="things", metadata={"a": "b"}, expires_after_days=3)
        await desk.attach(store, file.id, attributes={"n": 5, "x": 1.5, "s": "t", "b": True})
        batch = await desk.library.create_batch(TENANT, store, (Attachment(file_id=(await desk.upload(TIDE)).id),))
        await desk.idle()
        before = [
            await desk.library.file(TENANT, file.id),
            await desk.library.store(TENANT, store),
            await desk.library.store_files(TENANT, store, PageRequest()),
            await desk.library.batch(TENANT, store, batch.id),
            await desk.library.content(TENANT, store, file.id),
        ]
        found = await desk.search(store, "fox")
    async with opened(tmp_path) as desk:
        after = [
            await desk.library.file(TENANT, file.id),
            await desk.library.store(TENANT, store),
            await desk.library.store_files(TENANT, store, PageRequest()),
            await desk.library.batch(TENANT, store, batch.id),
            await desk.library.content(TENANT, store, file.id),
        ]
        assert after == before
        assert repr((await desk.library.store_file(TENANT, store, file.id)).attributes["n"]) == "5"
        assert await desk.search(store, "fox") == found
        assert desk.library.file_path(TENANT, file.id).read_text() == FOX


async def test_a_change_is_done_whole_if_its_caller_leaves(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for _ in range(5):
            call = asyncio.ensure_future(desk.library.create_store(TENANT, NewStore(name="left")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
        await desk.library._changes.close()
        there = await desk.library.stores(TENANT, PageRequest())
        assert len(there.data) == 5
    async with opened(tmp_path) as desk:
        assert await desk.library.stores(TENANT, PageRequest()) == there


async def test_a_call_answers_while_the_workers_are_held_up_and_the_next_start_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.library.library.SETTLED_S", 0.05, raising=False)
    async with opened(tmp_path) as desk:
        library = desk.library
        fox, tide, note = await desk.upload(FOX), await desk.upload(TIDE), await desk.upload("A note.")
        store, gone = await desk.store(fox.id, tide.id, note.id), await desk.store(fox.id)
        await library._workers.stop()
        async with asyncio.timeout(PATIENCE_S):
            await library.detach(TENANT, store, fox.id)
            await library.delete_file(TENANT, tide.id)
            changed = await library.update_attributes(TENANT, store, note.id, {"lang": "en"})
            await library.delete_store(TENANT, gone)
        assert changed.attributes == {"lang": "en"}
        assert [one.id for one in (await library.store_files(TENANT, store, PageRequest())).data] == [note.id]
        assert [one.id for one in (await library.stores(TENANT, PageRequest())).data] == [store]
        assert (desk.rows(store), desk.rows(gone)) == (3, 1)
    async with opened(tmp_path) as desk:
        await desk.idle()
        assert (desk.rows(store), desk.rows(gone)) == (1, 0)
        english = {"type": "eq", "key": "lang", "value": "en"}
        assert [hit.file_id for hit in await desk.search(store, "note", filters=english)] == [note.id]


async def test_a_defect_that_the_sweeper_meets_is_logged_and_keeps_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.library.library.SWEEP_S", 0.01)
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        shelf = desk.library._shelves.of(TENANT)
        bad = FileRecord(id="file-\0", filename="a", purpose="batch", bytes=1, created_ms=1, expires_ms=1)
        shelf._take_file(bad)  # no path can have such a name
        shelf.files[file.id] = msgspec.structs.replace(shelf.files[file.id], expires_ms=1)
        async with asyncio.timeout(PATIENCE_S):
            while shelf.files or desk.rows(store):
                await asyncio.sleep(0.01)
        failed = [record for record in caplog.records if record.message == "not removed yet, for a defect"]
        assert [(vars(record)["id"], record.exc_info is not None) for record in failed] == [("file-\0", True)]
        assert desk.library._sweeper is not None
        assert not desk.library._sweeper.done()


async def test_a_deletion_that_a_full_disk_cut_off_is_ended_by_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(FOX)
        store = await desk.store(file.id)
        files, write = desk.library._shelves.of(TENANT).files, desk.plane.rocks.write

        def full_once_the_record_is_gone(batch: Any) -> None:
            if file.id not in files:
                raise StorageFull("the disk of the data plane is full.")
            write(batch)

        monkeypatch.setattr(desk.plane.rocks, "write", full_once_the_record_is_gone)
        await desk.library.delete_file(TENANT, file.id)  # the file is gone: what is left is for the sweep
        await desk.library.sweep()
        assert desk.rows(store) == 1
        monkeypatch.undo()
        await desk.library.sweep()
        await desk.idle()
        assert desk.rows(store) == 0
        assert (await desk.counts(store)).total == 0
