"""Full text behind the writer: in order, complete, and brought up again from RocksDB after whatever went wrong."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dataplane.errors import Closed, Damaged, StorageFull, Unavailable
from dataplane.truth import keys
from dataplane.words import indexer as indexer_module
from dataplane.words import textfile
from dataplane.words.indexer import Indexer, TextFeed
from dataplane.words.text import TextIndex
from tests.dataplane.planes import vectors
from tests.dataplane.stilled import Stilled, stilled

DIMENSIONS = 4
STORED = vectors(2000, dimensions=DIMENSIONS)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    with stilled(tmp_path, DIMENSIONS, text=True) as made:
        yield made


def feed_of(still: Stilled) -> TextFeed:
    assert still.collection.text is not None
    return still.collection.text


def everywhere(rows: np.ndarray) -> np.ndarray:
    return np.ones(len(rows), np.bool_)


def found(still: Stilled, text: str, timeout_s: float = 0.0) -> tuple[set[str], bool]:
    """Ids of rows with these words, and whether that was all that was written."""
    hits, complete = feed_of(still).search(text, 5000, everywhere, time.monotonic() + timeout_s)
    slots = still.view.table.slots_of(np.array([row for row, _ in hits], np.uint64))
    return set(still.view.ids_of(slots)), complete


def rebuilt_equals(still: Stilled) -> None:
    """The index holds the rows that RocksDB has, and no others."""
    feed = feed_of(still)
    assert feed.up_to_date
    assert not feed.behind
    assert feed.index.seq == still.collection.published
    feed.index.verify()
    assert feed.index.count() == len(list(still.rocks.scan("rows", still.collection.scope)))
    assert still.problems() == []


def test_rows_are_found_once_the_thread_has_worked_and_not_after_they_ended(still: Stilled) -> None:
    still.upsert(STORED[:3], texts=["red apple", "green apple", None])
    assert found(still, "apple") == (set(), False)
    still.index_text()
    assert found(still, "apple") == ({"r0", "r1"}, True)
    still.upsert(STORED[:1], texts=["yellow pear"])
    still.delete(["r1"])
    still.index_text()
    assert found(still, "apple") == (set(), True)
    assert found(still, "pear") == ({"r0"}, True)
    assert feed_of(still).index.count() == 1


def test_changes_are_taken_in_their_order_even_many_in_a_transaction(still: Stilled) -> None:
    for turn in range(40):
        still.upsert(STORED[:20], texts=[f"turn{turn}"] * 20)
    still.index_text()
    assert found(still, "turn39")[0] == {f"r{n}" for n in range(20)}
    assert all(found(still, f"turn{turn}")[0] == set() for turn in range(39))
    rebuilt_equals(still)


def test_a_feed_that_overflows_is_thrown_away_and_the_index_catches_up(
    still: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer_module, "FEED_ROWS", 100)
    monkeypatch.setattr(indexer_module, "TRANSACTION_ROWS", 64)
    still.upsert(STORED[:50], texts=["early"] * 50)
    still.index_text()
    still.upsert(STORED[50:1000], 50, texts=["late"] * 950)
    still.delete([f"r{n}" for n in range(25)])
    still.upsert(STORED[25:30], 25, texts=["changed"] * 5)
    assert feed_of(still).behind
    assert found(still, "late") == (set(), False)
    still.index_text()
    assert found(still, "early") == ({f"r{n}" for n in range(30, 50)}, True)
    assert found(still, "changed")[0] == {f"r{n}" for n in range(25, 30)}
    assert len(found(still, "late")[0]) == 950
    rebuilt_equals(still)


def test_what_is_written_while_the_index_catches_up_is_not_lost(
    still: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer_module, "TRANSACTION_ROWS", 10)
    still.upsert(STORED[:100], texts=["first"] * 100)
    feed = feed_of(still)
    feed._throw_away()
    add, turns = feed.index.add, iter(range(1000))

    def add_and_write(*given: object) -> None:
        add(*given)  # type: ignore[arg-type]
        turn = next(turns)
        if turn == 3:
            still.delete(["r0", "r5", "r99"])  # two that are in by now, one that is not
            still.upsert(STORED[:1], 500, texts=["second"])
        if turn == 5:
            still.upsert(STORED[1:2], 1, texts=["third"])

    monkeypatch.setattr(feed.index, "add", add_and_write)
    still.index_text()
    assert found(still, "first") == ({f"r{n}" for n in range(2, 99) if n != 5}, True)
    assert found(still, "second third")[0] == {"r500", "r1"}
    rebuilt_equals(still)


def test_a_catching_up_that_was_broken_off_leaves_no_ghosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_module, "TRANSACTION_ROWS", 10)
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:100], texts=["word"] * 100)
        feed = feed_of(still)
        feed._throw_away()
        add, turns = feed.index.add, iter(range(1000))

        def add_some(*given: object) -> None:
            if next(turns) == 4:
                raise StorageFull("no room.")
            add(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(feed.index, "add", add_some)
        still.index_text()
        assert feed.problem == "no room."
        assert not feed.has_work, "it pauses"
        monkeypatch.undo()
        assert 0 < feed.index.count() < 100
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.delete([f"r{n}" for n in range(0, 100, 2)])  # some of them are in, though the index says otherwise
        still.index_text()
        assert found(still, "word") == ({f"r{n}" for n in range(1, 100, 2)}, True)
        rebuilt_equals(still)


def test_a_full_disk_is_told_and_the_index_catches_up_when_there_is_space(
    still: Stilled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no room.")

    still.upsert(STORED[:10], texts=["before"] * 10)
    still.index_text()
    monkeypatch.setattr(feed_of(still).index, "add", full)
    still.upsert(STORED[10:20], 10, texts=["after"] * 10)
    still.delete(["r0"])
    still.index_text()
    assert "the full text is behind" in caplog.text
    assert [where for where, _ in still.problems()] == ["text"]
    assert found(still, "before")[1] is False
    assert not feed_of(still).has_work
    monkeypatch.undo()
    feed_of(still)._retry_at = 0.0
    still.index_text()
    assert found(still, "before") == ({f"r{n}" for n in range(1, 10)}, True)
    assert len(found(still, "after")[0]) == 10
    rebuilt_equals(still)


def test_a_damaged_index_is_made_anew_whoever_meets_it_first(still: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    still.upsert(STORED[:10], texts=["word"] * 10)
    still.index_text()
    old = feed_of(still).index

    def damaged(*_: object) -> None:
        raise Damaged("the file is damaged.")

    monkeypatch.setattr(old, "search", damaged)
    assert found(still, "word") == (set(), False), "nobody makes it anew in time"
    assert not feed_of(still).up_to_date
    still.index_text()
    assert feed_of(still).index is not old
    assert found(still, "word") == ({f"r{n}" for n in range(10)}, True)
    rebuilt_equals(still)
    monkeypatch.setattr(feed_of(still).index, "add", damaged)
    still.delete(["r3"])
    still.index_text()
    assert found(still, "word") == ({f"r{n}" for n in range(10) if n != 3}, True)
    rebuilt_equals(still)


def test_a_search_waits_while_the_index_that_it_found_damaged_is_made_anew(
    still: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.upsert(STORED[:10], texts=["word"] * 10)
    still.index_text()

    def damaged(*_: object) -> None:
        raise Damaged("the file is damaged.")

    monkeypatch.setattr(feed_of(still).index, "search", damaged)
    with running(still):
        assert found(still, "word", 30) == ({f"r{n}" for n in range(10)}, True)


def test_when_no_new_index_can_be_made_it_is_tried_again_later_and_not_at_once(
    still: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.upsert(STORED[:10], texts=["word"] * 10)
    still.index_text()

    def full(_: Path) -> None:
        raise StorageFull("no room.")

    monkeypatch.setattr(TextIndex, "open", staticmethod(full))
    feed_of(still).renew()
    for _ in range(3):
        still.index_text()
        assert feed_of(still).problem is not None
        assert not feed_of(still).has_work
        assert found(still, "word") == (set(), False)
        feed_of(still)._retry_at = 0.0
    monkeypatch.undo()
    still.index_text()
    assert found(still, "word") == ({f"r{n}" for n in range(10)}, True)
    rebuilt_equals(still)


def test_after_a_start_the_index_goes_on_from_where_it_was(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:10], texts=["old"] * 10)
        still.index_text()
        assert still.problems() == []
        still.upsert(STORED[10:20], 10, texts=["new"] * 10)
        still.delete(["r0", "r15"])
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        assert feed_of(still).behind
        still.index_text()
        assert found(still, "old") == ({f"r{n}" for n in range(1, 10)}, True)
        assert found(still, "new")[0] == {f"r{n}" for n in range(10, 20) if n != 15}
        rebuilt_equals(still)
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        assert not feed_of(still).has_work


def test_an_index_ahead_of_rocksdb_is_made_anew_because_numbers_are_given_out_again(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:10], texts=["kept"] * 10)
        lost = [(row, "lost") for row in range(11, 21)]
        feed_of(still).index.add([*((row, "kept") for row in range(1, 11)), *lost], [], 20)
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        assert found(still, "lost")[0] == set()
        still.upsert(STORED[10:20], 10, texts=["second"] * 10)  # rows 11 to 20
        still.index_text()
        assert found(still, "lost")[0] == set()
        assert len(found(still, "second")[0]) == 10
        rebuilt_equals(still)


# The thread


class running:  # noqa: N801 - reads as a word of the test
    """The indexer's thread over one collection."""

    def __init__(self, still: Stilled) -> None:
        self.indexer = Indexer(lambda: [feed_of(still)])
        feed_of(still)._wake = self.indexer.wake

    def __enter__(self) -> Indexer:
        self.indexer.start()
        self.indexer.wake()
        return self.indexer

    def __exit__(self, *_: object) -> None:
        self.indexer.stop()


def test_a_search_sees_every_write_that_came_before_it(still: Stilled) -> None:
    with running(still):
        for number in range(30):
            still.upsert(STORED[:1], number, texts=[f"word{number}"])
            assert found(still, f"word{number}", 30) == ({f"r{number}"}, True)


def test_searches_beside_writes_and_rebuilding_miss_nothing(still: Stilled) -> None:
    still.upsert(STORED[:50], texts=["steady"] * 50)
    wanted = {f"r{n}" for n in range(50)}
    failed: list[object] = []
    stop = threading.Event()

    def search() -> None:
        try:
            while not stop.is_set():
                hits, complete = feed_of(still).search("steady", 100, everywhere, time.monotonic() + 30)
                if len(hits) != 50 or not complete:
                    failed.append((len(hits), complete))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells of it
            failed.append(error)

    with running(still):
        assert found(still, "steady", 30) == (wanted, True)
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(12):
            still.upsert(STORED[50:80], 50, texts=[f"passing{turn}"] * 30)
            if turn % 4 == 3:
                feed_of(still).renew()
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert failed == []
        assert found(still, "passing11", 30)[0] == {f"r{n}" for n in range(50, 80)}


def test_a_closed_feed_answers_no_more_and_lets_waiting_searches_go(still: Stilled) -> None:
    still.upsert(STORED[:1], texts=["word"])
    outcome: list[object] = []
    hurried = threading.Event()
    feed_of(still)._wake = lambda hurry: hurried.set() if hurry else None

    def search() -> None:
        try:
            outcome.append(found(still, "word", 60))
        except Closed as error:
            outcome.append(error)

    waiting = threading.Thread(target=search)
    waiting.start()
    assert hurried.wait(30)
    feed_of(still).close()
    waiting.join(30)
    assert isinstance(outcome[0], Closed)
    assert not feed_of(still).has_work
    feed_of(still).work()
    feed_of(still).close()


def test_an_indexer_that_never_began_can_be_stopped() -> None:
    Indexer(list).stop()


def test_a_defect_in_one_feed_does_not_end_the_thread_for_the_others(
    still: Stilled, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        has_work = True
        index = TextIndex(Path("none"), closed=True)

        def work(self) -> None:
            raise ZeroDivisionError

    indexer = Indexer(lambda: [Broken(), feed_of(still)])  # type: ignore[list-item]
    feed_of(still)._wake = indexer.wake
    indexer.start()
    still.upsert(STORED[:1], texts=["word"])
    assert found(still, "word", 30) == ({"r0"}, True)
    indexer.stop()
    assert "the full text failed" in caplog.text


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_of_many_indexes_few_stay_open_and_all_answer(
    still: Stilled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer_module, "AWAKE", 2)
    feeds = [TextFeed(still.rocks, b"%d" % at, tmp_path / f"{at}.sqlite", lambda hurry: None) for at in range(6)]
    indexer = Indexer(lambda: feeds)
    indexer.start()
    try:
        for at, feed in enumerate(feeds):
            feed.open(0)
            feed.add([(1, f"word{at}")], [], 1)
        indexer.wake(True)
        wait_for(lambda: all(feed.up_to_date for feed in feeds))
        wait_for(lambda: sum(feed.index.is_open for feed in feeds) <= 2)
        for at, feed in enumerate(feeds):
            assert [row for row, _ in feed.index.search(f"word{at}", 5)] == [1]
    finally:
        indexer.stop()
        for feed in feeds:
            feed.close()


def test_dead_entries_hold_the_text_that_the_index_needs(still: Stilled) -> None:
    still.upsert(STORED[:2], texts=["gone", None])
    row = still.row("r0")
    still.delete(["r0", "r1"])
    ended = dict(still.rocks.scan("dead", still.collection.scope))
    assert sorted(ended.values()) == [keys.number(row) + b"gone", keys.number(row + 1)]


def test_what_a_defect_took_out_of_the_feed_comes_from_the_database(
    still: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.upsert(STORED[:2], texts=["word", "word"])
    feed = feed_of(still)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(feed.index, "add", fail)
        feed.work()
    assert not feed.up_to_date
    still.upsert(STORED[2:3], 2, texts=["word"])
    feed._retry_at = 0.0
    while feed.has_work:
        feed.work()
    assert feed.up_to_date
    assert found(still, "word", 30) == ({"r0", "r1", "r2"}, True)


def test_an_index_that_is_made_anew_while_it_is_closed_stays_closed(still: Stilled) -> None:
    still.upsert(STORED[:1], texts=["word"])
    feed = feed_of(still)
    feed.renew()
    open_index = TextIndex.open

    def closed_meanwhile(path: Path) -> TextIndex:
        feed.close()
        return open_index(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextIndex, "open", closed_meanwhile)
        feed.work()
    assert not feed.has_work
    with pytest.raises(Closed):
        feed.search("word", 5, lambda rows: rows > 0, 0.0)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process has the index, for a moment, and marks it."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA user_version = 7")
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


def is_marked(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as other:
        return bool(other.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("ahead", [False, True])
def test_an_index_that_cannot_be_opened_for_a_moment_is_used_as_it_is_later_unless_it_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ahead: bool
) -> None:
    monkeypatch.setattr(textfile, "BUSY_S", 0.05)
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:100], texts=["steady"] * 100)
        still.index_text()
        if ahead:  # as after a loss of power: rows of these numbers are to come again
            feed_of(still).index.add([(103, "never")], [], 105)
    path = tmp_path / "derived" / "text.sqlite"
    with locked(path):
        again = stilled(tmp_path, DIMENSIONS, text=True)
        still = again.__enter__()
    try:
        feed = feed_of(still)
        assert isinstance(feed.unopened, Unavailable)
        still.upsert(STORED[100:110], 100, texts=["later"] * 10)
        still.index_text()
        assert feed.is_usable
        assert is_marked(path) == (not ahead)
        assert found(still, "steady") == ({f"r{n}" for n in range(100)}, True)
        assert found(still, "later") == ({f"r{n}" for n in range(100, 110)}, True)
        assert found(still, "never") == (set(), True)
        rebuilt_equals(still)
    finally:
        again.__exit__(None, None, None)
