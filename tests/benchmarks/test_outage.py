"""The exercise with a server that dies: that it holds, that it leaves nothing behind, and that it would see what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from benchmarks import outage
from benchmarks.outagecheck import archive_problems
from benchmarks.outagemodel import MARKS, NOTES, Book, Diary, Place
from benchmarks.outagesearch import Question, Tally, check, difference, differences
from dataplane.cold import tier as cold
from dataplane.cold.archive import Archiver
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import shelf
from dataplane.cold_config import ColdConfig
from dataplane.errors import ChecksumMismatch
from dataplane.rows import Hit, Row, SearchQuery, SearchResult, StoredRow
from dataplane.state.versioned import Versioned
from dataplane.truth.records import EventRecord
from tests.dataplane.boxes import Tenant, ids, open_box

PLACE = Place("north", MARKS)
DIMENSIONS = 4


def book(count: int = 6) -> Book:
    """Rows r0 ... on the axis of a line: the larger the number, the farther from zero."""
    made = Book(count, DIMENSIONS)
    made.begin(range(count))
    made.done(range(count), [row(number) for number in range(count)])
    return made


def row(number: int, words: str = "some words") -> Row:
    vector = np.array([number, 0, 0, 0], np.float32)
    return Row(id=f"r{number}", vector=vector, text=f"{words} own{number}", attributes={"bucket": number})


def stored(number: int) -> StoredRow:
    made = row(number)
    return StoredRow(
        id=made.id, text=made.text, attributes=made.attributes, created_ms=1, expires_ms=None, vector=made.vector
    )


def hit(number: int, score: float | None = None) -> Hit:
    made = row(number)
    found = -float(number**2) if score is None else score
    return Hit(id=made.id, score=found, tier="hot", text=made.text, attributes=made.attributes)


def result(*hits: Hit) -> SearchResult:
    return SearchResult(hits=hits, tiers=("hot",), complete=True)


def nearest(k: int = 3) -> Question:
    return Question("exact", PLACE, SearchQuery(vector=np.zeros(DIMENSIONS, np.float32), k=k, exact=True))


def problems(made: Book, found: SearchResult, question: Question | None = None, since: int | None = None) -> list[str]:
    tally = Tally()
    check(made, made.time if since is None else since, question or nearest(), found, tally)
    return tally.problems


def test_nothing_is_lost_while_the_server_is_dead_and_the_box_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cold, "RETRY_FIRST_S", 0.2)
    monkeypatch.setattr(cold, "RETRY_MOST_S", 1.0)
    monkeypatch.setattr(outage, "STEADY_S", 0.5)
    monkeypatch.setattr(outage, "ARCHIVE_EVERY_S", 0.3)
    monkeypatch.setattr(outage, "REST_S", 1.0)
    monkeypatch.setattr(outage, "SIZES", {NOTES: 1800, MARKS: 300})
    monkeypatch.setattr(outage, "tune_process", lambda: None)  # it is for a process of its own
    monkeypatch.setattr(sys, "argv", ["outage", "--seconds", "2", "--json", "--dir", str(tmp_path)])
    status = outage.main()
    said = capsys.readouterr().out
    assert status == 0, said
    figures = json.loads(said.splitlines()[-1])
    assert (figures["refused"], figures["differences"], figures["problems"]) == (0, 0, 0)
    assert figures["acknowledged_in_outage"] > 0
    assert figures["failed_runs"] > 0
    assert figures["backlog_highest"] > 0
    assert figures["restored_rows"] == figures["archived_rows"] > 1000
    assert figures["compared_after_restore"] == figures["compared_in_box"]
    assert figures["searches_compared"] == 8 * (5 + 1 + 3) * 2
    assert "acknowledged writes" in said
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_the_server_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.outage", "--seconds", "60", "--dir", str(tmp_path)]
    with subprocess.Popen(command) as process:
        children: list[psutil.Process] = []
        while not [child for child in children if child.name() == "weed"]:
            assert process.poll() is None
            time.sleep(0.05)
            children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []


def test_without_the_server_it_says_that_it_was_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outage, "tune_process", lambda: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["outage", "--seconds", "1", "--dir", str(tmp_path)])
    assert outage.main() == 2
    assert "weed cannot be run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_did_not_hold_is_printed_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(_self: outage.Outage) -> outage.Outcome:
        return outage.Outcome({"restored_rows": 7}, ["r1 is lost"])

    monkeypatch.setattr(outage, "tune_process", lambda: None)
    monkeypatch.setattr(outage.Outage, "run", run)
    monkeypatch.setattr(sys, "argv", ["outage", "--json", "--dir", str(tmp_path)])
    assert outage.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert "r1 is lost" in said
    assert json.loads(said[-1]) == {"restored_rows": 7, "problems": 1}


def test_rows_that_are_lost_came_back_or_changed_are_seen() -> None:
    made = book()
    assert made.wrong(1, stored(1)) is None
    assert "lost" in (made.wrong(1, None) or "")
    assert "not 'some words own1'" in (made.wrong(1, msgspec.structs.replace(stored(1), text="other")) or "")
    assert "another vector" in (made.wrong(1, msgspec.structs.replace(stored(1), vector=stored(2).vector)) or "")
    assert "expires" in (made.wrong(1, msgspec.structs.replace(stored(1), expires_ms=5)) or "")
    made.begin([1])
    made.done([1], None)
    assert "was deleted" in (made.wrong(1, stored(1)) or "")
    assert made.wrong(1, None) is None
    assert made.changes == 7


def test_records_and_events_that_differ_are_seen() -> None:
    diary = Diary("north", ["steps"])
    diary.records["a"] = (3, b"value")
    assert diary.wrong([("a", Versioned(b"value", 3, 1, None))]) == []
    assert diary.wrong([("a", Versioned(b"value", 2, 1, None))]) == ["record a of north is not what was acknowledged"]
    assert diary.wrong([]) == ["record a of north is not what was acknowledged"]
    log = diary.logs["steps"]
    log.last, log.first = 3, 2
    events = [(2, log.event(2)), (3, log.event(3))]
    assert log.wrong(3, events) == []
    assert log.wrong(3, events[1:]) != []
    assert log.wrong(4, events) != []
    assert log.wrong(3, [events[0], (3, EventRecord("token", 3, b"other"))]) != []


def test_an_answer_that_lacks_doubles_or_invents_a_row_is_seen() -> None:
    made = book()
    assert problems(made, result(hit(0), hit(1), hit(2))) == []
    assert "better are missing: [1]" in problems(made, result(hit(0), hit(2), hit(3)))[0]
    assert "better are missing: [2, 3, 4, 5]" in problems(made, result(hit(0), hit(1)))[0]
    assert "twice" in problems(made, result(hit(0), hit(1), hit(1)))[0]
    assert "score" in problems(made, result(hit(0), hit(1, -1.1), hit(2)))[0]
    made.begin([1])
    made.done([1], None)
    assert "not there" in problems(made, result(hit(0), hit(1), hit(2)))[0]


def test_rows_that_change_while_a_search_goes_on_may_be_found_or_not() -> None:
    made = book()
    since = made.time
    made.begin([1])
    assert problems(made, result(hit(0), hit(2), hit(3)), since=since) == []
    made.done([1], None)
    assert problems(made, result(hit(0), hit(1), hit(2)), since=since) == []
    assert problems(made, result(hit(0), hit(2)), since=since) == []  # it ended before its text was read
    assert problems(made, result(hit(0), hit(3)), since=since) != []


def test_a_word_finds_its_row_alone_and_none_that_ended() -> None:
    made = book()
    place, query = Place("north", NOTES), SearchQuery(text="own1")
    assert problems(made, result(hit(1)), Question("word", place, query, only=1)) == []
    assert problems(made, result(), Question("word", place, query, only=1)) != []
    assert problems(made, result(hit(1)), Question("word", place, query, only=-1)) != []


def test_answers_that_differ_are_told_and_approximate_ones_may_miss_others() -> None:
    exact = nearest()
    before, scored, other = result(hit(0), hit(1)), result(hit(0), hit(1, -1.01)), result(hit(0), hit(2))
    assert difference(exact, before, before) is None
    assert "scores" in (difference(exact, before, scored) or "")
    assert "found" in (difference(exact, before, other) or "")
    graph = exact._replace(kind="vector")
    assert differences([graph], [before], [other]) == ([], 1)
    assert len(differences([graph], [before], [scored])[0]) == 1
    assert len(differences([exact], [before], [other])[0]) == 1


async def test_an_archive_that_lost_doubled_or_kept_something_is_seen(tmp_path: Path) -> None:
    rocks, target = open_box(tmp_path / "box"), Bucket(ColdConfig(folder=str(tmp_path / "cold")), tmp_path)
    tenant = Tenant(rocks, "north")
    tenant.create("notes", 1)
    tenant.upsert(1, ids(0, 50))
    await Archiver(rocks, target).archive()
    assert await archive_problems(target, rocks, tmp_path) == ([], 50)
    tenant.upsert(1, ids(50, 3))
    lost, _ = await archive_problems(target, rocks, tmp_path)
    assert "archive: 3 keys of rows differ: 3 lost, 0 that the box lacks" in lost
    await Archiver(rocks, target).archive()
    tenant.delete(1, ids(0, 2))
    kept, _ = await archive_problems(target, rocks, tmp_path)
    assert "archive: 2 keys of index differ: 0 lost, 2 that the box lacks" in kept
    await Archiver(rocks, target).archive()
    await target.put_new("segments/loose.parquet", b"nobody's")
    loose, rows = await archive_problems(target, rocks, tmp_path)
    assert (loose, rows) == (["segments/loose.parquet is in the bucket, and no manifest names it"], 51)
    segment = next((await shelf(target)).whole[0].manifest.segments())
    await target.put(segment.name, b"\0" * segment.size)
    with pytest.raises(ChecksumMismatch, match=segment.sha256):
        await archive_problems(target, rocks, tmp_path)
    rocks.close()
