"""Verify, repair and backup of a whole data plane that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataplane import keys
from dataplane.backup import check_backup, restore
from dataplane.care import back_up, verify
from dataplane.config import DataPlaneConfig
from dataplane.errors import AlreadyExists
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import NAME, TENANT, config, filled, only, rows, vectors


def archived(data: Path) -> DataPlaneConfig:
    return msgspec.structs.replace(config(data), archive_every_s=None)


async def spread(plane: DataPlane) -> None:
    """1,600 rows, of which 100 are warm, and a snapshot."""
    await filled(plane, vectors(1600))
    await plane.settle(TENANT, NAME)
    (collection,) = plane.open_collections()
    with plane.keeper.held():
        plane.keeper.moves.demote(collection, np.arange(100))
        plane.keeper.moves.save_snapshot(collection)
    assert only(plane).warm == 100


def found_in(folder: Path, pattern: str) -> list[Path]:
    """What is left in a folder."""
    return list(folder.glob(pattern))


def flip(path: Path, at: int) -> None:
    """Change a byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x55
    path.write_bytes(content)


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
