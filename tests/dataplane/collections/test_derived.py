"""What is derived never keeps the data plane from opening, whatever became of its files: it is named, and made anew."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataplane.care import inspection as care
from dataplane.collections import loading
from dataplane.collections.collection import Collection
from dataplane.errors import StorageFull, Unavailable
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane, opened
from dataplane.words import indexer
from tests.dataplane import damage
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import NAME, TENANT, config, exact, filled, only, vectors

STORED = vectors(1500)
QUERIES = vectors(5, seed=9)
FILES = (
    "text.sqlite",
    "snapshot.json",
    "graph-*.faiss",
    "rows-*.npy",
    "heat-*.npy",
    "sketches-*.npy",
    "centre-*.npy",
    "shards.json",
    "shard-*.parquet",
)


def become_a_folder(path: Path) -> None:
    path.unlink()
    (path / "within").mkdir(parents=True)
    (path / "within" / "file").write_bytes(b"not ours")


def flip(path: Path) -> None:
    damage.flip(path, share=1 / 3)


async def prepare(data: Path) -> None:
    async with opened(config(data)) as plane:
        await filled(plane, STORED)
        await plane.settle(TENANT, NAME)
        (collection,) = plane.open_collections()
        with plane.keeper.held():
            demote_for_good(plane.keeper, collection, np.arange(200, 600))
            plane.keeper.moves.save_snapshot(collection)
        assert only(plane).warm == 400


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("prepared") / "data"
    asyncio.run(prepare(data))
    return data


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "data")
    return tmp_path / "data"


def the(data: Path, pattern: str) -> Path:
    (found,) = (data / "derived").glob(f"*/{pattern}")
    return found


async def searches_are_right(plane: DataPlane) -> None:
    for query in QUERIES:
        for is_exact in (True, False):
            result = await plane.search(TENANT, NAME, SearchQuery(vector=query, exact=is_exact))
            assert result.complete
            assert len({hit.id for hit in result.hits} & set(exact(STORED, query))) >= (10 if is_exact else 8)
    result = await plane.search(TENANT, NAME, SearchQuery(text="word7", k=100, deadline_s=10))
    assert result.complete
    assert {hit.id for hit in result.hits} == {f"r{number}" for number in range(7, 1500, 50)}


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [*((pattern, become_a_folder) for pattern in FILES), *((pattern, flip) for pattern in FILES[-4:])],
)
async def test_a_file_that_was_harmed_while_it_was_closed_is_made_anew(
    data: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    path = the(data, pattern)
    harm(path)
    async with opened(config(data)) as plane:
        await searches_are_right(plane)
        report = await care.verify(plane, mend=True)
        assert report.problems == ()
        assert any(path.name in finding.what for finding in (*report.healed, *report.repaired)), report
        await plane.settle(TENANT, NAME)
        await searches_are_right(plane)
    async with opened(config(data)) as plane:
        report = await care.verify(plane, deep=True)
        assert (report.problems, report.healed) == ((), ())
        await searches_are_right(plane)


@pytest.mark.parametrize("harm", [become_a_folder, flip])
@pytest.mark.parametrize("pattern", ["snapshot.json", "sketches-*.npy", "shards.json", "shard-*.parquet"])
async def test_a_file_that_is_harmed_while_it_is_open_is_told_by_verify_and_made_anew(
    data: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    async with opened(config(data)) as plane:
        await plane.settle(TENANT, NAME)
        path = the(data, pattern)
        harm(path)
        await searches_are_right(plane)
        report = await care.verify(plane)
        assert any(path.name in finding.what for finding in (*report.problems, *report.healed)), report
        report = await care.verify(plane, mend=True)
        assert report.problems == ()
        await searches_are_right(plane)
        assert (await care.verify(plane, deep=True)).problems == ()
    async with opened(config(data)) as plane:
        assert (await care.verify(plane, deep=True)).problems == ()
        await searches_are_right(plane)


@pytest.mark.parametrize("pattern", [".", ".."])
async def test_a_file_where_a_folder_must_be_is_removed(data: Path, pattern: str) -> None:
    path = the(data, "text.sqlite").parent
    path = path if pattern == "." else path.parent
    shutil.rmtree(path)
    path.write_bytes(b"not ours")
    async with opened(config(data)) as plane:
        await searches_are_right(plane)
        report = await care.verify(plane)
        assert report.problems == ()
        assert [finding.what for finding in report.healed] == [
            f"{path} was no folder. All that belongs there is made anew."
        ]
        await plane.settle(TENANT, NAME)
        assert path.is_dir()


async def test_a_log_of_the_full_text_that_is_a_folder_is_made_anew(data: Path) -> None:
    path = the(data, "text.sqlite")
    path.with_name("text.sqlite-wal").mkdir()
    async with opened(config(data)) as plane:
        await searches_are_right(plane)
        assert any("text.sqlite-wal is no file" in finding.what for finding in (await care.verify(plane)).healed)


async def test_a_full_text_that_cannot_be_made_at_first_is_named_and_made_later(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_folder(the(data, "text.sqlite"))
    monkeypatch.setattr(indexer, "RETRY_S", 0.1)
    monkeypatch.setattr(care, "TEXT_STALLS_S", 0.3)
    with monkeypatch.context() as held:
        held.setattr(shutil, "rmtree", _refused)
        async with opened(config(data)) as plane:
            result = await plane.search(TENANT, NAME, SearchQuery(text="word7", deadline_s=0.2))
            assert (result.hits, result.complete) == ((), False)
            result = await plane.search(TENANT, NAME, SearchQuery(vector=QUERIES[0], exact=True))
            assert {hit.id for hit in result.hits} == set(exact(STORED, QUERIES[0]))
            (problem,) = (await care.verify(plane)).problems
            assert problem.where == "text"
            assert "text.sqlite" in problem.what
            held.undo()
            async with asyncio.timeout(30):
                while not await care.text_built(plane.open_collections()[0], 1500):
                    await asyncio.sleep(0.05)
            await searches_are_right(plane)
            assert (await care.verify(plane)).problems == ()


def _refused(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def fail_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next collection that is loaded fails in the middle of it."""
    load = loading.load

    def failing(to: Collection) -> None:
        monkeypatch.setattr(loading, "load", load)
        load(to)
        raise error

    monkeypatch.setattr(loading, "load", failing)


@pytest.mark.parametrize(
    ("number", "file"),
    [
        (errno.EMFILE, "text.sqlite"),
        (errno.ENFILE, "text.sqlite"),
        (errno.ENOMEM, "text.sqlite"),
        (errno.ENOSPC, "text.sqlite"),
        (errno.EIO, "../../rocks/CURRENT"),
        (errno.EACCES, None),
        (None, None),
    ],
)
async def test_what_the_system_lacks_for_a_moment_removes_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, file: str | None
) -> None:
    folder = the(data, "text.sqlite").parent
    there = {path.name: path.stat().st_ino for path in folder.iterdir()}
    named = None if file is None else str((folder / file).resolve())
    fail_once(
        monkeypatch, Unavailable("Writer has previous error.") if number is None else OSError(number, "no", named)
    )
    with pytest.raises(StorageFull if number == errno.ENOSPC else Unavailable):
        async with opened(config(data)):
            pass
    left = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert {name: left.get(name) for name in there} == there
    async with opened(config(data)) as plane:
        assert only(plane).shards == 1
        report = await care.verify(plane, deep=True)
        assert (report.problems, report.healed) == ((), ())


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOTDIR])
async def test_a_folder_in_which_something_cannot_be_used_is_made_anew(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = the(data, "shards.json")
    fail_once(monkeypatch, OSError(number, "no", str(path)))
    async with opened(config(data)) as plane:
        await searches_are_right(plane)
        (healed,) = (await care.verify(plane)).healed
        assert f"{path.parent} cannot be used" in healed.what
