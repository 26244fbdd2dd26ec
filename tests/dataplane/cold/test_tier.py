"""The cold tier: it archives by itself, waits while the bucket is away, and what it says of itself is so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataplane.care.inspection import verify
from dataplane.cold import archive_position, manifest
from dataplane.cold import tier as cold
from dataplane.cold.archive_position import MARKER_KEY
from dataplane.cold.archive_restore import restore
from dataplane.cold.attachments import tenant_folder
from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig
from dataplane.errors import BucketUnreachable, Closed, Conflict, Damaged
from dataplane.rows import SearchQuery
from dataplane.state.logshards import LogEvent
from dataplane.store import DataPlane, opened
from dataplane.truth.rocks import Rocks
from tests.dataplane.attached import listed
from tests.dataplane.boxes import content
from tests.dataplane.planes import NAME, TENANT, config, filled, rows, vectors
from tests.dataplane.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed


def archived(data: Path, every_s: float | None = None, **target: Any) -> DataPlaneConfig:
    """A data plane in `data` that archives into `<data>-cold`, or where `target` says."""
    return msgspec.structs.replace(config(data), archive_every_s=every_s, cold=ColdConfig(**target))


def upload(folder: Path) -> Path:
    """Where an uploaded file lies."""
    place = folder / "library" / "files" / tenant_folder(TENANT)
    place.mkdir(parents=True, exist_ok=True)
    return place / "file-1"


def bucket(folder: Path) -> Bucket:
    """The bucket of a data plane in `folder`."""
    return Bucket(ColdConfig(), cold.default_cold_folder(folder))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("older", [True, False])
async def test_an_archive_that_is_gone_or_was_set_back_is_told_by_verify_and_by_the_next_run(
    tmp_path: Path, older: bool
) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(30))
        await plane.cold.archive_now()
        shutil.copytree(tmp_path / "data-cold", tmp_path / "older")
        await plane.upsert(TENANT, NAME, rows(vectors(5), 100))
        await plane.cold.archive_now()
        assert await plane.cold.verify(deep=False) == []
        shutil.rmtree(tmp_path / "data-cold")
        if older:
            shutil.copytree(tmp_path / "older", tmp_path / "data-cold")
        told = "ends with manifest 1, and this box has written 2" if older else "which had 2 manifests, is gone"
        assert told in (await plane.cold.verify(deep=True))[-1].what
        with pytest.raises(Conflict, match=told):
            await plane.cold.archive_now()
        await plane.cold.archive_now(restart=True)
        assert await plane.cold.verify(deep=True) == []


async def test_a_lost_box_comes_back_from_its_bucket_alone_and_finds_the_same(tmp_path: Path) -> None:
    stored, queries = vectors(600), vectors(5, seed=2)
    folder = tmp_path / "data"
    async with opened(archived(folder)) as plane:
        await filled(plane, stored)
        await plane.delete(TENANT, NAME, ["r3", "r4"])
        await plane.state.put(TENANT, "session", "one", b"what was said")
        upload(folder).write_bytes(b"what was uploaded")
        report = await plane.cold.archive_now()
        assert report.rows == 598
        before = [(await plane.search(TENANT, NAME, SearchQuery(vector=query))).hits for query in queries]
        kept = content(plane.rocks)
    shutil.rmtree(folder)
    rocks = Rocks.open(folder / "rocks", memory_bytes=16 << 20)
    await restore(bucket(folder), rocks, folder=folder)
    assert content(rocks) == kept
    assert upload(folder).read_bytes() == b"what was uploaded"
    rocks.close()
    async with opened(archived(folder)) as plane:
        after = [(await plane.search(TENANT, NAME, SearchQuery(vector=query))).hits for query in queries]
        assert [[(hit.id, hit.score) for hit in hits] for hits in after] == [
            [(hit.id, hit.score) for hit in hits] for hits in before
        ]
        found = await plane.state.get(TENANT, "session", "one")
        assert found is not None
        assert found.value == b"what was said"
        report = await plane.cold.archive_now()
        assert (report.rows, report.files) == (0, 0)
        assert await plane.cold.verify(deep=True) == []


async def test_it_archives_by_itself_and_rests_while_nothing_is_written(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data", every_s=0.05)) as plane:
        await filled(plane, vectors(50))
        await until(lambda: plane.cold.status().backlog_rows == 0)
        await asyncio.sleep(0.3)
        runs = plane.cold.status().runs
        await asyncio.sleep(0.3)
        assert plane.cold.status().runs == runs
        await plane.upsert(TENANT, NAME, rows(vectors(5), start=50))
        await until(lambda: plane.cold.status().rows == 55)


async def shards_in_the_archive(folder: Path) -> set[str]:
    """The log shards that the newest manifest names."""
    names = {file.name.rpartition("/")[2] for file in await listed(bucket(folder))}
    return {name for name in names if name.endswith(".parquet")}


async def test_shards_of_the_history_that_were_merged_reach_the_archive_without_a_write(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with opened(archived(folder, every_s=0.05)) as plane:
        for first in (1, 11):
            plane.old_events.store(
                [LogEvent(TENANT, "run", seq, "note", 1000 + seq, b"x") for seq in range(first, first + 10)]
            )
        await plane.state.put(TENANT, "session", "one", b"said")
        await until(lambda: plane.cold.status().manifest > 0 and not plane.cold.status().running)
        await asyncio.sleep(0.3)
        assert await shards_in_the_archive(folder) == {"log-00000001.parquet", "log-00000002.parquet"}
        written, number = plane.rocks.writes(), plane.cold.status().manifest
        plane.old_events.tidy(None)
        assert plane.rocks.writes() == written
        await until(lambda: plane.cold.status().manifest > number)
        assert await shards_in_the_archive(folder) == {"log-00000003.parquet"}
        await asyncio.sleep(0.3)
        runs = plane.cold.status().runs
        await asyncio.sleep(0.3)
        assert plane.cold.status().runs == runs
        assert await plane.cold.verify(deep=True) == []


async def test_the_status_tells_the_backlog_and_what_the_archive_has(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(50))
        status = plane.status().cold
        assert (status.backlog_rows, status.manifest, status.rows, status.archived_ms) == (50, 0, None, None)
        assert status.backlog_bytes > 50 * 48 * 4
        assert status.where == f"folder {tmp_path / 'data-cold'}"
        assert not (tmp_path / "data-cold").exists()
        await plane.cold.archive_now()
        status = plane.status().cold
        assert (status.backlog_rows, status.backlog_bytes, status.manifest, status.rows) == (0, 0, 1, 50)
        files = [path for path in (tmp_path / "data-cold").rglob("*") if path.suffix in {".json", ".parquet"}]
        assert status.objects == len(files)
        assert status.bytes == sum(path.stat().st_size for path in files if path.suffix == ".parquet")
        await plane.delete(TENANT, NAME, ["r1", "r2"])
        assert plane.status().cold.backlog_rows == 2


async def test_the_backlog_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(50))
        await plane.cold.archive_now()
        await plane.upsert(TENANT, NAME, rows(vectors(3), start=50))
    async with opened(archived(tmp_path / "data")) as plane:
        status = plane.status().cold
        assert (status.backlog_rows, status.manifest, status.rows) == (3, 1, None)
        await plane.cold.look()
        assert plane.status().cold.rows == 50


async def test_a_bucket_that_is_away_is_waited_for_and_the_backlog_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "RETRY_FIRST_S", 0.05)
    monkeypatch.setattr(cold, "RETRY_MOST_S", 0.2)
    blocked = tmp_path / "mount"
    blocked.write_text("not a folder: nothing can be put below it")
    async with opened(archived(tmp_path / "data", every_s=0.05, folder=str(blocked / "archive"))) as plane:
        await filled(plane, vectors(50))
        await until(lambda: plane.cold.status().failures >= 3)
        status = plane.cold.status()
        assert status.backlog_rows == 50
        assert str(blocked / "archive") in (status.last_error or "")
        with pytest.raises(BucketUnreachable):
            await plane.cold.archive_now()
        blocked.unlink()
        await until(lambda: plane.cold.status().rows == 50)  # counted at the end of a run
        status = plane.cold.status()
        assert (status.backlog_rows, status.last_error) == (0, None)


async def test_nothing_is_archived_by_itself_where_it_is_switched_off(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data", every_s=None)) as plane:
        await filled(plane, vectors(5))
        await asyncio.sleep(0.2)
        assert plane.cold.status().runs == 0
    assert not (tmp_path / "data-cold").exists()


async def test_two_boxes_on_one_prefix_are_told_and_nothing_is_put(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    async with opened(archived(tmp_path / "a", folder=shared)) as plane:
        await filled(plane, vectors(5))
        await plane.cold.archive_now()
    async with opened(archived(tmp_path / "b", folder=shared)) as plane:
        await filled(plane, vectors(6))
        with pytest.raises(Conflict, match="another box"):
            await plane.cold.archive_now()
        assert "another box" in (plane.cold.status().last_error or "")
    assert await manifest.numbers(Bucket(ColdConfig(folder=shared), tmp_path)) == [1]


async def test_closing_ends_a_run_and_the_next_box_goes_on(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(1500))
        run = asyncio.create_task(plane.cold.archive_now())
        await asyncio.sleep(0.01)
        await plane.close()
        with pytest.raises(Closed):
            await run
        with pytest.raises(Closed):
            await plane.cold.archive_now()
    async with opened(archived(tmp_path / "data")) as plane:
        assert (await plane.cold.archive_now()).manifest == 1
        assert await plane.cold.verify(deep=True) == []


async def test_a_caller_who_leaves_ends_its_run(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data")) as plane:
        await filled(plane, vectors(600))
        run = asyncio.create_task(plane.cold.archive_now())
        await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not plane.cold.status().running
        assert (await plane.cold.archive_now()).manifest == 1


async def test_a_box_whose_restore_was_broken_off_does_not_open(tmp_path: Path) -> None:
    rocks = Rocks.open(tmp_path / "data" / "rocks", memory_bytes=16 << 20)
    batch = rocks.batch()
    batch.put("meta", MARKER_KEY, b"")
    rocks.write(batch)
    rocks.close()
    with pytest.raises(Damaged, match="run `acu data restore` again"):
        await DataPlane.open(config(tmp_path / "data"))


async def test_the_box_keeps_its_deletions_from_the_first_run_on(tmp_path: Path) -> None:
    async with opened(archived(tmp_path / "data", folder=str(tmp_path / "x" / "y"))) as plane:
        (tmp_path / "x").write_text("")
        await filled(plane, vectors(5))
        assert archive_position.load(plane.rocks) is None
        with pytest.raises(BucketUnreachable):
            await plane.cold.archive_now()
        (tmp_path / "x").unlink()
        await plane.cold.archive_now()
        position = archive_position.load(plane.rocks)
        assert position is not None
        assert position.number == 1


async def test_the_real_server_dies_under_load_and_comes_back_and_nothing_is_lost_or_doubled(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "RETRY_FIRST_S", 0.1)
    monkeypatch.setattr(cold, "RETRY_MOST_S", 0.5)
    target = {
        "bucket": BUCKET,
        "endpoint": seaweed.endpoint,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "allow_http": True,
        "prefix": "lost/box",
        "request_timeout_s": 5.0,
        "retries": 0,
    }
    settings = archived(tmp_path / "data", every_s=0.1, **target)
    stored, queries = vectors(1200), vectors(5, seed=2)
    async with opened(settings) as plane:
        await filled(plane, stored[:200])
        await until(lambda: plane.cold.status().backlog_rows == 0)
        await asyncio.to_thread(seaweed.kill)
        for start in range(200, 1000, 100):
            await plane.upsert(TENANT, NAME, rows(stored[start : start + 100], start=start), "durable")
            await plane.delete(TENANT, NAME, [f"r{start - 1}"])
        await until(lambda: plane.cold.status().failures >= 2)
        assert plane.cold.status().backlog_rows >= 800
        await asyncio.to_thread(seaweed.start)
        await plane.upsert(TENANT, NAME, rows(stored[1000:], start=1000))
        async with asyncio.timeout(60):  # what the archive holds is counted at the end of a run
            while (status := plane.cold.status()).backlog_rows or status.rows != 1192:
                await asyncio.sleep(0.05)
        before = [(await plane.search(TENANT, NAME, SearchQuery(vector=query, exact=True))).hits for query in queries]
        await plane.cold.archive_now()
        kept = content(plane.rocks)
    shutil.rmtree(tmp_path / "data")
    rocks = Rocks.open(tmp_path / "data" / "rocks", memory_bytes=16 << 20)
    report = await restore(Bucket(settings.cold, tmp_path), rocks, folder=tmp_path / "data")
    assert report.rows == 1192
    assert content(rocks) == kept
    rocks.close()
    async with opened(msgspec.structs.replace(settings, archive_every_s=None)) as plane:
        after = [(await plane.search(TENANT, NAME, SearchQuery(vector=query, exact=True))).hits for query in queries]
        assert [[hit.id for hit in hits] for hits in after] == [[hit.id for hit in hits] for hits in before]
        verdict = await verify(plane, deep=True)
        assert (verdict.problems, verdict.rows) == ((), 1192)
