"""A table file of the database that is damaged, and that RocksDB meets when it rewrites its files: real bytes, flipped."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataplane.care.inspection import verify
from dataplane.errors import Unavailable
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.damage import flip, spoil_table
from tests.dataplane.planes import NAME, TENANT, config, filled, rows, vectors

TOLD = "the data plane takes no writes"
STORED = vectors(50)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    """Without an archive, which would tell of the damage too."""
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as made:
        yield made


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def compacted(plane: DataPlane) -> None:
    """Have RocksDB rewrite what it has of the state, as it does by itself sooner or later."""
    await asyncio.to_thread(plane.rocks.compact, "state", b"")
    assert plane.rocks.troubles() == 1


def remedied(why: str | None, table: Path) -> bool:
    """Whether it names the file, no folder of the machine, and what to do."""
    assert why is not None
    assert str(table.parent) not in why
    return (
        why.startswith(f"{TOLD}: its file {table.name} is damaged.") and "`acu data restore --from-backup DIR`" in why
    )


async def test_damage_that_rocksdb_has_met_is_a_state_that_is_told_before_somebody_writes(
    plane: DataPlane, caplog: pytest.LogCaptureFixture
) -> None:
    table = await spoil_table(plane)
    await plane.gauges.measure()
    assert plane.status().failed is None
    await compacted(plane)
    for _ in range(2):
        await plane.gauges.measure()
    status = plane.status()
    assert remedied(status.failed, table)
    assert status.last_error is None  # it is not tried again
    (record,) = told(caplog)
    assert record.message == TOLD
    assert str(table) in record.__dict__["why"]
    assert "acu data restore" in record.__dict__["remedy"]


async def test_writes_are_refused_with_what_to_do_and_reads_go_on(
    plane: DataPlane, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(plane, STORED)
    await plane.state.put(TENANT, "session", "one", b"before")
    table = await spoil_table(plane)
    await compacted(plane)
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            await plane.state.put(TENANT, "session", "one", b"after")
        assert remedied(str(refused.value), table)
        assert refused.value.retry_after_s == math.inf
        with pytest.raises(Unavailable, match=TOLD):
            await plane.upsert(TENANT, NAME, rows(vectors(1), start=50))
    stored = await plane.state.get(TENANT, "session", "one")
    assert stored is not None
    assert stored.value == b"before"
    result = await plane.search(TENANT, NAME, SearchQuery(vector=np.asarray(STORED[7]), k=1))
    assert [hit.id for hit in result.hits] == ["r7"]
    assert [record.message for record in told(caplog)] == [TOLD]


@pytest.mark.parametrize("noticed", [True, False])
async def test_it_closes_and_opens_again_and_what_was_written_before_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, noticed: bool
) -> None:
    wanted = msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)
    async with opened(wanted) as plane:
        table = await spoil_table(plane)
        await plane.state.put(TENANT, "session", "one", b"before")
        await compacted(plane)
        if noticed:
            await plane.gauges.measure()
    assert [record.message for record in told(caplog)] == [TOLD]
    flip(table)  # it is whole again
    async with opened(wanted) as plane:
        stored = await plane.state.get(TENANT, "session", "one")
        assert stored is not None
        assert stored.value == b"before"
        await plane.state.put(TENANT, "session", "one", b"after")


async def test_an_opening_that_meets_the_damage_tells_it_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With four tables above each other RocksDB begins to rewrite them as soon as it is open."""
    wanted = msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)
    async with opened(wanted) as plane:
        await spoil_table(plane, 3)
        await plane.state.put(TENANT, "session", "one", b"the fourth, when the log is read")
    caplog.clear()
    async with opened(wanted) as plane:
        while plane.rocks.troubles() == 0:
            await asyncio.sleep(0.01)
        await plane.gauges.measure()
        assert plane.status().failed is not None
        assert [record.message for record in told(caplog)] == [TOLD]


async def test_verify_names_the_file_and_repairs_nothing(plane: DataPlane) -> None:
    await filled(plane, STORED)
    table = await spoil_table(plane)
    (found,) = (await verify(plane, deep=True)).problems  # before RocksDB has met it
    assert (found.where, str(table) in found.what) == ("state", True)
    await compacted(plane)
    report = await verify(plane)
    (found,) = report.problems
    assert found.where == "database"
    assert remedied(found.what, table)
    report = await verify(plane, deep=True, mend=True)
    assert [problem.where for problem in report.problems] == ["database", "state"]
    assert report.repaired == ()
