"""The archive: what a run puts, that a run can end anywhere, and whose archive it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataplane.cold import archive_export, manifest
from dataplane.cold import archive_position as positions
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_export import ArchiveReport, Limits
from dataplane.cold.archive_restore import restore
from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.errors import BucketUnreachable, Conflict, Damaged
from dataplane.truth import keys
from dataplane.truth.rocks import Rocks
from tests.dataplane.boxes import Tenant, content, fill, ids, local_bucket, open_box
from tests.dataplane.killing import killed
from tests.dataplane.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

SMALL = Limits(segment_rows=500)


class Interrupted(Exception):
    """Raised in a test's progress callback."""


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    box = open_box(tmp_path / "box")
    yield box
    box.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return local_bucket(tmp_path / "cold")


async def restored(bucket: Bucket, folder: Path) -> dict[str, dict[bytes, bytes]]:
    box = open_box(folder)
    try:
        await restore(bucket, box)
        return content(box)
    finally:
        box.close()


async def newest(bucket: Bucket) -> manifest.Manifest:
    return (await manifest.shelf(bucket)).whole[0].manifest


async def collection_of(bucket: Bucket, tenant: str = "alice") -> manifest.Collection:
    return next(one for one in (await newest(bucket)).collections if one.key == (tenant, 1))


async def test_what_was_archived_comes_back_byte_for_byte(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    fill(rocks)
    report = await Archiver(rocks, bucket, SMALL).archive()
    assert report.rows == 1_950 + 200
    assert report.seqs == {("alice", 1): 2_100, ("alice", 2): 0, ("bob", 1): 200}
    assert await manifest.verify(bucket, deep=True) == []
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_run_that_finds_nothing_new_puts_nothing(rocks: Rocks, bucket: Bucket) -> None:
    fill(rocks)
    archiver = Archiver(rocks, bucket, SMALL)
    first = await archiver.archive()
    second = await archiver.archive()
    assert (second.objects, second.bytes, second.rows, second.manifest) == (0, 0, 0, first.manifest)
    assert (await Archiver(rocks, bucket, SMALL).archive()).objects == 0


async def test_a_run_sends_only_what_changed(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    alice, bob = fill(rocks)
    archiver = Archiver(rocks, bucket, SMALL)
    await archiver.archive()
    alice.upsert(1, ids(5_000, 10))
    alice.delete(1, ids(300, 5))
    bob.put_state("session-3", b"changed")
    report = await archiver.archive()
    assert report.rows == 10
    # alice's rows and deletions, bob's state, alice's meta, and the manifest
    assert report.objects == 5
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_an_empty_box_is_archived_and_comes_back_empty(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    assert (await Archiver(rocks, bucket).archive()).manifest == 1
    assert await restored(bucket, tmp_path / "new") == content(rocks) == {family: {} for family in content(rocks)}


async def test_segments_of_which_much_has_ended_are_rewritten(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    alice, _ = fill(rocks)
    archiver = Archiver(rocks, bucket, SMALL)
    await archiver.archive()
    before = {one.sealed.name for one in (await collection_of(bucket)).rows}
    alice.delete(1, ids(600, 300))
    assert (await archiver.archive()).rewritten == 1
    collection = await collection_of(bucket)
    after = {one.sealed.name: one for one in collection.rows}
    assert len(before - after.keys()) == len(after.keys() - before) == 1
    (rewritten,) = after.keys() - before
    # Rows 0 to 49 and 100 to 149 were gone from the first segment before it was made.
    assert (after[rewritten].sealed.count, after[rewritten].dead, after[rewritten].applied) == (200, 0, 2_400)
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_many_small_segments_become_one_and_deletions_are_merged(
    rocks: Rocks, bucket: Bucket, tmp_path: Path
) -> None:
    tenant = Tenant(rocks, "alice")
    tenant.create("notes", 1)
    archiver = Archiver(rocks, bucket, Limits(small_run=4, deletion_segments=3))
    for turn in range(10):
        tenant.upsert(1, ids(20 * turn, 20))
        tenant.delete(1, ids(20 * turn, 2))
        await archiver.archive()
    tenant.delete(1, ids(2, 2))
    await archiver.archive()
    (collection,) = (await newest(bucket)).collections
    assert len(collection.rows) < 4
    assert len(collection.deletions) <= 3
    assert await manifest.verify(bucket, deep=True) == []
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_only_the_newest_manifests_and_what_they_name_stay(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    alice, _ = fill(rocks, 500)
    archiver = Archiver(rocks, bucket, Limits(manifests_kept=2))
    await archiver.archive()
    await bucket.put("segments/" + "0" * 64 + ".parquet", b"left by a run that was broken off")
    for turn in range(4):
        alice.upsert(1, ids(9_000 + turn, 1))
        await archiver.archive()
    stored = (await manifest.shelf(bucket, most=9)).whole
    assert [one.manifest.number for one in stored] == [5, 4]
    named = {segment.name for one in stored for segment in one.manifest.segments()}
    assert {name async for name, _ in bucket.list("segments")} == named


@pytest.mark.parametrize("objects", range(1, 9))
async def test_a_run_that_ends_after_any_object_is_taken_up_again(
    rocks: Rocks, bucket: Bucket, tmp_path: Path, objects: int
) -> None:
    alice, _ = fill(rocks, 1_000)

    def interrupt(report: ArchiveReport) -> None:
        if report.objects == objects:
            raise Interrupted

    with pytest.raises(Interrupted):
        await Archiver(rocks, bucket, SMALL).archive(interrupt)
    alice.delete(1, ids(0, 5))
    alice.upsert(1, ids(4_000, 5))
    await Archiver(rocks, bucket, SMALL).archive()
    assert await manifest.verify(bucket, deep=True) == []
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_manifest_whose_answer_did_not_come_is_known_again(rocks: Rocks, bucket: Bucket) -> None:
    fill(rocks, 250)
    report = ArchiveReport()

    def interrupt(now: ArchiveReport) -> None:
        nonlocal report
        report = now
        if any((Path(bucket.where.removeprefix("the folder ")) / "acu/manifests").glob("*.json")):
            raise Interrupted

    with pytest.raises(Interrupted):
        await Archiver(rocks, bucket).archive(interrupt)
    position = positions.load(rocks)
    assert position is not None
    assert (position.number, len(position.pending)) == (0, 1)
    assert (await Archiver(rocks, bucket).archive()).objects == 0
    position = positions.load(rocks)
    assert position is not None
    assert (position.number, position.pending) == (1, ())


async def test_the_backlog_is_what_is_not_archived_yet(rocks: Rocks, bucket: Bucket) -> None:
    alice, _ = fill(rocks, 500)
    backlog = positions.backlog(rocks)
    assert backlog.rows == 600 + 200
    assert backlog.bytes > 600 * 32
    assert positions.archived_seq(rocks, "alice", 1) == 0
    await Archiver(rocks, bucket).archive()
    assert positions.backlog(rocks) == (0, 0)
    assert positions.archived_seq(rocks, "alice", 1) == 600
    alice.delete(1, ids(0, 3))
    assert positions.backlog(rocks).rows == 3


async def test_a_second_box_on_the_same_prefix_is_refused(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    fill(rocks, 250)
    await Archiver(rocks, bucket).archive()
    other = open_box(tmp_path / "other")
    try:
        fill(other, 250)
        for restart in (False, True):
            with pytest.raises(Conflict, match="belongs to another box"):
                await Archiver(other, bucket).archive(restart=restart)
    finally:
        other.close()
    assert await manifest.verify(bucket, deep=True) == []


async def test_a_box_that_was_set_back_is_refused_until_it_restarts(bucket: Bucket, tmp_path: Path) -> None:
    box = open_box(tmp_path / "box")
    alice, _ = fill(box, 250)
    await Archiver(box, bucket).archive()
    box.checkpoint(tmp_path / "backup")
    alice.upsert(1, ids(7_000, 5))
    await Archiver(box, bucket).archive()
    box.close()
    box = open_box(tmp_path / "backup")
    try:
        with pytest.raises(Conflict, match="set back"):
            await Archiver(box, bucket).archive()
        assert (await Archiver(box, bucket).archive(restart=True)).manifest == 3
        assert await restored(bucket, tmp_path / "new") == content(box)
    finally:
        box.close()


async def test_a_bucket_that_lost_everything_is_told_and_filled_again_when_that_is_wanted(
    rocks: Rocks, bucket: Bucket, tmp_path: Path
) -> None:
    fill(rocks, 250)
    await Archiver(rocks, bucket).archive()
    shutil.rmtree(tmp_path / "cold" / "acu")
    with pytest.raises(Conflict, match=r"is gone: is its disk mounted.*--restart"):
        await Archiver(rocks, bucket).archive()
    assert (await Archiver(rocks, bucket).archive(restart=True)).manifest == 2
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_damaged_manifest_is_named_and_a_restart_heals_it(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    fill(rocks, 250)
    await Archiver(rocks, bucket).archive()
    name = manifest.name_of(1)
    data = bytearray(await bucket.get(name))
    data[200] ^= 1
    await bucket.put(name, bytes(data))
    with pytest.raises(Damaged, match=name):
        await Archiver(rocks, bucket).archive()
    await Archiver(rocks, bucket).archive(restart=True)
    assert await manifest.verify(bucket, deep=True) == []
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_restart_heals_a_damaged_segment(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    fill(rocks, 250)
    await Archiver(rocks, bucket).archive()
    segment = (await newest(bucket)).collections[0].rows[0].sealed
    data = bytearray(await bucket.get(segment.name))
    data[len(data) // 2] ^= 1
    await bucket.put(segment.name, bytes(data))
    (problem,) = await manifest.verify(bucket, deep=True)
    assert problem.object == segment.name
    await Archiver(rocks, bucket).archive(restart=True)
    assert await manifest.verify(bucket, deep=True) == []
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_dropped_collection_leaves_the_archive(rocks: Rocks, bucket: Bucket, tmp_path: Path) -> None:
    alice, _ = fill(rocks, 250)
    archiver = Archiver(rocks, bucket)
    await archiver.archive()
    alice.drop("notes", 1)
    await archiver.archive()
    left = [(one.tenant, one.name) for one in (await newest(bucket)).collections]
    assert sorted(left) == [("alice", "empty"), ("bob", "notes")]
    assert await restored(bucket, tmp_path / "new") == content(rocks)


async def test_a_row_without_its_vector_is_named(rocks: Rocks, bucket: Bucket) -> None:
    fill(rocks, 250)
    batch = rocks.batch()
    batch.delete("vectors", keys.scope("alice", 1) + keys.number(70))
    rocks.write(batch)
    with pytest.raises(Damaged, match="row 70 of collection notes has no vector"):
        await Archiver(rocks, bucket).archive()


CHILD = """
import asyncio, sys
from pathlib import Path
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_export import Limits
from tests.dataplane.boxes import Tenant, ids, local_bucket, open_box

async def main(folder, turn):
    tenant = Tenant(open_box(folder / "box"), f"tenant-{turn}")
    archiver = Archiver(tenant.rocks, local_bucket(folder / "cold"), Limits(segment_rows=100, small_run=3))
    tenant.create("notes", 1)
    for step in range(1_000_000):
        tenant.upsert(1, ids(20 * step, 20))
        tenant.delete(1, ids(20 * step, 7))
        tenant.put_state(f"step-{step % 5}", b"%d" % step * 100)
        await archiver.archive()
        print(step, flush=True)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_a_box_that_is_killed_while_it_archives_goes_on(tmp_path: Path) -> None:
    for turn in range(4):
        assert (
            len(killed(CHILD, tmp_path, turn, lines=5, wait_s=0.013 * turn)) >= 5
        )  # somewhere within the next archive
        box, bucket = open_box(tmp_path / "box"), local_bucket(tmp_path / "cold")
        try:
            await Archiver(box, bucket).archive()
            assert len((await newest(bucket)).collections) == turn + 1
            assert await manifest.verify(bucket, deep=True) == []
            assert await restored(bucket, tmp_path / f"new-{turn}") == content(box)
        finally:
            box.close()


async def test_an_archive_on_s3_goes_on_after_its_server_was_killed(tmp_path: Path, seaweed: Seaweed) -> None:
    config = ColdConfig(
        bucket=BUCKET,
        endpoint=seaweed.endpoint,
        prefix="killed",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        allow_http=True,
        request_timeout_s=20,
        retries=1,
    )
    bucket = Bucket(config, tmp_path)
    box = open_box(tmp_path / "box")
    try:
        alice, _ = fill(box)
        archiver = Archiver(box, bucket, SMALL)

        def kill(report: ArchiveReport) -> None:
            if report.objects == 6:
                seaweed.kill()

        with pytest.raises(BucketUnreachable, match="no connection"):
            await archiver.archive(kill)
        assert positions.backlog(box).rows == 2_100 + 200
        alice.upsert(1, ids(8_000, 30))
        with pytest.raises(BucketUnreachable):
            await archiver.archive()
        seaweed.start()
        report = await archiver.archive()
        assert report.skipped > 0
        assert positions.backlog(box) == (0, 0)
        assert await manifest.verify(bucket, deep=True) == []
        assert await restored(bucket, tmp_path / "new") == content(box)
        alice.delete(1, ids(8_000, 30))
        await archiver.archive()
        receipt = await archiver.erase("alice", collection="notes", ids=ids(8_000, 30))
        assert receipt.left == ()
        assert await restored(bucket, tmp_path / "newer") == content(box)
    finally:
        box.close()


def names(held: dict[str, dict[bytes, bytes]]) -> set[bytes]:
    """The ids in collection 1 of alice."""
    scope = keys.scope("alice", 1)
    return {key[len(scope) :] for key in held["index"] if key.startswith(scope)}


async def test_a_row_that_is_replaced_again_and_again_during_a_run_is_in_the_archive(
    rocks: Rocks, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = Tenant(rocks, "alice")
    alice.create("notes", 1)
    alice.upsert(1, [f"r{number}" for number in range(1000)])
    archiver = Archiver(rocks, bucket, SMALL)
    await archiver.archive()
    alice.upsert(1, ["r5", "r6", "r1"])
    read, times = archive_export.read_rows, [0]

    def beside(*args: Any) -> Any:
        if times[0] < 5:
            times[0] += 1
            alice.upsert(1, ["r5"], text=f"version {times[0]} of")
            alice.delete(1, [f"r{100 + times[0]}"])
        return read(*args)

    monkeypatch.setattr(archive_export, "read_rows", beside)
    await archiver.archive()
    monkeypatch.undo()
    assert times[0] >= 2
    found, have = await restored(bucket, tmp_path / "new"), content(rocks)
    assert names(found) >= names(have)
    assert b"r5" in names(found)
    seq = alice.prefix + b"s" + keys.number(1)
    assert found["meta"][seq] >= max(key[-8:] for key in found["rows"])
    await archiver.archive()
    assert await restored(bucket, tmp_path / "newer") == content(rocks)
