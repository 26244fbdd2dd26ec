"""The writer: order, what each wait means, failures that stay where they belong, and an end that loses nothing."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dataplane.errors import Closed, DataPlaneError, InvalidInput, StorageFull, Unavailable
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import BATCH_ROWS, Command, Draft, Wait, Writer
from tests.dataplane.truth.orders import Broken, Count, Look, Put, Refused, busy, started
from tests.smalldisk import fill_up, free, small_disk

MEMORY = 16 << 20


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    yield rocks
    rocks.close()


@pytest.fixture
async def writer(rocks: Rocks) -> AsyncIterator[Writer]:
    writer = Writer(rocks, 1000)
    writer.start()
    yield writer
    await writer.close()


@pytest.mark.parametrize("wait", ["visible", "durable"])
async def test_a_command_gives_what_its_draft_gave_and_is_stored(writer: Writer, rocks: Rocks, wait: Wait) -> None:
    assert await writer.submit(Put(b"k"), wait) == b"k"

    assert rocks.get("state", b"k") == b"v"


async def test_who_waits_for_nothing_gets_nothing_and_it_is_done_all_the_same(writer: Writer, rocks: Rocks) -> None:
    assert await writer.submit(Put(b"one"), "nothing") is None
    assert writer.submit_now(Put(b"two"))

    await writer.barrier()

    assert rocks.get_many("state", [b"one", b"two"]) == [b"v", b"v"]


async def test_commands_are_published_in_the_order_in_which_they_came(writer: Writer) -> None:
    published: list[bytes] = []
    names = [b"%03d" % number for number in range(500)]
    for name in names:
        await writer.submit(Put(name, published=published), "nothing")

    await writer.barrier()

    assert published == names
    assert writer.backlog == 0


async def test_a_draft_sees_what_commands_before_it_in_the_same_batch_changed(writer: Writer) -> None:
    seen: list[list[bytes | None]] = []
    async with busy(writer):
        tasks = await started(
            (writer, Put(b"a", b"1"), "visible"),
            (writer, Put(b"b", b"2"), "visible"),
            (writer, Look(lambda draft: draft.delete("state", b"a")), "visible"),
            (writer, Look(lambda draft: seen.append(draft.get_many("state", [b"b", b"c", b"a", b"b"]))), "visible"),
            (writer, Look(lambda draft: seen.append([draft.get("state", b"a")])), "visible"),
        )
    await asyncio.gather(*tasks)

    assert seen == [[b"2", None, None, b"2"], [None]]


async def test_counters_that_share_batches_lose_no_count(writer: Writer, rocks: Rocks) -> None:
    numbers = await asyncio.gather(*(writer.submit(Count()) for _ in range(400)))

    assert sorted(numbers) == list(range(1, 401))
    assert rocks.get("state", b"count") == (400).to_bytes(8, "big")


async def test_a_draft_that_is_refused_fails_alone(writer: Writer, rocks: Rocks) -> None:
    async with busy(writer):
        before, refused, after = await started(
            (writer, Put(b"before"), "visible"), (writer, Refused(), "durable"), (writer, Put(b"after"), "durable")
        )

    assert await before == b"before"
    with pytest.raises(InvalidInput, match=r"no\."):
        await refused
    assert await after == b"after"
    assert rocks.get_many("state", [b"before", b"after"]) == [b"v", b"v"]
    assert writer.failed is None
    assert writer.written == 3  # the one that kept the thread busy, too


async def test_durable_is_told_after_visible(writer: Writer) -> None:
    told: list[str] = []
    async with busy(writer):
        tasks = await started((writer, Put(b"d"), "durable"), (writer, Put(b"v"), "visible"))
        tasks[0].add_done_callback(lambda _: told.append("durable"))
        tasks[1].add_done_callback(lambda _: told.append("visible"))
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)

    assert told == ["visible", "durable"]


async def test_who_goes_ahead_waits_for_nothing_and_hears_when_it_is_durable(writer: Writer, rocks: Rocks) -> None:
    async with busy(writer):
        durable = await writer.submit_ahead(Put(b"k"))
        seen = asyncio.ensure_future(writer.submit(Look(lambda draft: draft.get("state", b"k")), "visible"))
        assert not durable.done()
    assert await seen == b"v"  # what comes behind it sees it
    assert await durable == b"k"


async def test_who_goes_ahead_hears_a_refusal_if_he_asks(writer: Writer) -> None:
    refused, unasked = await writer.submit_ahead(Refused()), await writer.submit_ahead(Refused())
    with pytest.raises(InvalidInput):
        await refused
    while not unasked.done():
        await asyncio.sleep(0.001)
    del unasked  # and an error that nobody asks for is no warning


async def test_what_went_ahead_and_could_not_be_synced_says_so(writer: Writer, rocks: Rocks) -> None:
    def full() -> None:
        raise StorageFull("full.")

    rocks.sync = full  # type: ignore[method-assign]
    durable = await writer.submit_ahead(Put(b"k"))
    with pytest.raises(StorageFull):
        await durable


async def test_a_command_that_must_be_alone_shares_no_batch(writer: Writer, rocks: Rocks) -> None:
    def stored(_: Draft) -> list[bytes | None]:
        return rocks.get_many("state", [b"before", b"after"])

    async with busy(writer):
        tasks = await started(
            (writer, Put(b"before"), "visible"),
            (writer, Look(stored, alone=True), "visible"),
            (writer, Put(b"after"), "visible"),
        )

    assert await tasks[1] == [b"v", None]
    await tasks[2]


async def test_one_batch_takes_no_more_rows_than_its_bound(rocks: Rocks) -> None:
    writer = Writer(rocks, 10_000)
    ends: list[int] = []
    seen: list[bytes] = []
    for number in range(3 * BATCH_ROWS):
        assert writer.submit_now(Put(b"%d" % number, published=seen))
    writer.submit_now(Look(lambda draft: ends.append(len(draft.batch))))
    writer.start()
    await writer.close()

    assert seen == [b"%d" % number for number in range(3 * BATCH_ROWS)]
    assert ends == [0]  # the one after three full batches begins a new one


async def test_a_barrier_waits_for_all_that_was_put_before(writer: Writer, rocks: Rocks) -> None:
    for number in range(300):
        await writer.submit(Put(b"%03d" % number), "nothing")

    await writer.barrier()

    assert sum(1 for _ in rocks.scan("state", b"")) == 300


async def test_a_full_ring_makes_the_producer_wait(rocks: Rocks) -> None:
    writer = Writer(rocks, 3)
    for number in range(3):
        assert writer.submit_now(Put(b"%d" % number))
    assert not writer.submit_now(Put(b"3"))
    (waiting,) = await started((writer, Put(b"4"), "durable"))
    assert writer.backlog == 3
    assert not waiting.done()

    writer.start()
    assert await waiting == b"4"
    await writer.close()

    assert [key for key, _ in rocks.scan("state", b"")] == [b"0", b"1", b"2", b"4"]


async def test_a_caller_cancelled_while_it_waits_for_room_has_changed_nothing(rocks: Rocks) -> None:
    writer = Writer(rocks, 1)
    writer.submit_now(Put(b"first"))
    (waiting,) = await started((writer, Put(b"cancelled"), "visible"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    writer.start()
    await writer.close()

    assert [key for key, _ in rocks.scan("state", b"")] == [b"first"]


async def test_a_caller_cancelled_later_disturbs_nobody_and_its_change_happens(writer: Writer, rocks: Rocks) -> None:
    async with busy(writer):
        cancelled, other = await started((writer, Put(b"cancelled"), "durable"), (writer, Put(b"other"), "durable"))
        cancelled.cancel()
        await asyncio.sleep(0)

    assert await other == b"other"
    assert rocks.get("state", b"cancelled") == b"v"


async def test_close_writes_what_is_in_the_ring_and_takes_nothing_more(rocks: Rocks) -> None:
    writer = Writer(rocks, 1000)
    for number in range(500):
        await writer.submit(Put(b"%03d" % number), "nothing")
    (durable,) = await started((writer, Put(b"last"), "durable"))
    writer.start()

    await writer.close()

    assert await durable == b"last"
    assert sum(1 for _ in rocks.scan("state", b"")) == 501
    with pytest.raises(Closed):
        await writer.submit(Put(b"late"))
    with pytest.raises(Closed):
        writer.submit_now(Put(b"late"))
    await writer.close()  # once more does no harm


async def test_a_writer_that_never_started_closes() -> None:
    await Writer(None, 10).close()  # type: ignore[arg-type]  # it touches no database


@pytest.mark.parametrize("in_draft", [True, False])
async def test_a_defect_stops_all_writes_with_its_reason(writer: Writer, rocks: Rocks, in_draft: bool) -> None:
    await writer.submit(Put(b"before"), "durable")
    async with busy(writer):
        tasks = await started((writer, Broken(in_draft=in_draft), "durable"), (writer, Put(b"same batch"), "durable"))

    for task in tasks:
        with pytest.raises(Unavailable, match="takes no writes until the daemon is restarted: ZeroDivisionError"):
            await task
    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await writer.submit(Put(b"later"))
    assert not writer.submit_now(Put(b"later"))
    await writer.barrier()  # reads go on
    assert rocks.get_many("state", [b"before", b"later"]) == [b"v", None]


async def test_what_waits_in_the_ring_when_a_defect_strikes_is_refused_and_not_written(
    writer: Writer, rocks: Rocks
) -> None:
    async with busy(writer):
        tasks = await started(
            (writer, Broken(in_draft=True), "visible"),
            (writer, Look(lambda _: None, alone=True), "visible"),
            (writer, Put(b"next batch"), "visible"),
        )

    assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [Unavailable] * 3
    assert rocks.get("state", b"next batch") is None


async def test_group_commit_shares_one_sync_among_those_who_wait(writer: Writer) -> None:
    async with busy(writer):
        tasks = await started(*((writer, Put(b"%d" % number), "durable") for number in range(100)))
    await asyncio.gather(*tasks)

    assert writer._committer.syncs == 1


async def test_the_owner_of_a_closed_database_gets_an_error_and_no_defect(rocks: Rocks) -> None:
    writer = Writer(rocks, 10)
    writer.start()
    rocks.close()

    with pytest.raises(DataPlaneError):
        await writer.submit(Put(b"k"))

    assert writer.failed is None
    await writer.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    with small_disk(tmp_path / "small", 24) as made:
        yield made


async def test_a_full_disk_refuses_writes_and_keeps_reads_and_recovers_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    rocks = Rocks.open(disk / "rocks", memory_bytes=MEMORY)
    writer = Writer(rocks, 1000)
    writer.start()
    try:
        await writer.submit(Put(b"kept"), "durable")
        fill_up(disk)
        refused: list[bytes] = []
        taken = [b"kept", b"after"]
        for number in range(20):
            key = b"big %d" % number
            try:
                await writer.submit(Put(key, bytes([number]) * 100_000), "durable")
                taken.append(key)
            except StorageFull as error:
                refused.append(key)
                assert "full" in str(error)
                assert rocks.get("state", key) is None
        assert refused
        last_error = writer.last_error
        assert isinstance(last_error, StorageFull)
        assert writer.failed is None

        reads = [asyncio.create_task(writer.submit(Put(b"more", b"x" * 100_000), "nothing"))]
        reads.append(asyncio.create_task(writer.barrier()))
        await asyncio.gather(*reads)  # a reader does not pay for the writer's trouble
        assert rocks.get("state", b"kept") == b"v"

        free(disk)
        assert await _written_in_the_end(writer, Put(b"after", b"y" * 100_000))
        assert rocks.get("state", b"after") == b"y" * 100_000
        assert writer.last_error is None
        shutil.copytree(disk / "rocks", tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK"))
    finally:
        await writer.close()
        with contextlib.suppress(Unavailable):  # only where the test failed before there was space again
            rocks.close()

    for folder in (disk / "rocks", tmp_path / "killed"):  # after an orderly end, and after a kill
        reopened = Rocks.open(folder, memory_bytes=MEMORY)
        assert None not in reopened.get_many("state", taken)
        assert reopened.get_many("state", refused) == [None] * len(refused)
        reopened.close()


async def _written_in_the_end(writer: Writer, command: Command) -> bool:
    for _ in range(200):
        with contextlib.suppress(DataPlaneError):
            await writer.submit(command, "durable")
            return True
        await asyncio.sleep(0.1)
    return False
