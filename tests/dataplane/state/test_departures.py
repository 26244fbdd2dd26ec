"""Departures: what is due, and that nothing leaves RocksDB that is not told to, or is another log's by now."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.errors import Damaged
from dataplane.state import departures
from dataplane.state.departures import Announce, Depart, due
from dataplane.truth import keys
from tests.dataplane.logs import NEVER_MS, Logs, expected, logs

OLD_MS = 1_000_000


async def test_each_log_s_first_old_events_are_due(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "none", 5, time_ms=NEVER_MS)
        await box.fill("a", "some", 5)
        await box.fill("a", "some", 5, first=6, time_ms=OLD_MS + 1)
        await box.fill("b", "exactly", 3, time_ms=OLD_MS)
        found, cursor = due(box.rocks, b"", OLD_MS)
    assert cursor == b""
    assert [(one.tenant, one.stream.name, one.first, one.last, one.front) for one in found] == [
        ("a", "some", 1, 5, True),
        ("b", "exactly", 1, 3, True),
    ]
    assert [(event.seq, event.payload) for event in found[0].log_events(4)] == [(4, b"a/some/4"), (5, b"a/some/5")]
    assert {event.stream for event in found[0].log_events(1)} == {f"{found[0].token}/some"}
    assert found[0].token not in {"", found[1].token}


async def test_the_cursor_goes_on_within_a_log_and_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "MOST_EVENTS", 4)
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 6)
        await box.fill("a", "t", 3)
        steps, cursor = [], b""
        for _ in range(4):
            found, cursor = due(box.rocks, cursor, OLD_MS)
            steps.append([(one.stream.name, one.first, one.last, one.front) for one in found])
    assert steps == [
        [("s", 1, 4, True)],
        [("s", 5, 6, False), ("t", 1, 2, True)],
        [("t", 3, 3, False)],
        [("s", 1, 4, True)],
    ]


async def test_what_cannot_be_read_stays_with_what_follows_it(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 6)
        await box.fill("b", "s", 2)
        batch = box.rocks.batch()
        batch.put("events", keys.tenant_prefix("a") + keys.counted_name("s", "stream") + keys.number(4), b"\x01\xff")
        box.rocks.write(batch)
        assert await box.mover.round() == 5
        with pytest.raises(Damaged):
            await box.state.read("a", "s")
        assert await box.state.read("a", "s", limit=3) == expected("a", "s", 1, 3)
        assert await box.mover.round() == 0


async def step(box: Logs) -> tuple[list[int | None], int]:
    """Announce and remove what is due, without a history: what was announced, and how many events left."""
    found, _ = due(box.rocks, b"", OLD_MS)
    announced = await box.writer.submit(Announce(found))
    return announced, sum([await box.writer.submit(command) for one in found for command in Depart.of(one)])


async def test_a_log_that_was_dropped_and_made_anew_meanwhile_is_passed_over(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 5)
        found, _ = due(box.rocks, b"", OLD_MS)
        await box.state.drop_stream("a", "s")
        assert await box.writer.submit(Announce(found)) == [None]
        await box.fill("a", "s", 9)
        assert await box.writer.submit(Announce(found)) == [None]
        assert [await box.writer.submit(command) for command in Depart.of(found[0])] == [0]
        assert await box.read("a", "s") == expected("a", "s", 1, 9)


async def test_a_tenant_that_is_to_be_forgotten_announces_nothing(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.state.drop_tenant("a")
        await box.fill("a", "s", 5)
        await box.fill("b", "s", 5)
        found, _ = due(box.rocks, b"", OLD_MS)
        assert await box.writer.submit(Announce(found)) == [None, 1]


async def test_what_would_leave_a_gap_behind_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "MOST_EVENTS", 4)
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 8)
        _, cursor = due(box.rocks, b"", OLD_MS)
        later, _ = due(box.rocks, cursor, OLD_MS)
        assert await box.writer.submit(Announce(later)) == [None]
        assert [await box.writer.submit(command) for command in Depart.of(later[0])] == [0]
        assert await step(box) == ([1], 4)
        assert await box.writer.submit(Announce(later)) == [1]
        assert [await box.writer.submit(command) for command in Depart.of(later[0])] == [4]
        assert box.in_rocks() == 0


async def test_trimmed_events_are_not_announced_as_kept(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 8)
        found, _ = due(box.rocks, b"", OLD_MS)
        await box.state.trim("a", "s", 5)
        assert await box.writer.submit(Announce(found)) == [6]
        assert [event.seq for event in found[0].log_events(6)] == [6, 7, 8]
