"""Erasing: after it no file of box or archive has a byte of what was erased, and the receipt says what was looked through."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from dataplane.care.erasure import Extent, absence, erase, measure
from dataplane.care.inspection import verify
from dataplane.cold import attachments
from dataplane.cold_config import ColdConfig
from dataplane.collections.commands import Upsert
from dataplane.collections.rowcodec import row_batch
from dataplane.config import DataPlaneConfig
from dataplane.errors import InvalidInput
from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane, opened
from dataplane.truth import keys
from dataplane.truth.records import EventRecord
from dataplane.truth.rocks import FAMILIES
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, filled, only, rows, vectors

SECRET = "zq" + secrets.token_hex(20)
SECRET_ID = "id" + secrets.token_hex(20)
VECTOR = vectors(1, seed=99)[0]


def archived(data: Path) -> DataPlaneConfig:
    return msgspec.structs.replace(config(data), archive_every_s=None)


def secret_row(id_: str = SECRET_ID) -> Row:
    """A row whose id, text, attribute and vector no other has."""
    return Row(id=id_, vector=VECTOR, text=f"about {SECRET}", attributes={"of": SECRET})


def traces(folder: Path) -> list[str]:
    """The files that hold a piece of the secret row, by what they hold of it."""
    # RocksDB shortens words that it saw before, and stores vectors as they are.
    pieces = {"text": SECRET.encode(), "id": SECRET_ID.encode(), "vector": VECTOR.astype("<f4").tobytes()}
    return sorted(
        f"{path.name}: {what}"
        for path in folder.rglob("*")
        if path.is_file()
        for what, piece in pieces.items()
        if piece in path.read_bytes()
    )


def names_in_tables(folder: Path) -> list[str]:
    """RocksDB's tables that have a key of the tenant."""
    return [path.name for path in folder.rglob("*.sst") if keys.tenant_prefix(TENANT) in path.read_bytes()]


async def everywhere(plane: DataPlane) -> None:
    """1,600 rows, of which one is secret, in graph and snapshot, in a shard, in the full text, in the archive, and deleted."""
    await filled(plane, vectors(1500))
    await plane.upsert(TENANT, NAME, [secret_row()], "durable")
    await plane.upsert(TENANT, NAME, rows(vectors(99, seed=3), start=1500))
    await plane.settle(TENANT, NAME)
    (collection,) = plane.open_collections()
    with plane.keeper.held():
        slots = np.flatnonzero(collection.table.view().alive)[1450:1550]
        demote_for_good(plane.keeper, collection, slots)
        plane.keeper.moves.save_snapshot(collection)
    assert only(plane).warm == 100
    await plane.cold.archive_now()
    plane.rocks.flush()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_a_row_is_gone_from_every_file_of_box_and_archive(tmp_path: Path, data: Path) -> None:
    async with opened(archived(data)) as plane:
        await everywhere(plane)
        before = traces(tmp_path)
        for found in (".sst: vector", ".faiss: vector", "shard-00000001.parquet: vector", ".sst: text"):
            assert any(trace.endswith(found) for trace in before), "\n".join(before)
        receipt = await erase(plane, TENANT, NAME, [SECRET_ID])
        assert receipt.left == ()
        assert (receipt.rows, receipt.ids) == (1, 1)
        assert receipt.searched["database"] == 1599
        assert receipt.archive is not None
        assert receipt.archive.rewritten == 1
        assert traces(tmp_path) == []
        result = await plane.search(TENANT, NAME, SearchQuery(vector=VECTOR, text=SECRET, exact=True))
        assert SECRET_ID not in {hit.id for hit in result.hits}
        await plane.settle(TENANT, NAME)
        assert (only(plane).rows, only(plane).graph_masked) == (1599, 0)
        assert (await verify(plane, deep=True)).problems == ()
        assert traces(tmp_path) == []
    assert traces(tmp_path) == []


async def test_what_a_row_was_before_it_was_replaced_or_deleted_goes_too(tmp_path: Path, data: Path) -> None:
    async with opened(archived(data)) as plane:
        await everywhere(plane)
        await plane.upsert(TENANT, NAME, [Row(id=SECRET_ID, vector=vectors(1)[0], text="harmless", attributes={})])
        await plane.delete(TENANT, NAME, [SECRET_ID], "durable")
        plane.rocks.flush()
        assert any("text" in trace for trace in traces(data / "rocks"))
        receipt = await erase(plane, TENANT, NAME, [SECRET_ID])
        assert (receipt.rows, receipt.left) == (0, ())
        assert traces(tmp_path) == []


async def test_rows_that_were_never_archived_are_erased_without_an_archive(tmp_path: Path, data: Path) -> None:
    async with opened(archived(data)) as plane:
        await filled(plane, vectors(50))
        await plane.upsert(TENANT, NAME, [secret_row()])
        receipt = await erase(plane, TENANT, NAME, [SECRET_ID, "r1"])
        assert (receipt.rows, receipt.left, receipt.archive) == (2, (), None)
        assert traces(tmp_path) == []
        assert only(plane).rows == 49


async def test_a_collection_and_a_tenant_leave_nothing_and_others_keep_all(tmp_path: Path, data: Path) -> None:
    async with opened(archived(data)) as plane:
        await everywhere(plane)
        for tenant, name in ((TENANT, "more"), ("other", NAME)):
            await plane.create_collection(tenant, name, CollectionSpec(dimensions=DIMENSIONS))
            await plane.upsert(tenant, name, rows(vectors(20)))
        await plane.state.put(TENANT, "session", SECRET_ID, SECRET.encode())
        await plane.state.append(TENANT, SECRET_ID, [EventRecord("said", 1, SECRET.encode())])
        await plane.state.put("other", "session", "s", b"kept")
        await plane.cold.archive_now()

        receipt = await erase(plane, TENANT, NAME)
        assert (receipt.rows, receipt.left) == (1600, ())
        assert list(plane.collections(TENANT)) == ["more"]
        assert any("text" in trace for trace in traces(tmp_path))  # the session

        receipt = await erase(plane, TENANT)
        assert (receipt.rows, receipt.left) == (20, ())
        assert traces(tmp_path) == []
        assert names_in_tables(data) == []
        assert plane.collections(TENANT) == {}
        assert only(plane).rows == 20
        kept = await plane.state.get("other", "session", "s")
        assert kept is not None
        assert kept.value == b"kept"

        await filled(plane, vectors(5))  # the tenant comes back, and begins anew
        await plane.cold.archive_now()
        assert (await verify(plane, deep=True)).problems == ()


def naming(folder: Path, tenant: str) -> list[str]:
    """The files that name a tenant, or its folder of files, as they lie there or decoded; also in their own names."""
    names = (tenant, attachments.tenant_folder(tenant), attachments.tenant_folder(tenant)[:16])
    found = []
    for path in folder.rglob("*"):
        content = str(path.relative_to(folder)).encode()
        if path.is_file():
            content += path.read_bytes()
            if content.endswith(b"PAR1"):
                content += str(pq.read_table(path).to_pylist()).encode()
        if any(name.encode() in content for name in names):
            found.append(path.relative_to(folder).as_posix())
    return sorted(found)


async def test_nothing_on_box_or_in_the_archive_names_a_tenant_that_was_erased(tmp_path: Path, data: Path) -> None:
    gone = "zq" + secrets.token_hex(10)
    async with opened(msgspec.structs.replace(archived(data), history_after_s=0.0)) as plane:
        plane.state.rosters = (("/house", "tenant"),)
        for tenant in (gone, "other"):
            await plane.create_collection(tenant, NAME, CollectionSpec(dimensions=DIMENSIONS))
            await plane.upsert(tenant, NAME, rows(vectors(50)))
            await plane.state.put("/house", "tenant", tenant, b"")
            await plane.state.put(tenant, "session", "s", b"said")
            folder = data / "library" / "files" / attachments.tenant_folder(tenant)
            folder.mkdir(parents=True)
            (folder / "file").write_text("words")
            await plane.state.append(tenant, "log", [EventRecord("said", 1, b"x")] * 5)
        await plane.mover.round()
        await plane.cold.archive_now()
        await plane.state.append(gone, "more", [EventRecord("said", 1, b"x")] * 5)
        await plane.cold.archive_now()
        assert any("/segments/" in name for name in naming(tmp_path, gone))
        assert (await erase(plane, gone)).left == ()
        assert [
            family
            for family in FAMILIES
            for key, value in plane.rocks.scan(family, b"")
            if gone.encode() in key + value
        ] == []
        assert await plane.state.get("/house", "tenant", "other") is not None
        assert naming(tmp_path, "other") != []
    assert naming(tmp_path, gone) == []


async def test_a_tenant_of_which_only_its_place_in_a_list_is_left_is_known_and_erased(data: Path) -> None:
    async with opened(archived(data)) as plane:
        plane.state.rosters = (("/house", "tenant"),)
        await plane.state.put("/house", "tenant", TENANT, b"")
        assert (await measure(plane, TENANT)).known
        assert (await erase(plane, TENANT)).left == ()
        assert not (await measure(plane, TENANT)).known
        assert await plane.state.rosters_with(TENANT) == []


async def test_an_archive_that_is_away_is_in_the_receipt_until_it_is_erased_again(tmp_path: Path, data: Path) -> None:
    target = tmp_path / "bucket"
    settings = msgspec.structs.replace(archived(data), cold=ColdConfig(folder=str(target)))
    async with opened(settings) as plane:
        await filled(plane, vectors(50))
        await plane.upsert(TENANT, NAME, [secret_row()])
        await plane.cold.archive_now()
        target.rename(tmp_path / "away")
        target.write_text("")
        receipt = await erase(plane, TENANT, NAME, [SECRET_ID])
        assert not receipt.done
        assert [line.partition(":")[0] for line in receipt.left] == ["archive"]
        assert traces(data) == []
        target.unlink()
        (tmp_path / "away").rename(target)
        assert (await erase(plane, TENANT, NAME, [SECRET_ID])).left == ()
        assert traces(tmp_path) == []


async def test_what_is_left_is_found_and_named(data: Path) -> None:
    async with opened(archived(data)) as plane:
        await everywhere(plane)
        stages: list[str] = []

        def come_back(stage: str, done: int, total: int) -> None:
            del done, total
            stages.append(stage)
            if stage == "rewriting the archive":
                plane.writer.submit_now(_upsert(plane))

        receipt = await erase(plane, TENANT, NAME, [SECRET_ID], progress=come_back)
        assert stages[0] == "deleting"
        assert stages[-1] == "looking again"
        assert any("was it stored again?" in line for line in receipt.left)
        assert any(line.startswith("archive: ") for line in receipt.left)


def _upsert(plane: DataPlane) -> Any:
    """The command by which somebody stores the row again."""
    (collection,) = plane.open_collections()
    return Upsert(collection, row_batch(collection, [secret_row()], 0, 1), 1)


async def test_ids_without_a_collection_and_no_ids_are_refused(data: Path) -> None:
    async with opened(archived(data)) as plane:
        for collection, ids in ((None, ["a"]), (NAME, [])):
            with pytest.raises(InvalidInput):
                await erase(plane, TENANT, collection, ids)


async def test_what_is_not_there_is_erased_without_a_word(data: Path) -> None:
    async with opened(archived(data)) as plane:
        await filled(plane, vectors(5))
        for target in ((TENANT, "nowhere", None), (TENANT, "nowhere", ["x"]), ("nobody", None, None)):
            receipt = await erase(plane, *target)
            assert (receipt.rows, receipt.left) == (0, ())
        assert only(plane).rows == 5


async def test_the_receipt_counts_rows_files_and_collections_that_were_there(data: Path) -> None:
    async with opened(archived(data)) as plane:
        await filled(plane, vectors(5))
        await plane.create_collection(TENANT, "more", CollectionSpec(dimensions=DIMENSIONS))
        await plane.upsert(TENANT, "more", rows(vectors(3)))
        folder = data / "library" / "files" / attachments.tenant_folder(TENANT)
        folder.mkdir(parents=True)
        for number in range(2):
            (folder / str(number)).write_text("a file")
        receipt = await erase(plane, TENANT, NAME, [rows(vectors(1))[0].id])
        assert (receipt.rows, receipt.files, receipt.collections) == (1, 0, 0)
        before = await measure(plane, TENANT)
        assert before == Extent(rows=7, files=2, collections=2, known=True)
        await plane.drop_collection(TENANT, "more")  # as the library does before
        receipt = await erase(plane, TENANT, before=before)
        assert (receipt.rows, receipt.files, receipt.collections, receipt.left) == (7, 2, 2, ())


async def test_what_box_and_archive_do_not_have_is_unknown_and_what_there_is_is_named(data: Path) -> None:
    async with opened(archived(data)) as plane:
        await filled(plane, vectors(5))
        await plane.state.put("other", "session", "s", b"kept")
        await plane.state.put("/library", "tenant", "other", b"")  # a part's own, which is nobody's name
        for target in ((TENANT, f"{TENANT}/{NAME}"), ("nobody", None), ("nobody", NAME)):
            assert await measure(plane, *target) == Extent(rows=0, files=0, collections=0, known=False)
        assert (await measure(plane, "other")).known
        told = str(await absence(plane, TENANT, f"{TENANT}/{NAME}"))
        assert told.startswith(f"there is no collection '{TENANT}/{NAME}' of the tenant '{TENANT}'")
        assert told.endswith(f"There is: {NAME}.")
        told = str(await absence(plane, "nobody"))
        assert told.startswith("there is no tenant 'nobody'")
        assert told.endswith(f"There is: {', '.join(sorted((TENANT, 'other')))}.")
        await plane.cold.archive_now()
        await plane.drop_collection(TENANT, NAME)
        assert (await measure(plane, TENANT, NAME)).known  # the archive has it
        assert not (await measure(plane, TENANT, "nowhere")).known


async def test_a_tenant_leaves_the_history_and_the_receipt_says_that_it_was_looked_for_there(
    tmp_path: Path, data: Path
) -> None:
    async with opened(archived(data)) as plane:
        for tenant in (TENANT, "other"):
            for _ in range(3):
                await plane.state.append(tenant, SECRET_ID, [EventRecord("said", 1, SECRET.encode())] * 50)
        assert await plane.mover.round() == 300
        assert plane.old_events.count(TENANT) == (150, 300)
        await plane.state.append(TENANT, SECRET_ID, [EventRecord("said", 1 << 60, SECRET.encode())])
        receipt = await erase(plane, TENANT)
        assert receipt.left == ()
        assert receipt.searched["history"] == 150
        assert plane.old_events.count(TENANT) == (0, 150)
        assert len(await plane.state.read("other", SECRET_ID)) == 150
        assert await plane.state.read(TENANT, SECRET_ID) == []
        assert names_in_tables(data) == []
        assert (await erase(plane, "other")).left == ()
        assert traces(tmp_path) == []
        assert {path.name for path in (data / "history").iterdir()} == {"manifest.json"}


async def test_a_damaged_history_is_in_the_receipt_until_the_tenant_is_erased_again(data: Path) -> None:
    async with opened(archived(data)) as plane:
        await plane.state.append(TENANT, "s", [EventRecord("said", 1, b"x")] * 50)
        await plane.mover.round()
    (shard,) = (data / "history").glob("log-*")
    content = shard.read_bytes()
    shard.write_bytes(content[:-40] + bytes(40))
    async with opened(archived(data)) as plane:
        receipt = await erase(plane, TENANT)
        assert any(line.startswith("history: ") and shard.name in line for line in receipt.left)
        assert await plane.state.read(TENANT, "s") == []
    shard.write_bytes(content)
    async with opened(archived(data)) as plane:
        assert plane.old_events.count(TENANT) == (50, 50)
        assert (await erase(plane, TENANT)).left == ()
        assert plane.old_events.count(TENANT) == (0, 0)
