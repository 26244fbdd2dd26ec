"""Files on their way into the bucket and back, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataplane.cold import archive_position as positions
from dataplane.cold import attachments, filelist, manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_attachments import Guarded, Outgoing
from dataplane.cold.archive_export import ArchiveReport, Export, Limits
from dataplane.cold.archive_restore import RestoreReport, restore
from dataplane.cold.attachments import PART_BYTES, tenant_folder
from dataplane.cold.bucket import Bucket
from dataplane.cold.segments import SegmentWriter
from dataplane.cold_config import ColdConfig
from dataplane.errors import ChecksumMismatch, Conflict, Damaged, InvalidInput
from dataplane.state.history import History
from tests.dataplane.attached import Box, attachment, brought_back, files, listed, newest
from tests.dataplane.boxes import Tenant, content, local_bucket, open_box
from tests.dataplane.killing import killed_by_itself
from tests.dataplane.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed


class Interrupted(Exception):
    """Raised in a test's progress callback."""


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return local_bucket(tmp_path / "cold")


@pytest.fixture
def box(tmp_path: Path, bucket: Bucket) -> Iterator[Box]:
    made = Box(tmp_path / "data", bucket)
    yield made
    made.close()


async def test_uploads_and_history_come_back_byte_for_byte(box: Box, bucket: Bucket, tmp_path: Path) -> None:
    large = os.urandom(2 * PART_BYTES + 12345)
    box.file("alice", "file-1", b"short")
    box.file("alice", "file-2", large)
    box.file("bob", "file-3", large[:PART_BYTES])
    box.file("bob", "file-4", b"")
    box.events(1)
    report = await box.archiver.archive()
    assert report.files == 5  # the index of the history is sent from memory
    assert [part.size for part in (await attachment(bucket, "file-2")).parts] == [PART_BYTES, PART_BYTES, 12345]
    assert (await attachment(bucket, "file-3")).parts == (await attachment(bucket, "file-2")).parts[:1]
    stored = await newest(bucket)
    assert (stored.files.count, stored.files.parts) == (6, 7)
    assert stored.files.bytes == sum(len(data) for data, _ in files(box.folder).values())
    owners = {one.tenant for one in stored.entries if one.family == filelist.FAMILY}
    assert owners == {tenant_folder("alice"), tenant_folder("bob"), "history"}
    assert await manifest.verify(bucket, deep=True) == []
    new = tmp_path / "new"
    assert (await brought_back(bucket, new)).files == 6
    assert files(new) == files(box.folder)
    for path in (new / "library").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    history = History.open(new / "history")
    assert history.verify() == []
    assert [event.seq for event in history.scan("alice", "run")] == [1, 2, 3, 4, 5]
    history.close()


async def test_a_file_that_is_known_is_not_read_again(box: Box, bucket: Bucket, tmp_path: Path) -> None:
    path = box.file("alice", "file-1", b"known")
    box.events(1)
    await box.archiver.archive()
    before = path.stat().st_mtime_ns
    path.write_bytes(b"other")  # nobody does this: it shows whether somebody reads
    os.utime(path, ns=(before, before))
    report = await box.archiver.archive()
    assert (report.files, report.objects, report.manifest) == (0, 0, 1)
    os.utime(path, ns=(before, before + 1))
    assert (await box.archiver.archive()).files == 1
    assert (await attachment(bucket, "file-1")).modified_ns == before + 1
    new = tmp_path / "new"
    await brought_back(bucket, new)
    rocks = open_box(new / "rocks")
    try:  # times come back, so a restored box knows its files too
        assert (await Archiver(rocks, bucket, folder=new).archive()).files == 0
    finally:
        rocks.close()


async def test_many_files_are_listed_in_ranges_of_which_only_what_changed_is_sent(
    box: Box, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filelist, "RANGE_BYTES", 8 << 10)
    for number in range(600):
        box.file("alice", f"file-{number:03}", b"all the same")
    assert (await box.archiver.archive()).files == 600
    before = set(await list_names(bucket))
    assert len(before) > 5
    box.path("alice", "file-300").unlink()
    box.file("alice", "file-301", b"another")
    report = await box.archiver.archive()
    after = set(await list_names(bucket))
    assert report.files == 1
    assert 1 <= len(after - before) <= 4
    assert report.objects == len(after - before) + 2  # a part, and the manifest
    assert [one.name for one in await listed(bucket)] == sorted(
        files(box.folder), key=lambda name: (name[0] == "h", name)
    )
    await brought_back(bucket, tmp_path / "new")
    assert files(tmp_path / "new") == files(box.folder)


async def list_names(bucket: Bucket) -> list[str]:
    return [segment.name for segment in filelist.segments(await newest(bucket))]


async def test_a_history_that_is_compacted_meanwhile_is_archived_whole(
    box: Box, bucket: Bucket, tmp_path: Path
) -> None:
    for first in (1, 6, 11):
        box.events(first)
    changes = 0

    def change(_: ArchiveReport) -> None:  # after each object: the shards that were listed go away
        nonlocal changes
        if changes < 4:
            changes += 1
            box.history.compact(1000)
            box.events(100 * changes)

    await box.archiver.archive(change)
    assert changes == 4
    await brought_back(bucket, tmp_path / "new")
    history = History.open(tmp_path / "new" / "history")
    assert history.verify() == []
    expected = [*range(1, 16), *(seq for turn in range(1, 5) for seq in range(100 * turn, 100 * turn + 5))]
    assert [event.seq for event in history.scan("alice", "run", limit=1000)] == expected
    history.close()


@pytest.mark.parametrize("moment", [1, 2])  # after the state and before the events; after both
async def test_an_event_that_moves_into_the_history_meanwhile_is_never_in_neither(
    box: Box, bucket: Bucket, tmp_path: Path, moment: int
) -> None:
    alice = Tenant(box.rocks, "alice")
    alice.put_events("run", 1, 3)
    kept = content(box.rocks)["events"]

    def move(report: ArchiveReport) -> None:
        if report.objects == moment:
            box.events(1, 3)
            batch = box.rocks.batch()
            batch.delete_prefix("events", alice.prefix)
            box.rocks.write(batch)

    await box.archiver.archive(move)
    assert content(box.rocks)["events"] == {}
    new = tmp_path / "new"
    await brought_back(bucket, new)
    rocks, history = open_box(new / "rocks"), History.open(new / "history")
    try:
        moved = {event.seq for event in history.scan("alice", "run")}
        assert content(rocks)["events"] == ({} if moment == 1 else kept)
        assert moved == {1, 2, 3}
    finally:
        history.close()
        rocks.close()


async def test_a_file_that_goes_away_before_it_is_read_is_left_out(box: Box, bucket: Bucket, tmp_path: Path) -> None:
    box.file("alice", "file-1", b"first")
    box.file("alice", "file-2", b"second")

    def delete(report: ArchiveReport) -> None:
        if report.objects == 2:  # state, then the first file
            box.path("alice", "file-2").unlink()

    await box.archiver.archive(delete)
    assert await manifest.verify(bucket, deep=True) == []
    assert [one.name.rpartition("/")[2] for one in await listed(bucket)] == ["file-1", "manifest.json"]
    await brought_back(bucket, tmp_path / "new")
    assert files(tmp_path / "new") == files(box.folder)


async def test_a_shard_that_is_missing_or_cut_is_told_and_stays_in_the_archive(box: Box, bucket: Bucket) -> None:
    for first in (1, 6, 11):
        box.events(first)
    cut, missing, _ = shards = sorted((box.folder / "history").glob("log-*"))
    assert (await box.archiver.archive()).damaged == []
    cut.write_bytes(cut.read_bytes()[:99])
    missing.unlink()
    for restart in (False, True):
        told = (await box.archiver.archive(restart=restart)).damaged
        assert [what.partition(" is missing")[0] for what in told] == [
            f"the shard history/{path.name}" for path in (cut, missing)
        ]
        names = [one.name for one in await listed(bucket)]
        assert names == [*(f"history/{path.name}" for path in shards), "history/manifest.json"]


async def test_a_damaged_shard_of_the_history_is_nobodys_folder_of_uploaded_files(box: Box) -> None:
    box.events(1)
    next((box.folder / "history").glob("log-*")).unlink()
    guarded, _ = Guarded().with_history(box.rocks, box.folder)
    assert len(guarded.damaged) == 1
    export = Export(box.rocks, box.bucket, Limits(), None, overwrite=False)
    assert Outgoing(export, box.rocks, box.folder, (), guarded)._folders(attachments.FILES) == []


@pytest.mark.parametrize("stop", [1, 2, 4])
async def test_a_restore_that_was_broken_off_between_files_is_run_again(
    box: Box, bucket: Bucket, tmp_path: Path, stop: int
) -> None:
    for number in range(3):
        box.file("alice", f"file-{number}", b"content %d" % number)
    await box.archiver.archive()

    def interrupt(report: RestoreReport) -> None:
        if report.files == stop:
            raise Interrupted

    new = tmp_path / "new"
    with pytest.raises(Interrupted):
        await brought_back(bucket, new, interrupt)
    assert len(files(new)) == stop
    box.path("alice", "file-0").unlink()
    (new / "library" / "files").mkdir(parents=True, exist_ok=True)
    (new / "library" / "files" / ".tmp-half").write_bytes(b"of a process that was killed")
    rocks = open_box(new / "rocks")
    with pytest.raises(Damaged, match="run `acu data restore` again"):
        positions.check_restored(rocks)
    rocks.close()
    await box.archiver.archive()
    await brought_back(bucket, new)
    assert files(new) == files(box.folder)


async def test_a_folder_with_files_is_not_empty_and_an_index_alone_is_nothing(
    box: Box, bucket: Bucket, tmp_path: Path
) -> None:
    box.file("alice", "file-1", b"first")
    await box.archiver.archive()
    new = tmp_path / "new"
    open_box(new / "rocks").close()
    mine = new / "library" / "files" / "x" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(Conflict, match="not empty"):
        await brought_back(bucket, new)
    assert mine.read_bytes() == b"mine"
    mine.unlink()
    History.open(new / "history").close()
    await brought_back(bucket, new)
    assert files(new) == files(box.folder)


async def test_an_archive_with_files_is_not_restored_without_a_place_for_them(
    box: Box, bucket: Bucket, tmp_path: Path
) -> None:
    await box.archiver.archive()
    rocks = open_box(tmp_path / "rocks")
    try:
        with pytest.raises(InvalidInput, match="in which folder"):
            await restore(bucket, rocks)
        positions.check_restored(rocks)
    finally:
        rocks.close()


@pytest.mark.parametrize("harm", ["sha256", "size", "parts"])
async def test_parts_that_do_not_make_the_file_are_refused(box: Box, bucket: Bucket, tmp_path: Path, harm: str) -> None:
    box.file("alice", "file-1", b"content")
    await box.archiver.archive()
    stored = await newest(bucket)
    wrong: dict[str, Any] = {"sha256": "0" * 64, "size": 6, "parts": ()}
    harmed = msgspec.structs.replace(await attachment(bucket, "file-1"), **{harm: wrong[harm]})
    writer = SegmentWriter("entries")
    folder = attachments.Folder(attachments.FILES, tenant_folder("alice"), "")
    writer.add_entries([filelist.entry(folder, harmed)])
    sealed, data = writer.finish()
    await bucket.put(sealed.name, data)
    entries = tuple(
        msgspec.structs.replace(one, sealed=sealed) if one.tenant == folder.owner else one for one in stored.entries
    )
    await bucket.put(manifest.name_of(1), manifest.seal(msgspec.structs.replace(stored, entries=entries))[1])
    with pytest.raises(ChecksumMismatch, match="file-1"):
        await brought_back(bucket, tmp_path / "new")
    assert not [name for name in files(tmp_path / "new") if "library" in name], "nothing half is left"


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from dataplane.cold.attachments import PART_BYTES
from tests.dataplane.attached import Box
from tests.dataplane.boxes import Tenant, local_bucket

async def main(folder, objects):
    box = Box(folder / "data", local_bucket(folder / "cold"))

    def end(report):
        if step == 3 and report.objects == objects:
            os.kill(os.getpid(), signal.SIGKILL)

    for step in range(4):
        box.file("alice", f"file-{step}", os.urandom(PART_BYTES + 100))
        box.events(10 * step)
        if step % 2:
            box.path("alice", f"file-{step - 1}").unlink()
            box.history.compact(1000)
        Tenant(box.rocks, "alice").put_state("step", b"%d" % step)
        await box.archiver.archive(end)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


# After the first part of two, the list of files, the index of the history, the manifest.
@pytest.mark.parametrize("objects", [2, 4, 6, 8])
async def test_a_box_that_is_killed_while_it_archives_files_goes_on(tmp_path: Path, objects: int) -> None:
    killed_by_itself(CHILD, tmp_path, objects)  # in its fourth archive, when it has put so many
    data, bucket = tmp_path / "data", local_bucket(tmp_path / "cold")
    # What the archive says now is whole, without another run.
    assert (await brought_back(bucket, tmp_path / "before")).manifest == (4 if objects == 8 else 3)
    History.open(tmp_path / "before" / "history").close()
    rocks = open_box(data / "rocks")
    try:
        History.open(data / "history").close()
        await Archiver(rocks, bucket, folder=data).archive()
        assert await manifest.verify(bucket, deep=True) == []
        await brought_back(bucket, tmp_path / "new")
        assert files(tmp_path / "new") == files(data)
        whole = [one.manifest for one in (await manifest.shelf(bucket, most=9)).whole]
        named = await manifest.parts_of(bucket, whole) | {one.name for each in whole for one in each.segments()}
        assert {name async for name in _names(bucket)} == named
    finally:
        rocks.close()


async def _names(bucket: Bucket) -> Any:
    for folder in ("segments", attachments.FOLDER):
        async for name, _ in bucket.list(folder):
            yield name


async def test_the_real_server_gives_back_what_a_lost_box_had(tmp_path: Path, seaweed: Seaweed) -> None:
    config = ColdConfig(
        bucket=BUCKET,
        endpoint=seaweed.endpoint,
        prefix="attached",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        allow_http=True,
        request_timeout_s=20,
    )
    bucket = Bucket(config, tmp_path)
    box = Box(tmp_path / "data", bucket)
    try:
        box.file("alice", "file-1", os.urandom(PART_BYTES + 54321))
        box.file("bob", "file-2", b"bob's")
        box.file("bob", "file-3", b"")
        box.events(1)
        await box.archiver.archive()
        box.events(6)
        box.path("bob", "file-2").unlink()
        report = await box.archiver.archive()
        assert (report.files, report.objects) == (1, 5)  # a shard, the index, two lists, the manifest
        assert await manifest.verify(bucket, deep=True) == []
        kept, stored = files(box.folder), content(box.rocks)
    finally:
        box.close()
    shutil.rmtree(tmp_path / "data")
    await brought_back(bucket, tmp_path / "data")
    assert files(tmp_path / "data") == kept
    rocks = open_box(tmp_path / "data" / "rocks")
    try:
        assert content(rocks) == stored
        Tenant(rocks, "alice").drop_all()
        attachments.remove_tenant(tmp_path / "data", "alice")
        receipt = await Archiver(rocks, bucket, folder=tmp_path / "data").erase("alice")
        assert receipt.left == ()
        assert len([name for name in receipt.removed if name.startswith(attachments.FOLDER)]) == 4
    finally:
        rocks.close()
