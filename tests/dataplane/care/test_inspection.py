"""Verify, repair and backup of a whole data plane that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.care.backup import check_backup, restore
from dataplane.care.inspection import back_up, verify
from dataplane.cold.bucket import Bucket
from dataplane.config import DataPlaneConfig
from dataplane.errors import AlreadyExists, BucketUnreachable, DataPlaneError, StorageFull
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane, opened
from dataplane.truth import keys
from dataplane.truth.records import EventRecord
from tests.dataplane.damage import flip
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import NAME, TENANT, config, filled, only, rows, vectors


def archived(data: Path) -> DataPlaneConfig:
    return msgspec.structs.replace(config(data), archive_every_s=None)


async def spread(plane: DataPlane) -> None:
    """1,600 rows, of which 100 are warm, and a snapshot."""
    await filled(plane, vectors(1600))
    await plane.settle(TENANT, NAME)
    (collection,) = plane.open_collections()
    with plane.keeper.held():
        demote_for_good(plane.keeper, collection, np.arange(100))
        plane.keeper.moves.save_snapshot(collection)
    assert only(plane).warm == 100


def found_in(folder: Path, pattern: str) -> list[Path]:
    """What is left in a folder."""
    return list(folder.glob(pattern))


async def test_nothing_is_wrong_with_what_is_well(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        await plane.cold.archive_now()
        stages: list[str] = []
        report = await verify(plane, deep=True, progress=lambda stage, _done, _total: stages.append(stage))
    assert (report.problems, report.repaired, report.healed) == ((), (), ())
    assert (report.collections, report.rows, report.archive_manifest, report.deep) == (1, 1600, 1, True)
    assert stages[0] == f"verifying {NAME}"
    assert stages[-1] == "verifying the archive"


async def test_damage_on_box_and_in_the_archive_is_named_and_repaired(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        await plane.cold.archive_now()
        (collection,) = plane.open_collections()
        batch = plane.rocks.batch()
        batch.delete("index", collection.scope + keys.name("r7"))
        plane.rocks.write(batch)
        flip(next(collection.folder.glob("graph-*.faiss")), 1000)
        flip(next(collection.folder.glob("shard-*.parquet")), 1000)
        largest = max((tmp_path / "data-cold").rglob("*.parquet"), key=lambda path: path.stat().st_size)
        flip(largest, 1000)
        report = await verify(plane, deep=True)
        assert {problem.where for problem in report.problems} == {"index", "graph", "shards", "archive"}
        assert all(problem.tenant == TENANT for problem in report.problems if problem.where != "archive")
        assert any(largest.name in problem.what for problem in report.problems)

        report = await verify(plane, deep=True, mend=True)
        assert report.problems == ()
        assert {problem.where for problem in report.repaired} == {"index", "graph", "shards", "archive"}
        assert (await verify(plane, deep=True)).problems == ()
        (found,) = await plane.get(TENANT, NAME, ["r7"])
        assert found is not None


async def test_what_cannot_be_repaired_is_left_and_told(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        (collection,) = plane.open_collections()
        batch = plane.rocks.batch()
        batch.delete("vectors", collection.scope + keys.number(9))
        plane.rocks.write(batch)
        report = await verify(plane, mend=True)
        assert {(problem.collection, problem.where) for problem in report.problems} == {(NAME, "rows")}
        assert report.repaired == ()


async def test_what_was_damaged_when_it_was_opened_is_told_as_healed(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        folder = plane.open_collections()[0].folder
    flip(next(folder.glob("graph-*.faiss")), 1000)
    async with opened(archived(tmp_path / "data")) as plane:
        report = await verify(plane)
        assert report.problems == ()
        (healed,) = report.healed
        assert "graph-" in healed.what


async def test_a_backup_of_a_running_data_plane_answers_as_it_did(tmp_path: Path) -> None:
    queries = vectors(5, seed=2)
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        await plane.state.put(TENANT, "session", "one", b"said")
        before = [(await plane.search(TENANT, NAME, SearchQuery(vector=query))).hits for query in queries]
        extra = plane.folder / "library" / "file"
        extra.parent.mkdir()
        extra.write_bytes(b"uploaded")
        seen: list[tuple[int, int]] = []
        report = await back_up(
            plane,
            tmp_path / "backup",
            files={"library/file": extra, "library/gone": plane.folder / "gone"},
            progress=lambda _stage, done, total: seen.append((done, total)),
        )
        await plane.upsert(TENANT, NAME, rows(vectors(50, seed=5), start=5000))
        await plane.delete(TENANT, NAME, ["r1"])
        assert not list(plane.folder.glob(".tmp-*"))
    assert seen[-1] == (report.size, report.size)
    assert check_backup(tmp_path / "backup") == []
    names = {path.name for path in (tmp_path / "backup").rglob("*")}
    assert {"shards.json", "shard-00000001.parquet", "snapshot.json", "library"} <= names
    restore(tmp_path / "backup", tmp_path / "again")
    assert (tmp_path / "again" / "library" / "file").read_bytes() == b"uploaded"
    async with opened(archived(tmp_path / "again")) as plane:
        assert only(plane).rows == 1600
        assert (await verify(plane, deep=True)).healed == ()
        after = [(await plane.search(TENANT, NAME, SearchQuery(vector=query))).hits for query in queries]
        assert [[hit.id for hit in hits] for hits in after] == [[hit.id for hit in hits] for hits in before]
        found = await plane.state.get(TENANT, "session", "one")
        assert found is not None
        result = await plane.search(TENANT, NAME, SearchQuery(text="note word7"))  # made anew from the rows
        assert result.complete
        assert len(result.hits) == 10


async def test_a_backup_goes_to_no_folder_that_has_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "mine").write_text("")
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(5))
        with pytest.raises(AlreadyExists):
            await back_up(plane, tmp_path / "backup")


async def test_a_backup_whose_caller_leaves_is_broken_off_and_leaves_nothing(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await spread(plane)
        began, left = threading.Event(), threading.Event()

        def told(_stage: str, _done: int, _total: int) -> None:
            began.set()
            left.wait(20)

        run = asyncio.create_task(back_up(plane, tmp_path / "backup", progress=told))
        await asyncio.to_thread(began.wait)
        run.cancel()
        await asyncio.sleep(0)
        left.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert found_in(tmp_path, "*backup*") + found_in(plane.folder, ".tmp-*") == []


async def moved(plane: DataPlane, stream: str, count: int, first: int = 1) -> None:
    """A log with so many more events, which are in the history."""
    events = [EventRecord("e", number, b"%d" % number) for number in range(first, first + count)]
    await plane.state.append(TENANT, stream, events)
    assert await plane.mover.round() == count


async def numbers(plane: DataPlane, stream: str) -> list[int]:
    return [seq for seq, _ in await plane.state.read(TENANT, stream)]


async def test_a_damaged_shard_of_the_history_is_named_and_given_up_only_when_repair_is_asked_for(
    tmp_path: Path,
) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "small", 20)
        await moved(plane, "large", 200)
        first, second = sorted((plane.folder / "history").glob("log-*"))
        assert (await verify(plane)).problems == ()
        flip(first, 40)
        (problem,) = (await verify(plane)).problems
        assert (problem.tenant, problem.where) == ("", "history")
        assert first.name in problem.what
        assert (await verify(plane)).problems == (problem,)
        assert await numbers(plane, "large") == list(range(1, 201))

        report = await verify(plane, mend=True)
        assert report.problems == ()
        damage, loss = report.repaired
        assert damage.what == problem.what
        assert loss.what == f"{first} was discarded: its 20 events are lost."
        assert not first.exists()
        assert second.exists()
        assert await numbers(plane, "small") == []
        assert await numbers(plane, "large") == list(range(1, 201))
        assert await plane.state.last_seq(TENANT, "small") == 20
        assert (await verify(plane)).problems == ()


def become_a_folder(path: Path) -> None:
    path.unlink()
    (path / "within").mkdir(parents=True)


HARMS: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path, 40),
    "its footer flipped": lambda path: flip(path, path.stat().st_size - 20),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:99]),
    "gone": Path.unlink,
    "a folder": become_a_folder,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("closed", [False, True])
async def test_a_damaged_shard_of_the_history_is_brought_back_from_the_archive(
    tmp_path: Path, harm: Callable[[Path], object], *, closed: bool
) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "small", 20)
        await moved(plane, "large", 200)
        await plane.cold.archive_now()
        shard = min((plane.folder / "history").glob("log-*"))
        if not closed:
            harm(shard)
            assert len((await verify(plane)).problems) == 1
            assert (await verify(plane, mend=True)).problems == ()
    if closed:
        harm(shard)
    async with opened(archived(tmp_path / "data")) as plane:
        for number in range(4):  # which would have removed the good one
            await plane.state.put(TENANT, "session", str(number), b"said")
            await plane.cold.archive_now()
        report = await verify(plane, mend=True)
        assert (report.problems, len(report.repaired)) == ((), int(closed))
        assert await numbers(plane, "small") == list(range(1, 21))
        assert await numbers(plane, "large") == list(range(1, 201))
        await plane.cold.archive_now()
        assert (await verify(plane, deep=True)).problems == ()


@pytest.mark.parametrize("error", [BucketUnreachable("no answer."), StorageFull("no room.")])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("harm", [HARMS["flipped"], HARMS["cut"], HARMS["gone"]])
async def test_a_damaged_shard_that_cannot_be_fetched_now_is_kept_and_fetched_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], object],
    error: DataPlaneError,
    *,
    restart: bool,
) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "small", 20)
        await moved(plane, "large", 200)
        await plane.cold.archive_now()
        shard = min((plane.folder / "history").glob("log-*"))
        harm(shard)
        get = Bucket.get

        async def refused(bucket: Bucket, name: str) -> Any:
            if name.startswith("attachments/"):
                raise error
            return await get(bucket, name)

        with monkeypatch.context() as passing:
            passing.setattr(Bucket, "get", refused)
            report = await verify(plane, mend=True)
        damage, kept = report.problems
        assert (damage.where, kept.where, report.repaired) == ("history", "history", ())
        assert all(shard.name in problem.what for problem in report.problems)
        assert kept.what.endswith(f"Run `acu data verify --repair` again when that is cured: {error}")
        run = await plane.cold.archive_now(restart=restart)
        assert len(run.damaged) == 1
        assert shard.name in run.damaged[0]
        assert (await verify(plane, mend=True)).problems == ()
        assert await numbers(plane, "small") == list(range(1, 21))
        assert await numbers(plane, "large") == list(range(1, 201))
        assert (await plane.cold.archive_now()).damaged == []


async def test_a_damaged_shard_that_the_archive_has_damaged_too_is_given_up(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "small", 20)
        await plane.cold.archive_now()
        (shard,) = (plane.folder / "history").glob("log-*")
        content = shard.read_bytes()
        (part,) = (one for one in (tmp_path / "data-cold").rglob("attachments/*") if one.read_bytes() == content)
        flip(part, 40)
        flip(shard, 40)
        report = await verify(plane, mend=True)
        assert report.problems == ()
        assert report.repaired[-1].what == f"{shard} was discarded: its 20 events are lost."
        assert await numbers(plane, "small") == []


async def test_of_a_damaged_shard_that_nobody_else_has_what_can_be_read_is_kept(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        for first in (1, 257, 513):
            await plane.state.append(TENANT, "s", [EventRecord("e", n, b"%d" % n) for n in range(first, first + 256)])
        assert await plane.mover.round() == 768
        (shard,) = (plane.folder / "history").glob("log-*")
        flip(shard, 40)
        report = await verify(plane, mend=True)
        assert report.problems == ()
        assert report.repaired[-1].what == f"{shard} was discarded: 256 of its 768 events are lost."
        assert await numbers(plane, "s") == list(range(257, 769))
    async with opened(archived(tmp_path / "data")) as plane:
        assert (await verify(plane, deep=True)).problems == ()
        assert await numbers(plane, "s") == list(range(257, 769))


@pytest.mark.parametrize("harm", [HARMS["flipped"], HARMS["gone"], HARMS["a folder"]])
async def test_a_manifest_of_the_history_that_is_damaged_while_it_is_open_is_written_anew(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "s", 20)
        harm(plane.folder / "history" / "manifest.json")
        (problem,) = (await verify(plane)).problems
        assert "manifest.json" in problem.what
        report = await verify(plane, mend=True)
        assert (report.problems, report.repaired) == ((), (problem,))
        assert await numbers(plane, "s") == list(range(1, 21))
    async with opened(archived(tmp_path / "data")) as plane:
        assert (await verify(plane, deep=True)).problems == ()
        assert await numbers(plane, "s") == list(range(1, 21))


async def test_a_history_that_does_not_open_is_left_told(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "s", 20)
    flip(tmp_path / "data" / "history" / "manifest.json", 5)
    async with opened(archived(tmp_path / "data")) as plane:
        assert len(plane.status().history.problems) == 1
        for mend in (False, True):
            (problem,) = (await verify(plane, mend=mend)).problems
            assert (problem.where, "manifest.json" in problem.what) == ("history", True)
        await back_up(plane, tmp_path / "backup")
    names = {path.name for path in (tmp_path / "backup" / "history").iterdir()}
    assert names == {"manifest.json", "log-00000001.parquet"}


async def test_a_backup_has_every_event_while_they_move(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await moved(plane, "s", 50)
        for number in range(51, 551, 50):
            await plane.state.append(
                TENANT, "s", [EventRecord("e", number + n, b"%d" % (number + n)) for n in range(50)]
            )
        backing_up = asyncio.create_task(back_up(plane, tmp_path / "backup"))
        while not backing_up.done():
            await plane.mover.round()
            last = await plane.state.last_seq(TENANT, "s")
            await plane.state.append(TENANT, "s", [EventRecord("e", last + 1, b"%d" % (last + 1))], wait="visible")
        await backing_up
    assert check_backup(tmp_path / "backup") == []
    restore(tmp_path / "backup", tmp_path / "again")
    async with opened(archived(tmp_path / "again")) as plane:
        for _ in range(2):
            last = await plane.state.last_seq(TENANT, "s")
            assert last >= 550
            found = await plane.state.read(TENANT, "s")
            assert [(seq, one.payload) for seq, one in found] == [(n, b"%d" % n) for n in range(1, last + 1)]
            await plane.mover.round()
        assert (await verify(plane, deep=True)).problems == ()
