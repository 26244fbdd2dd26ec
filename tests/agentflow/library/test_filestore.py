"""Uploaded files: what is kept, what is refused, and what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import InvalidRequest
from agentflow.library.errors import FileTooLarge
from agentflow.library.filestore import listed
from agentflow.library.records import FileRecord
from agentflow.library.refusals import DiskFull, NotStored, QuotaExceeded
from agentflow.library.values import PURPOSES, NewStore, PageRequest
from dataplane.cold.attachments import tenant_folder
from dataplane.cold.uploads import Upload
from dataplane.errors import StorageFull, Unavailable
from tests.agentflow.library.libraries import TENANT, Desk, opened
from tests.smalldisk import fill_up, free, small_disk


async def test_an_upload_becomes_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload(b"\x00\x01bytes", "data.bin", purpose="user_data")
        assert (file.filename, file.purpose, file.bytes, file.expires_at) == ("data.bin", "user_data", 7, None)
        assert len(file.id) >= len("file-") + 24
        assert abs(file.created_at - time.time()) < 60
        path = desk.library.file_path(TENANT, file.id)
        assert path.read_bytes() == b"\x00\x01bytes"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert TENANT not in str(path.relative_to(tmp_path))
        assert list((tmp_path / "uploads").iterdir()) == []
        assert await desk.library.file(TENANT, file.id) == file


async def test_every_purpose_of_openais_is_taken(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        assert [(await desk.upload("x", purpose=purpose)).purpose for purpose in PURPOSES] == list(PURPOSES)


WRONG_FILES: list[tuple[str, str, dict[str, Any], str]] = [
    ("x", "a.md", {"purpose": "fun"}, "purpose"),
    ("x", "a.md", {"expires_after_s": 3599}, "expires_after.seconds"),
    ("x", "a.md", {"expires_after_s": 2_592_001}, "expires_after.seconds"),
    ("", "a.md", {}, "file"),
    ("x", "", {}, "file"),
    ("x", "..", {}, "file"),
    ("x", "dir/", {}, "file"),
    ("x", "a\0b", {}, "file"),
    ("x", "\ud800.md", {}, "file"),
    ("x", "n" * 513, {}, "file"),
]


async def test_what_cannot_be_a_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for content, filename, more, param in WRONG_FILES:
            with pytest.raises(InvalidRequest) as refused:
                await desk.upload(content, filename, **more)
            assert refused.value.param == param
            assert _on_disk(desk) == []
        assert (await desk.library.files(TENANT, PageRequest())).data == ()


async def test_of_a_path_only_the_name_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for filename in ["/etc/passwd", "..\\..\\passwd", "a/../passwd", " passwd "]:
            assert (await desk.upload("x", filename)).filename == "passwd"


async def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, max_file_mb=1) as desk:
        assert desk.library.max_file_bytes == 1 << 20
        with pytest.raises(FileTooLarge, match="1,048,577 bytes, and 1,048,576 are the most"):
            await desk.upload(b"x" * ((1 << 20) + 1))
        assert (await desk.upload(b"x" * (1 << 20))).bytes == 1 << 20


async def test_quotas_hold_for_each_tenant_also_against_uploads_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, max_tenant_mb=1, max_tenant_files=3) as desk:
        half = b"x" * (1 << 19)
        done = await asyncio.gather(*(desk.upload(half) for _ in range(4)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == [
            "FileObject",
            "FileObject",
            "QuotaExceeded",
            "QuotaExceeded",
        ]
        with pytest.raises(QuotaExceeded, match="do not fit"):
            desk.library.new_upload(TENANT)
        await desk.upload(half, tenant="rival")
        kept = next(one for one in done if not isinstance(one, BaseException))
        await desk.library.delete_file(TENANT, kept.id)
        await desk.upload("small")
        await desk.upload("smaller")
        with pytest.raises(QuotaExceeded, match="3 files, which is the most"):
            desk.library.new_upload(TENANT)


async def test_a_deleted_file_is_gone_from_disk_and_from_every_store(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file, other = await desk.upload("The fox of the first file."), await desk.upload("The fox of the second.")
        stores = [await desk.store(file.id, other.id) for _ in range(2)]
        path = desk.library.file_path(TENANT, file.id)
        await desk.library.delete_file(TENANT, file.id)
        assert not path.exists()
        with pytest.raises(NotStored):
            await desk.library.file(TENANT, file.id)
        for store in stores:
            assert [hit.file_id for hit in await desk.search(store, "fox")] == [other.id]
            assert (await desk.counts(store)).total == 1
            assert desk.rows(store) == 1
            with pytest.raises(NotStored):
                await desk.library.store_file(TENANT, store, file.id)
        with pytest.raises(NotStored):
            await desk.library.delete_file(TENANT, file.id)


async def test_files_are_listed_by_time_in_parts_and_by_purpose(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        ids = [(await desk.upload("x", purpose=("batch", "vision")[n % 2])).id for n in range(7)]
        files = desk.library.files

        async def listed(**more: object) -> tuple[list[str], bool]:
            page = await files(TENANT, PageRequest(**more))  # type: ignore[arg-type]
            return [one.id for one in page.data], page.has_more

        assert await listed() == (ids[::-1], False)
        assert await listed(order="asc", limit=3) == (ids[:3], True)
        assert await listed(order="asc", limit=3, after=ids[2]) == (ids[3:6], True)
        assert await listed(order="asc", limit=3, after=ids[5]) == (ids[6:], False)
        assert await listed(limit=3, after=ids[2]) == ([ids[1], ids[0]], False)
        assert await listed(limit=2, before=ids[2]) == ([ids[4], ids[3]], True)
        assert await listed(limit=10, after=ids[5], before=ids[2]) == ([ids[4], ids[3]], False)
        by_purpose = await files(TENANT, PageRequest(order="asc"), "vision")
        assert [one.id for one in by_purpose.data] == ids[1::2]
        with pytest.raises(InvalidRequest, match="from 1 to 10000"):
            await listed(limit=10_001)


async def test_an_expired_file_is_not_there_and_its_bytes_go(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("The fox.", expires_after_s=3600)
        assert file.expires_at == file.created_at + 3600
        store = await desk.store(file.id)
        path = desk.library.file_path(TENANT, file.id)
        stored = await desk.state.get(TENANT, "file", file.id)
        assert stored is not None
        record = msgspec.json.decode(stored.value, type=FileRecord)
        aged = msgspec.structs.replace(record, expires_ms=int(time.time() * 1000) - 1)
        await desk.state.put(TENANT, "file", file.id, msgspec.json.encode(aged))
    async with opened(tmp_path) as desk:
        with pytest.raises(NotStored):
            await desk.library.file(TENANT, file.id)
        await desk.library.sweep()
        assert not path.exists()
        assert await desk.search(store, "fox") == ()
        assert await desk.state.get(TENANT, "file", file.id) is None


async def test_a_start_removes_uploads_that_broke_off_and_bytes_without_a_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("kept")
        place = desk.library.file_path(TENANT, file.id)
        place.with_name("file-lost").write_text("no record knows me")
        desk.library.new_upload(TENANT).write_text("half of")
    async with opened(tmp_path) as desk:
        assert _on_disk(desk) == [place]
        assert place.read_text() == "kept"


async def test_a_file_whose_record_cannot_be_stored_leaves_no_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.upload("before")
        await desk.plane.writer.close()
        with pytest.raises(Exception, match="clos"):
            await desk.upload("after")
        assert len(_on_disk(desk)) == 1


def sync_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch, *, then_writes_too: bool) -> None:
    """From now on a sync of the data plane's log fails, once; or every one, and all writes after the first sync."""
    rocks = desk.plane.rocks
    sync, write, failed = rocks.sync, rocks.write, []

    def fail() -> None:
        raise StorageFull("the disk of the data plane is full.")

    def failing_sync() -> None:
        failed.append(1)
        if then_writes_too or len(failed) == 1:
            fail()
        sync()

    def failing_write(batch: Any) -> None:
        if then_writes_too and failed:
            fail()
        write(batch)

    monkeypatch.setattr(rocks, "sync", failing_sync)
    monkeypatch.setattr(rocks, "write", failing_write)


async def test_an_upload_of_which_only_the_sync_failed_leaves_neither_record_nor_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        before = await desk.upload("before")
        sync_fails(desk, monkeypatch, then_writes_too=False)
        with pytest.raises(DiskFull):
            await desk.upload("after")
        assert _on_disk(desk) == [desk.library.file_path(TENANT, before.id)]
        assert await _records(desk) == [before.id]


async def test_a_record_that_a_failed_upload_left_still_has_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        before = await desk.upload("before")
        sync_fails(desk, monkeypatch, then_writes_too=True)
        with pytest.raises(DiskFull):
            await desk.upload("after")
        monkeypatch.undo()
    async with opened(tmp_path) as desk:
        kept = [file.id for file in (await desk.library.files(TENANT, PageRequest(order="asc"))).data]
        assert await _records(desk) == kept
        assert (len(kept), kept[0]) == (2, before.id)
        assert [desk.library.file_path(TENANT, file_id).read_text() for file_id in kept] == ["before", "after"]


async def test_a_file_whose_bytes_are_gone_stays_known_and_is_logged_until_it_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as desk:
        lost, kept = await desk.upload("The fox of the lost file."), await desk.upload("The fox of the kept one.")
        desk.library.file_path(TENANT, lost.id).unlink()
    for _ in range(2):
        caplog.clear()
        async with opened(tmp_path) as desk:
            told = [vars(record)["file"] for record in caplog.records if "bytes of a file are gone" in record.message]
            assert told == [lost.id]
            assert sorted(await _records(desk)) == sorted([lost.id, kept.id])
    async with opened(tmp_path) as desk:
        await desk.library.delete_file(TENANT, lost.id)
        assert await _records(desk) == [kept.id]
        assert desk.library.file_path(TENANT, kept.id).read_text() == "The fox of the kept one."


async def test_folders_that_are_none_of_ours_do_not_keep_the_library_from_opening(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        path = desk.library.file_path(TENANT, (await desk.upload("kept")).id)
    for stray in (tmp_path / "uploads" / "stray" / "deep", path.parent / "stray", tmp_path / "files" / "stray"):
        stray.mkdir(parents=True)
    (tmp_path / "uploads" / "stray" / "file").write_text("x")
    (tmp_path / "files" / "note").write_text("x")
    async with opened(tmp_path):
        assert list((tmp_path / "uploads").iterdir()) == []
        assert path.read_text() == "kept"
        assert (path.parent / "stray").is_dir()


async def test_of_deletes_at_once_exactly_one_succeeds(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("x")
        deletes = (desk.library.delete_file(TENANT, file.id) for _ in range(8))
        done = await asyncio.gather(*deletes, return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["NoneType", *["NotStored"] * 7]


async def test_a_delete_that_fails_changes_nothing_and_the_next_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("still here")
        path, rocks = desk.library.file_path(TENANT, file.id), desk.plane.rocks

        def fail(_: object) -> None:
            raise StorageFull("the disk of the data plane is full.")

        monkeypatch.setattr(rocks, "write", fail)
        done = await asyncio.gather(
            *(desk.library.delete_file(TENANT, file.id) for _ in range(2)), return_exceptions=True
        )
        assert [type(one) for one in done] == [DiskFull, DiskFull]
        assert (await desk.library.file(TENANT, file.id), path.read_text()) == (file, "still here")
        monkeypatch.undo()
        await desk.library.delete_file(TENANT, file.id)
        assert not path.exists()


async def test_a_record_has_the_sha256_of_its_bytes_and_an_older_one_is_read_without(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("The fox.")
        (upload,) = await listed(desk.state)
        name = f"library/files/{tenant_folder(TENANT)}/{file.id}"
        assert upload == Upload(name, 8, hashlib.sha256(b"The fox.").hexdigest())
        stored = await desk.state.get(TENANT, "file", file.id)
        assert stored is not None
        older = msgspec.json.decode(stored.value)
        del older["sha256"]
        await desk.state.put(TENANT, "file", file.id, msgspec.json.encode(older))
        assert await listed(desk.state) == [Upload(name, 8, None)]
    async with opened(tmp_path) as desk:
        assert await desk.library.file(TENANT, file.id) == file


async def test_a_missing_folder_of_all_files_costs_no_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as desk:
        file = await desk.upload("The fox.")
        store = await desk.store(file.id)
    (tmp_path / "files").rename(tmp_path / "away")
    async with opened(tmp_path) as desk:
        assert "the folder of all uploaded files is missing" in caplog.text
        assert await desk.library.file(TENANT, file.id) == file
        assert [hit.file_id for hit in await desk.search(store, "fox")] == [file.id]


async def test_an_uploads_bytes_and_the_folders_on_its_way_are_synced_before_its_id_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    folder = tmp_path / "data" / "library"
    folder.parent.mkdir()
    monkeypatch.setattr(os, "fsync", noted)
    async with opened(folder) as desk:
        assert {str(folder / "files"), str(folder), str(folder.parent)} <= set(synced)
        for _ in range(2):
            synced.clear()
            place = desk.library.file_path(TENANT, (await desk.upload("x")).id)
            ours = [path for path in synced if path.startswith((str(folder / "uploads"), str(folder / "files")))]
            assert ours[0].startswith(str(folder / "uploads"))
            assert ours[1:] == [str(place.parent), str(folder / "files")]


async def _records(desk: Desk) -> list[str]:
    """The ids of files in the state store."""
    return [name for name, _ in await desk.state.scan(TENANT, "file")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MiB."""
    with small_disk(tmp_path / "small", 160) as made:
        yield made


async def test_on_a_full_disk_writes_are_refused_searches_go_on_and_deleting_makes_room(disk: Path) -> None:
    reached = False
    with contextlib.suppress(Unavailable):  # of the data plane that closes before it has seen that there is room again
        async with opened(disk) as desk:
            await _fill(desk, disk)
            reached = True
    assert reached


async def _fill(desk: Desk, disk: Path) -> None:
    fox, large = await desk.upload("The fox."), await desk.upload(b"x" * (2 << 20))
    store = await desk.store(fox.id)
    desk.state.lender = desk.plane.state.lender  # the daemon's library uses that store itself
    reserve = desk.plane.folder / "reserve"
    assert reserve.stat().st_blocks > 0
    fill_up(disk)
    metadata = {str(n): "v" * 512 for n in range(16)}
    with pytest.raises(DiskFull, match="disk of the data plane is full"):
        for _ in range(500):
            await desk.library.create_store(TENANT, NewStore(metadata=metadata))
    assert [hit.file_id for hit in await desk.search(store, "fox", ranker="none")] == [fox.id]
    assert (await desk.library.file(TENANT, fox.id)) == fox
    path = desk.library.file_path(TENANT, large.id)
    await desk.library.delete_file(TENANT, large.id)
    assert not path.exists()
    assert await _records(desk) == [fox.id]
    assert reserve.stat().st_blocks > 0, "what is left of it was taken back"
    free(disk)


def _on_disk(desk: Desk) -> list[Path]:
    return [path for part in ("uploads", "files") for path in (desk.folder / part).rglob("*") if not path.is_dir()]
