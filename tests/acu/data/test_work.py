"""Work on a whole data plane: what is refused before anything is done, and what it leaves of the library's records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from acu.data import work
from acu.data.work import perform, uploads
from acu.http.wire.data import BackupBody, EraseBody
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.filestore import listed
from agentflow.library.library import Library
from agentflow.library.records import HOUSE, EntryRecord, Records
from agentflow.library.refusals import DataUnavailable
from agentflow.library.shelf import Shelves
from agentflow.library.values import PageRequest
from dataplane import StateStore
from dataplane.care.inspection import silent
from dataplane.cold.uploads import Upload
from dataplane.errors import InvalidInput, NotFound
from dataplane.store import DataPlane, opened
from tests.agentflow.library import libraries
from tests.dataplane.planes import NAME, TENANT, config, filled, rows, vectors


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as plane:
        await filled(plane, vectors(30))
        yield plane


@pytest.mark.parametrize("place", ["data/backup", "data", "data-cold/backup", "data-cold", "data-cold/acu/x"])
async def test_no_backup_is_made_among_the_data_or_in_their_archive(
    plane: DataPlane, tmp_path: Path, place: str
) -> None:
    with pytest.raises(InvalidInput, match="name one outside of it"):
        await perform(plane, BackupBody(folder=str(tmp_path / place)), silent)
    assert (await perform(plane, BackupBody(folder=str(tmp_path / "data-cold-backup")), silent))["files"] > 0


@pytest.mark.parametrize(
    ("tenant", "collection", "ids", "told"),
    [
        ("nobody", None, None, f"there is no tenant 'nobody'.* There is: {TENANT}"),
        ("nobody", NAME, None, "there is no tenant 'nobody'"),
        (TENANT, "nowhere", None, f"there is no collection 'nowhere' of the tenant '{TENANT}'.* There is: {NAME}"),
        (TENANT, f"{TENANT}/{NAME}", ("1",), f"There is: {NAME}"),
    ],
)
async def test_what_is_not_there_cannot_be_erased(
    plane: DataPlane, tenant: str, collection: str | None, ids: tuple[str, ...] | None, told: str
) -> None:
    with pytest.raises(NotFound, match=told):
        await perform(plane, EraseBody(tenant=tenant, collection=collection, ids=ids), silent)
    assert (await perform(plane, EraseBody(tenant=TENANT), silent))["rows"] == 30


async def test_an_erased_tenant_is_not_in_the_librarys_list_and_comes_back_into_it_with_its_next_file(
    plane: DataPlane,
) -> None:
    shelves = Shelves(Records(plane.state))
    await shelves.made(TENANT)
    assert await plane.state.get(HOUSE, "tenant", TENANT) is not None
    assert (await perform(plane, EraseBody(tenant=TENANT), silent))["left"] == ()
    assert await plane.state.get(HOUSE, "tenant", TENANT) is None
    await shelves.made(TENANT)
    assert await plane.state.get(HOUSE, "tenant", TENANT) is not None


async def test_while_the_open_library_cannot_count_anew_nobody_else_writes_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with libraries.opened(tmp_path) as desk:
        file = await desk.upload(" ".join(f"word{n}" for n in range(500)))
        store = await desk.store(file.id, chunking=ChunkingStrategy(100, 0))
        before = await desk.library.store_file(libraries.TENANT, store, file.id)

        async def library() -> Library:
            return desk.library

        async def unavailable(*_: object) -> list[str]:
            raise DataUnavailable("not now.", retry_after_s=1.0)

        async def stored_bytes() -> int:
            ((_, entry),) = await Records(desk.state).all(libraries.TENANT, "store_file", EntryRecord)
            return entry.usage_bytes

        work = EraseBody(tenant=libraries.TENANT, collection=store, ids=(f"{file.id}#1",))
        with monkeypatch.context() as patched:
            patched.setattr(desk.library, "count_anew", unavailable)
            receipt = await perform(desk.plane, work, silent, library)
        assert receipt["left"] == ["the vector store's usage was not counted anew: not now. Erase again."]
        assert await stored_bytes() == before.usage_bytes
        assert (await perform(desk.plane, work, silent, library))["left"] == ()
        told = await desk.library.store_file(libraries.TENANT, store, file.id)
        assert told.usage_bytes == await stored_bytes() < before.usage_bytes


async def test_an_upload_beside_the_erasing_of_its_tenant_is_refused_or_goes_as_a_whole(tmp_path: Path) -> None:
    async with libraries.opened(tmp_path, within="plane/library") as desk:
        late: list[asyncio.Task[object]] = []

        async def library() -> Library:
            return desk.library

        def upload_more(stage: str, _done: int, _total: int) -> None:
            late.append(asyncio.get_running_loop().create_task(desk.upload(f"while {stage}")))

        await desk.upload("before")
        early = [asyncio.create_task(desk.upload(f"text {number}")) for number in range(8)]
        await asyncio.sleep(0.01)
        receipt = await perform(desk.plane, EraseBody(tenant=libraries.TENANT), upload_more, library)
        refused = await asyncio.gather(*early, *late, return_exceptions=True)
        assert receipt["left"] == ()
        assert len(late) >= 5
        assert {type(one) for one in refused[len(early) :]} == {DataUnavailable}
        assert "being erased" in str(refused[-1])
        assert (await desk.library.files(libraries.TENANT, PageRequest(limit=100))).data == ()
        assert not list((tmp_path / "plane" / "library" / "files").glob("*/*"))
        file = await desk.upload("afterwards")
        assert desk.library.file_path(libraries.TENANT, file.id).read_text() == "afterwards"


async def test_of_ids_none_of_which_is_there_nothing_is_erased_and_the_rows_of_files_are_named(
    plane: DataPlane,
) -> None:
    row, gone = (one.id for one in rows(vectors(2)))
    await plane.cold.archive_now()
    with pytest.raises(NotFound, match="none of these ids is a row.*FILE_ID#0, FILE_ID#1"):
        await perform(plane, EraseBody(tenant=TENANT, collection=NAME, ids=("nosuch",)), silent)
    receipt = await perform(plane, EraseBody(tenant=TENANT, collection=NAME, ids=("nosuch", row)), silent)
    assert (receipt["ids"], receipt["rows"], receipt["left"]) == (2, 1, ())
    await plane.delete(TENANT, NAME, [gone], "durable")  # as an erasure that was broken off has
    receipt = await perform(plane, EraseBody(tenant=TENANT, collection=NAME, ids=(gone,)), silent)
    assert (receipt["rows"], receipt["left"], receipt["archive"]["rewritten"]) == (0, (), 1)


async def test_uploaded_files_that_are_missing_or_cut_are_counted_as_damaged(tmp_path: Path) -> None:
    async with libraries.opened(tmp_path, within="plane/library") as desk:
        gone, cut, _ = [await desk.upload("some text") for _ in range(3)]
        assert (await uploads(desk.plane) or {})["damaged_files"] == 0
        desk.library.file_path(libraries.TENANT, gone.id).unlink()
        desk.library.file_path(libraries.TENANT, cut.id).write_bytes(b"some")
        assert (await uploads(desk.plane) or {})["damaged_files"] == 2


async def test_the_records_of_uploads_are_read_once_to_count_them_and_again_before_one_is_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    async def counted(state: StateStore) -> list[Upload]:
        found = await listed(state)
        read.append(len(found))
        return found

    monkeypatch.setattr(work, "listed", counted)
    async with libraries.opened(tmp_path, within="plane/library") as desk:
        files = [await desk.upload("some text") for _ in range(3)]
        told = await uploads(desk.plane)
        assert (told or {})["files"] == 3
        assert read == [3]
        desk.library.file_path(libraries.TENANT, files[0].id).unlink()
        assert (await uploads(desk.plane) or {})["damaged_files"] == 1
        assert read == [3, 3, 3]
