"""history: what was appended is there once, through merges, retention, erasure, crashes and damage."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.errors import ChecksumMismatch, Closed, Damaged, NotFound, StorageFull, UnsupportedFormat
from dataplane.state.history import History
from dataplane.state.logmanifest import MANIFEST, Manifest
from dataplane.state.logshards import LogEvent
from tests.dataplane.damage import flip
from tests.dataplane.killing import killed
from tests.dataplane.state.test_logshards import make_events

CHANGER = """
import random, sys
from pathlib import Path
from dataplane.state.history import History
from dataplane.state.logshards import LogEvent

history = History.open(Path(sys.argv[1]))
rng = random.Random(int(sys.argv[2]))
seqs = {tenant: len(history.scan(tenant, "s", limit=1_000_000)) for tenant in ("keep", "gone")}
seqs["gone"] += 1_000_000 * int(sys.argv[2])

def say(*words):
    print(*words, flush=True)

say("ready")
while True:
    what = rng.choice(["append"] * 5 + ["compact", "erase"])
    if what == "append":
        events = []
        for tenant in ("keep", "gone"):
            for _ in range(rng.randrange(1, 400)):
                events.append(LogEvent(tenant, "s", seqs[tenant], "k", len(events), b"%s %d" % (tenant.encode(), seqs[tenant])))
                seqs[tenant] += 1
        history.append_shard(events)
        say("appended", *(f"{event.tenant}:{event.seq}" for event in events))
    elif what == "compact":
        history.compact(5000)
    else:
        say("erasing")
        history.erase("gone")
        say("erased")
"""


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History.open(tmp_path / "history")
    yield opened
    opened.close()


def event(seq: int, tenant: str = "t", stream: str = "s", time_ms: int | None = None) -> LogEvent:
    return LogEvent(
        tenant, stream, seq, "message", seq if time_ms is None else time_ms, f"{tenant}/{stream}/{seq}".encode()
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_appended_events_are_read_and_scanned_also_after_reopening(tmp_path: Path) -> None:
    events = make_events(2000)
    history = History.open(tmp_path)
    for begin in range(0, 2000, 500):
        entry = history.append_shard(events[begin : begin + 500])
        assert entry is not None
        assert entry.rows == 500
    for _ in range(2):
        for wanted in events[::97]:
            assert history.read(wanted.tenant, wanted.stream, wanted.seq) == wanted
        stream = [e for e in events if (e.tenant, e.stream) == ("tenant1", "s2")]
        assert history.scan("tenant1", "s2", limit=10_000) == stream
        assert history.scan("tenant1", "s2", after=stream[99].seq, limit=50) == stream[100:150]
        assert history.scan("tenant1", "s2", after=stream[-1].seq) == []
        assert history.scan("tenant1", "s2", limit=0) == []
        assert history.read("tenant1", "s2", 1_000_000) is None
        assert history.read("tenant1", "s2", -1) is None
        assert history.read("tenant7", "s2", 0) is None
        assert history.verify() == []
        history.close()
        history = History.open(tmp_path)
    history.close()


def test_what_one_tenant_stored_no_other_reads(history: History) -> None:
    history.append_shard([event(1, "a", "bc"), event(1, "ab", "c")])
    assert history.scan("a", "bc") == [event(1, "a", "bc")]
    assert history.scan("a", "c") == []
    assert history.read("abc", "", 1) is None


def test_an_event_that_is_there_is_not_appended_again(history: History) -> None:
    assert history.append_shard([event(1), event(2), event(1, time_ms=9)]) is not None
    assert history.append_shard([event(2), event(1)]) is None
    entry = history.append_shard([event(2), event(3)])
    assert entry is not None
    assert entry.rows == 1
    assert history.scan("t", "s") == [event(1), event(2), event(3)]


def test_events_of_a_shard_lie_in_order_of_time(history: History, tmp_path: Path) -> None:
    entry = history.append_shard([event(1, time_ms=30), event(2, time_ms=10), event(3, time_ms=20)])
    assert entry is not None
    assert (entry.oldest_ms, entry.newest_ms) == (10, 30)
    assert [e.seq for e in history.scan("t", "s")] == [1, 2, 3]


def test_nothing_appended_makes_no_shard(history: History) -> None:
    assert history.append_shard([]) is None
    assert history.entries == ()
    assert history.compact(100) == 0
    assert history.erase("t") == 0
    assert history.retain(5) == 0


def test_small_shards_are_merged_up_to_the_bound_and_every_event_stays(history: History, tmp_path: Path) -> None:
    events = make_events(3000)
    for begin in range(0, 3000, 100):
        history.append_shard(events[begin : begin + 100])
    assert history.compact(1000) == 27
    assert [entry.rows for entry in history.entries] == [1000, 1000, 1000]
    assert files(tmp_path / "history") == {MANIFEST} | {entry.name for entry in history.entries}
    for tenant, stream in itertools.product(("tenant0", "tenant1"), ("s0", "s1", "s2")):
        assert history.scan(tenant, stream, limit=5000) == [
            e for e in events if (e.tenant, e.stream) == (tenant, stream)
        ]
    assert history.compact(1000) == 0
    assert history.verify() == []


def test_a_large_shard_is_not_rewritten_for_a_small_neighbour(history: History) -> None:
    history.append_shard([event(n) for n in range(900)])
    for seq in (1000, 1001, 1002):
        history.append_shard([event(seq)])
    assert history.compact(10_000) == 2
    assert [entry.rows for entry in history.entries] == [900, 3]


def test_retention_removes_exactly_what_is_older(history: History, tmp_path: Path) -> None:
    for begin in (0, 100, 200):
        history.append_shard([event(n) for n in range(begin, begin + 100)])
    assert history.retain(150) == 150
    assert [e.seq for e in history.scan("t", "s", limit=500)] == list(range(150, 300))
    assert [entry.rows for entry in history.entries] == [50, 100]
    assert history.retain(150) == 0
    assert files(tmp_path / "history") == {MANIFEST} | {entry.name for entry in history.entries}
    assert history.retain(10_000) == 150
    assert files(tmp_path / "history") == {MANIFEST}


def test_erasing_a_tenant_leaves_no_byte_of_it_in_the_folder(history: History, tmp_path: Path) -> None:
    def of(tenant: str, n: int) -> LogEvent:
        return LogEvent(tenant, f"{tenant}-stream", n, f"{tenant}-kind", n, f"{tenant}-secret-{n}".encode())

    for begin in range(0, 900, 300):
        history.append_shard([of(tenant, n) for n in range(begin, begin + 300) for tenant in ("victim", "other")])
    history.append_shard([of("other", n) for n in range(900, 1000)])
    untouched = history.entries[-1]
    assert history.erase("victim") == 900
    assert history.erase("victim") == 0
    assert history.scan("victim", "victim-stream") == []
    assert history.scan("other", "other-stream", limit=2000) == [of("other", n) for n in range(1000)]
    assert history.entries[-1] == untouched
    for path in (tmp_path / "history").iterdir():
        assert b"victim" not in path.read_bytes()
    # zstd may hide a name: every event that any file holds is the other tenant's.
    assert history.verify() == []
    assert sum(entry.rows for entry in history.entries) == 1000
    assert files(tmp_path / "history") == {MANIFEST} | {entry.name for entry in history.entries}


def test_erasing_a_stream_leaves_the_tenant_s_others(history: History) -> None:
    history.append_shard([event(n, stream=stream) for n in range(50) for stream in ("a", "b")])
    assert history.erase("t", "a") == 50
    assert history.erase("u", "b") == 0
    assert history.scan("t", "a") == []
    assert history.scan("t", "b") == [event(n, stream="b") for n in range(50)]


def test_erasing_the_last_events_removes_the_shard(history: History, tmp_path: Path) -> None:
    history.append_shard([event(1)])
    assert history.erase("t") == 1
    assert files(tmp_path / "history") == {MANIFEST}


def test_files_that_no_manifest_names_are_removed_at_open(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    history.append_shard([event(1)])
    history.close()
    (tmp_path / "log-00000099.parquet").write_bytes(b"left by a crash")
    (tmp_path / ".tmp-1-log").write_bytes(b"left by a crash")
    (tmp_path / "notes.txt").write_bytes(b"not ours")
    history = History.open(tmp_path)
    assert files(tmp_path) == {MANIFEST, "log-00000001.parquet", "notes.txt"}
    assert history.scan("t", "s") == [event(1)]
    history.close()


def test_every_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    history.append_shard([event(1)])
    history.close()
    size = (tmp_path / MANIFEST).stat().st_size
    for position in range(0, size, 5):
        flip(tmp_path / MANIFEST, position)
        with pytest.raises(ChecksumMismatch, match=r"manifest\.json is not what was written"):
            History.open(tmp_path)
        flip(tmp_path / MANIFEST, position)
    (tmp_path / MANIFEST).write_bytes(b"")
    with pytest.raises(ChecksumMismatch):
        History.open(tmp_path)
    assert "log-00000001.parquet" in files(tmp_path)


def test_a_lost_manifest_does_not_lose_the_shards(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    history.append_shard([event(1)])
    history.close()
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(Damaged, match=r"manifest\.json is missing"):
        History.open(tmp_path)
    assert files(tmp_path) == {"log-00000001.parquet"}


def test_a_manifest_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(Manifest(format=2).encode())
    with pytest.raises(UnsupportedFormat):
        History.open(tmp_path)


def test_a_flipped_byte_in_a_shard_is_named_and_other_shards_answer(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    entry = history.append_shard([event(n) for n in range(600)])
    history.append_shard([event(n, "u") for n in range(10)])
    history.close()
    assert entry is not None
    flip(tmp_path / entry.name, entry.groups[1].offset + 100)
    history = History.open(tmp_path)
    assert history.problems == {}
    assert history.read("t", "s", 5) == event(5)
    with pytest.raises(ChecksumMismatch, match=rf"{entry.name}: row group 1"):
        history.read("t", "s", 300)
    with pytest.raises(ChecksumMismatch, match=rf"{entry.name}: row group 1"):
        history.scan("t", "s", limit=1000)
    assert len(history.verify()) == 1
    assert history.append_shard([event(300)]) is None  # the index still knows it
    with pytest.raises(ChecksumMismatch):
        history.erase("t")
    assert history.compact(10_000) == 0
    assert history.erase("u") == 10
    assert history.entries == (entry,)
    history.close()


def test_a_shard_with_a_broken_footer_makes_absence_unknown_until_it_is_discarded(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    entry = history.append_shard([event(n) for n in range(10)])
    history.append_shard([event(n, "u") for n in range(10)])
    history.close()
    assert entry is not None
    flip(tmp_path / entry.name, entry.bytes - 30)
    history = History.open(tmp_path)
    assert list(history.problems) == [entry.name]
    assert history.read("u", "s", 3) == event(3, "u")
    for ask in (lambda: history.read("t", "s", 3), lambda: history.scan("u", "s"), lambda: history.erase("u")):
        with pytest.raises(ChecksumMismatch, match=f"{entry.name}: its footer"):
            ask()
    with pytest.raises(NotFound):
        history.discard("log-00000077.parquet")
    history.discard(entry.name)
    assert history.problems == {}
    assert history.read("t", "s", 3) is None
    assert history.verify() == []
    assert entry.name not in files(tmp_path)
    history.close()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    entry = history.append_shard([event(1)])
    history.close()
    assert entry is not None
    (tmp_path / entry.name).unlink()
    history = History.open(tmp_path)
    with pytest.raises(Damaged, match=f"{entry.name} is missing"):
        history.read("t", "s", 1)
    assert history.verify() == [history.problems[entry.name]]
    assert history.retain(1000) == 1
    assert history.read("t", "s", 1) is None
    history.close()


def test_a_manifest_that_cannot_be_written_leaves_the_old_state_and_no_shard(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.append_shard([event(1)])

    def full(path: Path, content: bytes) -> None:
        raise StorageFull(f"The disk has no room for {path}.")

    monkeypatch.setattr("dataplane.state.history.write_bytes", full)
    for change in (lambda: history.append_shard([event(2)]), lambda: history.erase("t")):
        with pytest.raises(StorageFull):
            change()
        assert history.scan("t", "s") == [event(1)]
        assert files(tmp_path / "history") == {MANIFEST, "log-00000001.parquet"}
    monkeypatch.undo()
    assert history.append_shard([event(2)]) is not None
    assert history.verify() == []


def test_a_closed_history_refuses(history: History) -> None:
    history.close()
    asks: list[Callable[[], object]] = [
        lambda: history.read("t", "s", 1),
        lambda: history.append_shard([event(1)]),
        history.verify,
    ]
    for ask in asks:
        with pytest.raises(Closed):
            ask()


def test_readers_get_right_answers_while_shards_are_merged_erased_and_closed_under_them(tmp_path: Path) -> None:
    history = History.open(tmp_path, handles=1)
    for begin in range(0, 2000, 100):
        history.append_shard([event(n, tenant) for n in range(begin, begin + 100) for tenant in ("t", "u")])
    wrong: list[object] = []
    stop = threading.Event()

    def read(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            seq = rng.randrange(2000)
            found = history.read("t", "s", seq)
            if found != event(seq):
                wrong.append(found)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    history.compact(500)
    history.erase("u")
    history.compact(2000)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert history.verify() == []
    history.close()


def test_killed_at_random_moments_nothing_appended_is_lost_or_doubled_and_nothing_erased_returns(
    tmp_path: Path,
) -> None:
    rng = random.Random(4)
    keep: list[int] = []
    gone: set[int] = set()
    for attempt in range(6):
        ready, *said = killed(CHANGER, tmp_path, attempt + 1, wait_s=rng.uniform(0.05, 0.4))
        assert ready == "ready"
        erasing = False
        for word, *places in map(str.split, said):
            erasing = word == "erasing"
            if word == "erased":
                gone.clear()
            for tenant, seq in (place.split(":") for place in places):
                if tenant == "keep":
                    keep.append(int(seq))
                else:
                    gone.add(int(seq))
        history = History.open(tmp_path)
        assert history.verify() == []
        found = [e.seq for e in history.scan("keep", "s", limit=1_000_000)]
        assert found[: len(keep)] == keep
        assert found == list(range(len(found)))
        assert len(found) - len(keep) < 400  # at most the append that was under way
        keep = found
        left = {e.seq for e in history.scan("gone", "s", limit=1_000_000)}
        assert erasing or gone <= left
        assert len(left - gone) < 400
        gone = left
        assert all(
            path.name == MANIFEST or path.name in {e.name for e in history.entries} for path in tmp_path.iterdir()
        )
        history.close()
    assert len(keep) > 1000


def test_a_span_is_read_up_to_its_bounds(history: History) -> None:
    history.append_shard([event(n) for n in range(1, 400)])
    history.append_shard([event(n) for n in range(380, 600)])
    everything = [event(n) for n in range(1, 600)]
    assert history.span("t", "s", range(1, 600), 1000, 1 << 20) == everything
    assert history.span("t", "s", range(100, 450), 1000, 1 << 20) == everything[99:449]
    assert history.span("t", "s", range(100, 450), 7, 1 << 20) == everything[99:106]
    assert history.span("t", "s", range(598, 2000), 1000, 1 << 20) == everything[597:]
    assert history.span("u", "s", range(1, 600), 1000, 1 << 20) == []
    some = history.span("t", "s", range(1, 600), 1000, 100)
    assert 0 < len(some) < 599
    assert some == everything[: len(some)]


def test_a_span_that_is_whole_needs_no_other_shard(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    entry = history.append_shard([event(n) for n in range(10)])
    history.append_shard([event(n, "u") for n in range(10, 20)])
    history.close()
    assert entry is not None
    flip(tmp_path / entry.name, entry.bytes - 30)
    history = History.open(tmp_path)
    assert history.span("u", "s", range(10, 20), 100, 1 << 20) == [event(n, "u") for n in range(10, 20)]
    assert history.span("u", "s", range(12, 500), 3, 1 << 20) == [event(n, "u") for n in range(12, 15)]
    for seqs in (range(9, 20), range(10, 21)):
        with pytest.raises(ChecksumMismatch, match=entry.name):
            history.span("u", "s", seqs, 100, 1 << 20)
    with pytest.raises(ChecksumMismatch, match=entry.name):
        history.count("u")
    assert list(history.damaged()) == [entry.name]
    history.close()


def test_another_event_in_an_event_s_place_is_told(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    entry = history.append_shard([event(n) for n in range(300)])
    same, unknown, others = event(3), event(500), [event(4, time_ms=77), event(5, time_ms=77)]
    assert history.conflicting([same, unknown, *others, event(4, "u", time_ms=5)]) == others
    assert history.conflicting([]) == []
    history.close()
    assert entry is not None
    flip(tmp_path / entry.name, entry.groups[0].offset + 100)
    history = History.open(tmp_path)
    assert history.conflicting([event(299), unknown]) == []
    with pytest.raises(ChecksumMismatch):
        history.conflicting([same])
    history.close()


def test_ranges_of_streams_are_forgotten_together(history: History) -> None:
    history.append_shard([event(n, tenant, stream) for n in range(100) for tenant in "ab" for stream in "xy"])
    untouched = history.append_shard([event(n, "c") for n in range(5)])
    assert history.forget({("a", "x"): range(50), ("b", "y"): range(90, 1 << 62), ("c", "none"): range(9)}) == 60
    assert history.forget({("a", "x"): range(50)}) == 0
    assert history.forget({}) == 0
    assert history.scan("a", "x") == [event(n, "a", "x") for n in range(50, 100)]
    assert history.scan("b", "y") == [event(n, "b", "y") for n in range(90)]
    assert len(history.scan("a", "y")) == len(history.scan("b", "x")) == 100
    assert history.entries[-1] == untouched
    assert (history.count("a"), history.count("b"), history.count("c"), history.count("d")) == (150, 190, 5, 0)


def test_the_files_of_one_moment_are_a_history(history: History, tmp_path: Path) -> None:
    history.append_shard([event(n) for n in range(10)])
    (tmp_path / "copy").mkdir()
    history.link(lambda path: os.link(path, tmp_path / "copy" / path.name))
    history.append_shard([event(n) for n in range(10, 20)])
    history.erase("t")
    copy = History.open(tmp_path / "copy")
    assert copy.scan("t", "s") == [event(n) for n in range(10)]
    assert copy.verify() == []
    copy.close()
