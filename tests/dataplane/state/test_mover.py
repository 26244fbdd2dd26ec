"""Old events move into the history and are read from there as before, each once, whenever the process dies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dataplane.clock import now_ms
from dataplane.cold.archive_restore import restore
from dataplane.cold.bucket import Bucket
from dataplane.errors import Damaged
from dataplane.state import departures, mover
from dataplane.store import opened
from dataplane.truth.records import EventRecord, StreamRecord, decode, encode
from dataplane.truth.rocks import Rocks
from tests.dataplane.damage import flip
from tests.dataplane.killing import killed, killed_by_itself
from tests.dataplane.logs import NEVER_MS, Logs, event, expected, logs
from tests.dataplane.planes import config


async def test_events_that_are_old_leave_and_are_read_as_before(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        for tenant in ("a", "b"):
            await box.fill(tenant, "s", 700)
            await box.fill(tenant, "t", 5, time_ms=NEVER_MS)
        assert not (tmp_path / "history").exists(), "there is no file while there is nothing to move"
        assert await box.mover.round() == 1400
        assert (box.in_rocks(), box.in_history()) == (10, 1400)
        assert await box.mover.round() == 0
        for tenant in ("a", "b"):
            assert await box.read(tenant, "s") == expected(tenant, "s", 1, 700)
            assert await box.read(tenant, "s", after=650, page=7) == expected(tenant, "s", 651, 700)
            assert [seq for seq, _ in await box.read(tenant, "t")] == [1, 2, 3, 4, 5]
        assert await box.read("c", "s") == []
    async with logs(tmp_path) as box:
        assert await box.read("a", "s") == expected("a", "s", 1, 700)
        assert await box.state.last_seq("a", "s") == 700


async def test_only_a_log_s_first_old_events_leave_and_the_seam_is_read_at_every_page_size(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 20)
        await box.fill("a", "s", 10, first=21, time_ms=NEVER_MS)
        await box.fill("a", "s", 10, first=31)  # old, but after what is not
        assert await box.mover.round() == 20
        assert (box.in_rocks(), box.in_history()) == (20, 20)
        whole = await box.read("a", "s")
        assert [seq for seq, _ in whole] == list(range(1, 41))
        assert whole[:20] == expected("a", "s", 1, 20)
        for page in range(1, 42):
            for after in (0, 18, 19, 20, 21, 39, 40):
                assert await box.read("a", "s", after, page) == whole[after:]


async def test_appending_goes_on_with_its_numbers_when_all_events_have_left(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 30)
        assert await box.mover.round() == 30
        assert box.in_rocks() == 0
        assert await box.state.append("a", "s", [event("a", "s", 31)], expected_last=30) == 31
        assert await box.read("a", "s") == expected("a", "s", 1, 31)
        assert await box.mover.round() == 1
        assert await box.read("a", "s") == expected("a", "s", 1, 31)


async def test_pages_over_the_seam_end_at_their_bytes(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        large = [EventRecord("e", number, bytes([number]) * 900_000) for number in range(1, 21)]
        for one in large:
            await box.state.append("a", "s", [one], wait="visible")
        await box.fill("a", "s", 5, first=21, time_ms=NEVER_MS)
        assert await box.mover.round() == 20
        page = await box.state.read("a", "s")
        assert len(page) == 10
        assert [one for _, one in await box.read("a", "s")][:20] == large
        assert len(await box.read("a", "s", after=15)) == 10


async def test_many_logs_move_in_parts_and_a_long_one_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "MOST_EVENTS", 150)
    monkeypatch.setattr(departures, "LOOKED_AT", 7)
    async with logs(tmp_path) as box:
        await box.fill("a", "long", 1000)
        for number in range(40):
            await box.fill("b", f"s{number}", number)
        moved = sum(range(40)) + 1000
        assert await box.mover.round() == moved
        assert (box.in_rocks(), box.in_history()) == (0, moved)
        assert box.mover.status().shards < 10, "small ones are merged"
        assert await box.read("a", "long") == expected("a", "long", 1, 1000)
        for number in range(40):
            assert await box.read("b", f"s{number}") == expected("b", f"s{number}", 1, number)


async def test_events_of_any_age_leave_when_there_are_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 300, time_ms=NEVER_MS)
        assert await box.mover.round() == 0
        monkeypatch.setattr(mover, "MANY_EVENTS", 200)
        assert await box.mover.round() == 300
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(1, 301))


async def test_what_is_dropped_or_trimmed_leaves_the_history_and_a_new_log_of_the_name_sees_none_of_it(
    tmp_path: Path,
) -> None:
    async with logs(tmp_path) as box:
        for tenant in ("a", "b"):
            for stream in ("dropped", "trimmed", "kept"):
                await box.fill(tenant, stream, 100)
        await box.mover.round()
        assert await box.state.drop_stream("a", "dropped")
        assert await box.state.trim("a", "trimmed", 60) == 61
        assert await box.read("a", "dropped") == []
        assert await box.read("a", "trimmed") == expected("a", "trimmed", 61, 100)
        assert box.in_history() == 600, "files are written anew later"

        await box.fill("a", "dropped", 10)
        assert await box.read("a", "dropped") == expected("a", "dropped", 1, 10)
        assert await box.mover.round() == 10
        assert box.in_history() == 600 - 160 + 10
        assert box.mover.forgotten == 160
        assert await box.read("a", "dropped") == expected("a", "dropped", 1, 10)
        assert await box.read("a", "trimmed") == expected("a", "trimmed", 61, 100)
        for tenant, stream in (("a", "kept"), ("b", "dropped"), ("b", "trimmed"), ("b", "kept")):
            assert await box.read(tenant, stream) == expected(tenant, stream, 1, 100)
        assert await box.state.trim("a", "trimmed", 1000) == 101
        assert await box.state.append("a", "trimmed", [event("a", "trimmed", 101)]) == 101
        await box.mover.round()
        assert await box.read("a", "trimmed") == expected("a", "trimmed", 101, 101)


async def test_a_log_that_is_trimmed_across_the_seam_keeps_the_rest(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 500)
        await box.mover.round()
        await box.fill("a", "s", 500, first=501, time_ms=NEVER_MS)
        assert await box.state.trim("a", "s", 700) == 701
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(701, 1001))
        await box.mover.forget()
        assert (box.in_rocks(), box.in_history()) == (300, 0)


async def test_a_dropped_tenant_is_forgotten_and_what_it_stores_anew_is_not(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        for tenant in ("a", "b"):
            await box.fill(tenant, "s", 100)
        await box.mover.round()
        await box.state.drop_tenant("a")
        assert await box.read("a", "s") == []
        await box.fill("a", "s", 7)
        assert await box.mover.round() == 7
        assert (box.in_history(), box.old.count("a"), box.old.count("b")) == (107, (7, 107), (100, 107))
        assert await box.read("a", "s") == expected("a", "s", 1, 7)
        assert await box.read("b", "s") == expected("b", "s", 1, 100)
        await box.state.drop_tenant("b")
        await box.mover.forget()
        assert box.old.count("b") == (0, 7)
        assert not [key for key, _ in box.rocks.scan("state", b"\x00\x01b")], "no note stays"


async def test_what_is_older_than_it_is_kept_for_goes_and_the_numbers_begin_later(tmp_path: Path) -> None:
    async with logs(tmp_path, keep_days=2) as box:
        await box.fill("a", "s", 50)
        await box.fill("a", "s", 50, first=51, time_ms=now_ms() - 86_400_000)
        await box.fill("a", "s", 5, first=101, time_ms=NEVER_MS)
        assert await box.mover.round() == 100
        assert box.in_history() == 50
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(51, 106))
        assert await box.state.last_seq("a", "s") == 105


async def test_a_history_whose_manifest_is_damaged_keeps_nothing_else_from_working(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 50)
        await box.mover.round()
    good = (tmp_path / "history" / "manifest.json").read_bytes()
    flip(tmp_path / "history" / "manifest.json", 10)
    async with logs(tmp_path) as box:
        (problem,) = box.mover.status().problems
        assert "manifest.json" in problem
        await box.fill("a", "s", 10, first=51)
        await box.fill("b", "s", 10)
        assert await box.read("a", "s", after=50) == expected("a", "s", 51, 60)
        assert await box.read("b", "s") == expected("b", "s", 1, 10)
        with pytest.raises(Damaged, match=r"manifest\.json"):
            await box.read("a", "s", after=49)
        assert await box.mover.round() == 0
        assert box.in_rocks() == 20
        (tmp_path / "history" / "manifest.json").write_bytes(good)
        assert await box.mover.round() == 20
        assert box.mover.status().problems == ()
        assert await box.read("a", "s") == expected("a", "s", 1, 60)


async def test_a_damaged_shard_costs_only_what_it_holds(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 50)
        await box.mover.round()
        await box.fill("b", "s", 400)  # so many that they are not merged with it
        (first,) = (tmp_path / "history").glob("log-*")
        await box.mover.round()
        assert box.mover.status().shards == 2
    flip(first, first.stat().st_size - 30)
    async with logs(tmp_path) as box:
        (problem,) = box.mover.status().problems
        assert first.name in problem
        await box.fill("c", "s", 9)
        assert await box.mover.round() == 9
        assert await box.read("b", "s") == expected("b", "s", 1, 400)
        assert await box.read("c", "s") == expected("c", "s", 1, 9)
        with pytest.raises(Damaged, match=first.name):
            await box.read("a", "s")
        assert await box.state.drop_stream("a", "s")
        with pytest.raises(Damaged, match=first.name):
            await box.mover.forget()
        assert box.old.discard(first.name).endswith("its 50 events are lost.")
        await box.mover.forget()
        assert box.old.damaged() == {}


async def test_a_history_that_was_removed_is_named_and_not_taken_for_empty(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 50)
        await box.mover.round()
    for path in (tmp_path / "history").iterdir():
        path.unlink()
    (tmp_path / "history").rmdir()
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 5, first=51)
        assert await box.read("a", "s", after=50) == expected("a", "s", 51, 55)
        with pytest.raises(Damaged, match="history is missing"):
            await box.read("a", "s")


async def test_a_database_that_is_older_than_its_history_goes_on_in_its_own_way(tmp_path: Path) -> None:
    """As after a restore, when the history's files were taken later than the database."""
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 50)
        await asyncio.to_thread(box.rocks.checkpoint, tmp_path / "older")
        await box.fill("a", "s", 50, first=51)
        assert await box.mover.round() == 100
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "older").rename(again / "rocks")
    (tmp_path / "history").rename(again / "history")
    async with logs(again) as box:
        assert await box.read("a", "s") == expected("a", "s", 1, 50)
        other = [EventRecord("other", number, b"other") for number in range(30)]
        assert await box.state.append("a", "s", other, expected_last=50) == 80
        for _ in range(2):
            whole = await box.read("a", "s")
            assert [seq for seq, _ in whole] == list(range(1, 81))
            assert whole[:50] == expected("a", "s", 1, 50)
            assert [one for _, one in whole[50:]] == other
            await box.mover.round()
        assert (box.in_rocks(), box.in_history()) == (0, 80)


async def test_events_that_left_between_two_looks_at_the_database_are_found_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore from an archive, which read the heads first and the events some time later."""
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 50)
        ((key, stored),) = box.rocks.scan("state", b"")
        early = list(box.rocks.scan("events", b""))[:20]
        await box.mover.round()
        await box.fill("a", "s", 20, first=51, time_ms=NEVER_MS)
        batch = box.rocks.batch()
        batch.put("state", key, encode(replace(decode(StreamRecord, stored), last=70)))  # and none that moved
        for number, (event_key, value) in enumerate(early, 1):
            batch.put("events", event_key, value)
            assert int.from_bytes(event_key[-8:], "big") == number
        box.rocks.write(batch)
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(1, 71))
        assert [seq for seq, _ in await box.read("a", "s", page=9)] == list(range(1, 71))
        await box.fill("a", "s", 5, first=71)
        monkeypatch.setattr(mover, "MANY_EVENTS", 1)
        assert await box.mover.round() == 20
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(1, 76))
        assert await box.mover.round() == 25
        assert [seq for seq, _ in await box.read("a", "s")] == list(range(1, 76))
        assert (box.in_rocks(), box.in_history()) == (0, 75)


async def test_readers_see_each_event_once_while_everything_moves_and_is_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "MOST_EVENTS", 40)
    async with logs(tmp_path) as box:
        for tenant in ("a", "b"):
            await box.fill(tenant, "s", 200)
        done = asyncio.Event()
        looks = 0

        async def look(tenant: str, page: int) -> None:
            nonlocal looks
            while not done.is_set():
                found = await box.read(tenant, "s", page=page)
                last = found[-1][0]
                assert last >= 200
                assert found == expected(tenant, "s", found[0][0], last)
                assert tenant == "a" or found[0][0] == 1
                looks += 1

        readers = [asyncio.create_task(look(tenant, page)) for tenant in ("a", "b") for page in (1000, 33)]
        for number in range(6):
            for tenant in ("a", "b"):
                await box.fill(tenant, "s", 30, first=201 + 30 * number)
            await box.state.trim("a", "s", 10 * number)
            await box.mover.round()
        done.set()
        await asyncio.gather(*readers)
        assert looks > 4
        assert await box.read("b", "s") == expected("b", "s", 1, 380)
        assert box.in_rocks() == 0


async def test_a_data_plane_moves_and_tells_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "EVERY_S", 0.05)
    async with opened(config(tmp_path / "data")) as plane:
        await plane.state.append("a", "s", [event("a", "s", number) for number in range(1, 51)])
        async with asyncio.timeout(20):
            while plane.status().history.moved < 50:
                await asyncio.sleep(0.02)
        told = plane.status().history
        assert (told.rows, told.shards, told.problems) == (50, 1, ())
        assert told.bytes == sum(path.stat().st_size for path in (tmp_path / "data/history").glob("log-*"))
        assert await plane.state.read("a", "s") == expected("a", "s", 1, 50)


async def test_a_step_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "EVERY_S", 0.05)
    async with opened(config(tmp_path / "data")) as plane:
        (tmp_path / "data" / "history").write_text("in the way")
        await plane.state.append("a", "s", [event("a", "s", 1)])
        async with asyncio.timeout(20):
            while not plane.status().history.problems:
                await asyncio.sleep(0.02)
            (tmp_path / "data" / "history").unlink()
            while plane.status().history.moved < 1:
                await asyncio.sleep(0.02)
            while plane.status().history.problems:
                await asyncio.sleep(0.02)


async def test_an_archive_that_was_made_while_events_moved_gives_every_one_of_them_back(tmp_path: Path) -> None:
    settings_ = msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)
    async with opened(settings_) as plane:
        for tenant in ("a", "b"):
            await plane.state.append(tenant, "s", [event(tenant, "s", number) for number in range(1, 201)])
        archiving = asyncio.create_task(plane.cold.archive_now())
        while not archiving.done():
            await plane.mover.round()
            last = await plane.state.last_seq("a", "s")
            await plane.state.append("a", "s", [event("a", "s", last + 1)], wait="visible")
            await asyncio.sleep(0.2)  # an archive that finds the history changed each time gives up
        await archiving
    again = tmp_path / "again"
    again.mkdir()
    rocks = Rocks.open(again / "rocks", memory_bytes=16 << 20)
    await restore(Bucket(settings_.cold, tmp_path / "data-cold"), rocks, None, again)
    rocks.close()
    async with logs(again) as box:
        for _ in range(2):
            assert await box.read("b", "s") == expected("b", "s", 1, 200)
            last = await box.state.last_seq("a", "s")
            assert last >= 200
            assert await box.read("a", "s") == expected("a", "s", 1, last)
            await box.fill("a", "s", 3, first=last + 1)
            await box.mover.round()
        assert box.old.damaged() == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append new", "trim", "drop", "drop tenant", "round", "forget", "reopen"]),
        st.sampled_from(["a/s", "a/t", "b/s"]),
        st.integers(0, 40),
    ),
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_any_sequence_of_calls_gives_what_lists_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    asyncio.run(_follow(tmp_path_factory.mktemp("model"), steps))


async def _follow(folder: Path, steps: list[tuple[str, str, int]]) -> None:
    """Do the steps on real logs and on lists; compare after each."""
    model: dict[str, tuple[int, dict[int, EventRecord]]] = {}  # the last number, and what is kept
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(logs(folder))
        for step, which, count in steps:
            tenant, stream = which.split("/")
            last, kept = model.get(which, (0, {}))
            if step.startswith("append"):
                time_ms = NEVER_MS if step == "append new" else None
                added = [event(tenant, stream, number, time_ms) for number in range(last + 1, last + count + 1)]
                assert await box.state.append(tenant, stream, added, wait="visible") == last + count
                if count:
                    model[which] = (last + count, {**kept, **dict(enumerate(added, last + 1))})
            elif step == "trim":
                await box.state.trim(tenant, stream, count, wait="visible")
                model[which] = (last, {number: one for number, one in kept.items() if number > count})
            elif step == "drop":
                assert await box.state.drop_stream(tenant, stream, wait="visible") == (last > 0)
                model.pop(which, None)
            elif step == "drop tenant":
                await box.state.drop_tenant(tenant)
                model = {name: log for name, log in model.items() if not name.startswith(f"{tenant}/")}
            elif step == "round":
                await box.mover.round()
            elif step == "forget":
                await box.mover.forget()
            else:
                await stack.aclose()
                box = await stack.enter_async_context(logs(folder))
            for tenant, stream in (("a", "s"), ("a", "t"), ("b", "s")):
                last, kept = model.get(f"{tenant}/{stream}", (0, {}))
                assert await box.state.last_seq(tenant, stream) == last
                assert dict(await box.read(tenant, stream, page=max(count, 1))) == kept
        await box.mover.round()
        assert box.in_rocks() + box.in_history() == sum(len(kept) for _, kept in model.values())


DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from dataplane.state import departures
from dataplane.state import forgetting
from dataplane.state import history
from dataplane.state import oldevents
from tests.dataplane.logs import logs

def die(owner, name, calls):
    # Kill this process when `name` of `owner` is called for this time.
    real = getattr(owner, name)
    left = [calls]
    def dying(*args, **options):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    setattr(owner, name, dying)

async def main(folder, owner, name, calls):
    async with logs(Path(folder)) as box:
        for tenant in ("a", "b"):
            await box.fill(tenant, "s", 300)
            await box.fill(tenant, "dropped", 300)
        if owner == "forgetting":
            await box.mover.round()
            await box.state.drop_stream("a", "dropped")
            owner = "history" if name != "Forgotten" else owner
        place = {"departures": departures, "forgetting": forgetting, "history": history, "oldevents": oldevents}[owner]
        *outer, name = name.split(".") if "." in name else ([name, "draft"] if name == "Forgotten" else [name])
        for one in outer:
            place = getattr(place, one)
        die(place, name, calls)
        await box.mover.round()

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        ("departures", "Announce.draft", 1),
        ("oldevents", "OldEvents.store", 1),
        ("history", "write_log_shard", 1),
        ("history", "write_bytes", 2),  # the shard is written, and the manifest does not name it
        ("departures", "Depart.draft", 1),
        ("departures", "Depart.draft", 5),  # some have left
        ("oldevents", "OldEvents.tidy", 1),
    ],
)
async def test_killed_anywhere_in_a_move_every_event_is_given_once(
    tmp_path: Path, owner: str, name: str, calls: int
) -> None:
    killed_by_itself(DIES, tmp_path, owner, name, calls)
    async with logs(tmp_path) as box:
        for _ in range(2):
            for tenant in ("a", "b"):
                for stream in ("s", "dropped"):
                    assert await box.read(tenant, stream) == expected(tenant, stream, 1, 300)
                    assert await box.state.last_seq(tenant, stream) == 300
            await box.mover.round()
        assert (box.in_rocks(), box.in_history()) == (0, 1200)
        assert box.old.damaged() == {}


@pytest.mark.parametrize(
    ("name", "calls"), [("History.forget", 1), ("write_bytes", 1), ("remove_files", 1), ("Forgotten", 1)]
)
async def test_killed_anywhere_in_forgetting_what_was_dropped_goes_and_nothing_else(
    tmp_path: Path, name: str, calls: int
) -> None:
    killed_by_itself(DIES, tmp_path, "forgetting", name, calls)
    async with logs(tmp_path) as box:
        assert await box.read("a", "dropped") == []
        await box.mover.round()
        assert box.in_history() == 900
        assert box.old.damaged() == {}
        for tenant, stream in (("a", "s"), ("b", "s"), ("b", "dropped")):
            assert await box.read(tenant, stream) == expected(tenant, stream, 1, 300)
        await box.fill("a", "dropped", 3)
        assert await box.read("a", "dropped") == expected("a", "dropped", 1, 3)


LIVES = """
import asyncio, sys
from pathlib import Path
from dataplane.state import departures
from tests.dataplane.logs import event, logs

departures.MOST_EVENTS = 20

async def appends(box, tenant):
    while True:
        begin = await box.state.last_seq(tenant, "s")
        last = await box.state.append(tenant, "s", [event(tenant, "s", begin + n) for n in (1, 2, 3)])
        print("append", tenant, last, flush=True)
        if last % 5 == 0 and last > 60:
            print("trim", tenant, await box.state.trim(tenant, "s", last - 60), flush=True)

async def moves(box):
    while True:
        print("moved", "-", await box.mover.round(), flush=True)

async def main(folder):
    async with logs(Path(folder)) as box, asyncio.TaskGroup() as group:
        for tenant in ("a", "b"):
            group.create_task(appends(box, tenant))
        group.create_task(moves(box))

asyncio.run(main(sys.argv[1]))
"""


async def test_killed_at_random_moments_no_event_that_was_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    chance = random.Random()
    last, first, moved = {"a": 0, "b": 0}, {"a": 1, "b": 1}, 0
    for _ in range(5):
        said = await asyncio.to_thread(killed, LIVES, tmp_path, lines=chance.randint(1, 150))
        for what, tenant, number in map(str.split, said):
            if what == "moved":
                moved += int(number)
            else:
                told = last if what == "append" else first
                told[tenant] = max(told[tenant], int(number))
        async with logs(tmp_path) as box:
            await check(box, last, first)
            await box.mover.round()
            await check(box, last, first)
            assert box.old.damaged() == {}
    assert moved > 0


async def check(box: Logs, last: dict[str, int], first: dict[str, int]) -> None:
    """Both logs are without gap, and have all that was said to be there."""
    for tenant in ("a", "b"):
        found = await box.read(tenant, "s")
        end = await box.state.last_seq(tenant, "s")
        assert end >= last[tenant]
        begin = found[0][0] if found else 1
        assert begin >= first[tenant]
        assert found == expected(tenant, "s", begin, end)
