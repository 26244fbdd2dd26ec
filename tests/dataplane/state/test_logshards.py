"""logshards: the index finds what the file holds, and a broken file is named."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.errors import ChecksumMismatch, Closed, Damaged, InvalidInput, UnsupportedFormat
from dataplane.state.logshards import (
    RUN,
    LogEvent,
    LogIndex,
    LogShard,
    LogShardEntry,
    OpenShards,
    stream_key,
    write_log_shard,
)


def make_events(count: int, streams: int = 3) -> list[LogEvent]:
    return [
        LogEvent(f"tenant{n % 2}", f"s{n % streams}", n // streams, "kind", 1000 + n, b"\0payload %d" % n)
        for n in range(count)
    ]


def test_events_are_read_back_in_order_and_found_by_their_place(tmp_path: Path) -> None:
    events = make_events(1000)
    entry = write_log_shard(tmp_path, "log", events)
    assert (entry.rows, entry.oldest_ms, entry.newest_ms) == (1000, 1000, 1999)
    assert [group.rows for group in entry.groups] == [256, 256, 256, 232]
    shard = LogShard(tmp_path / "log", entry)
    index = shard.index()
    assert list(shard.all_events()) == events
    for event in events[::7]:
        group = index.find(stream_key(event.tenant, event.stream), event.seq)
        assert group is not None
        assert shard.find(group, event.tenant, event.stream, event.seq) == event
        assert shard.find(group, "other", event.stream, event.seq) is None
    assert index.find(stream_key("tenant0", "s0"), 100_000) is None
    assert index.find(stream_key("tenant9", "s0"), 0) is None
    assert index.holds_tenant("tenant1")
    assert not index.holds_tenant("tenant9")
    assert shard.verify() == []
    shard.close()
    with pytest.raises(Closed):
        shard.events(0)


def test_any_parquet_reader_opens_a_log_shard(tmp_path: Path) -> None:
    events = make_events(300)
    write_log_shard(tmp_path, "log.parquet", events)
    table = pq.read_table(tmp_path / "log.parquet")
    assert table.column_names == ["tenant", "stream", "seq", "kind", "time_ms", "payload"]
    assert table["payload"].to_pylist() == [event.payload for event in events]


def test_large_payloads_make_small_row_groups(tmp_path: Path) -> None:
    sizes = [10, 60_000, 100_000, 2_000_000, 10, 10]
    events = [LogEvent("t", "s", n, "k", n, os.urandom(size)) for n, size in enumerate(sizes)]
    entry = write_log_shard(tmp_path, "log", events)
    assert [group.rows for group in entry.groups] == [2, 1, 1, 2]
    shard = LogShard(tmp_path / "log", entry)
    assert list(shard.all_events()) == events
    shard.close()


def test_an_index_of_consecutive_events_is_small(tmp_path: Path) -> None:
    events = [LogEvent("t", "s", n, "k", n, b"") for n in range(2560)]
    shard = LogShard(tmp_path / "log", write_log_shard(tmp_path, "log", events))
    assert len(shard.index().keys) == 10
    shard.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 40)), min_size=1, unique=True))
@settings(max_examples=40, deadline=None)
def test_the_index_knows_exactly_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    shard = LogShard(
        folder / "log",
        write_log_shard(folder, "log", [LogEvent(*place[:2], place[2], "k", 0, b"") for place in places]),
    )
    index = LogIndex.decode(shard.index().encode())
    for tenant in "abc":
        for stream in "xy":
            key = stream_key(tenant, stream)
            held = {seq for t, s, seq in places if (t, s) == (tenant, stream)}
            assert {seq for seq in range(42) if index.find(key, seq) is not None} == held
            every = index.find_all(np.full(42, key, dtype=np.uint64), np.arange(42, dtype=np.uint64))
            assert every.tolist() == [0 if seq in held else -1 for seq in range(42)]
            assert index.holds_stream(key) == bool(held)
            runs = index.after(key, 20)
            assert {seq for first, count, _ in runs for seq in range(first, first + count) if seq > 20} == {
                seq for seq in held if seq > 20
            }
    shard.close()


def test_names_that_look_alike_when_joined_are_different_streams() -> None:
    assert len({stream_key("a", "bc"), stream_key("ab", "c"), stream_key("abc", ""), stream_key("", "abc")}) == 4


def test_the_largest_sequence_numbers_are_kept_apart(tmp_path: Path) -> None:
    last = (1 << 63) - 1
    events = [LogEvent("t", "s", seq, "k", 0, b"%d" % seq) for seq in (last, last - 1, last - 3)]
    shard = LogShard(tmp_path / "log", write_log_shard(tmp_path, "log", events))
    assert shard.index().find(stream_key("t", "s"), last - 2) is None
    found = shard.find(0, "t", "s", last - 1)
    assert found is not None
    assert found.payload == b"%d" % (last - 1)
    shard.close()


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "at least one event"),
        ([LogEvent("t", "s", -1, "k", 0, b"")], "sequence number"),
        ([LogEvent("t", "s", 1 << 63, "k", 0, b"")], "sequence number"),
        ([LogEvent("\ud800", "s", 1, "k", 0, b"")], "cannot be stored"),
        ([LogEvent("t", "s", 1, "k", 1 << 63, b"")], "cannot be stored"),
    ],
)
def test_events_that_cannot_be_stored_are_refused_and_nothing_is_left(
    tmp_path: Path, events: list[LogEvent], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        write_log_shard(tmp_path, "log", events)
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_byte_anywhere_is_found_and_never_a_wrong_event(tmp_path: Path) -> None:
    events = make_events(600)
    entry = write_log_shard(tmp_path, "log", events)
    content = (tmp_path / "log").read_bytes()
    for position in range(4, len(content), 41):
        broken = bytearray(content)
        broken[position] ^= 0x04
        (tmp_path / "log").write_bytes(broken)
        hit = [number for number, at in enumerate(entry.groups) if at.offset <= position < at.offset + at.length]
        if not hit:
            with pytest.raises(ChecksumMismatch, match="log: its footer"):
                LogShard(tmp_path / "log", entry)
            continue
        shard = LogShard(tmp_path / "log", entry)
        with pytest.raises(ChecksumMismatch, match=f"log: row group {hit[0]} is not"):
            shard.events(hit[0])
        other = 1 if hit[0] == 0 else 0
        assert shard.events(other) == events[256 * other : 256 * other + 256]
        assert len(shard.verify()) == 1
        shard.close()


def test_a_flipped_first_byte_is_found_by_verify(tmp_path: Path) -> None:
    entry = write_log_shard(tmp_path, "log", make_events(10))
    content = bytearray((tmp_path / "log").read_bytes())
    content[0] ^= 1
    (tmp_path / "log").write_bytes(content)
    shard = LogShard(tmp_path / "log", entry)
    assert len(shard.verify()) == 1
    shard.close()


def test_an_entry_survives_json_and_a_newer_format_is_refused(tmp_path: Path) -> None:
    entry = write_log_shard(tmp_path, "log", make_events(10))
    assert msgspec.json.decode(msgspec.json.encode(entry), type=LogShardEntry) == entry
    with pytest.raises(UnsupportedFormat):
        LogShard(tmp_path / "log", msgspec.structs.replace(entry, format=2))


def test_only_so_many_shards_are_open_at_a_time(tmp_path: Path) -> None:
    entries = [write_log_shard(tmp_path, f"log{n}", make_events(10)) for n in range(4)]
    before = descriptors()
    shards = OpenShards(tmp_path, 2)
    for entry in entries:
        assert shards.get(entry).events(0) == make_events(10)
    assert shards.get(entries[3]) is shards.get(entries[3])
    assert descriptors() <= before + 4  # two each: the file, and pyarrow's own
    shards.drop(["log3", "unknown"])
    (tmp_path / "log3").unlink()
    with pytest.raises(Damaged, match="log3 is missing"):
        shards.get(entries[3])
    shards.close()
    assert descriptors() == before


def test_an_index_of_nothing_finds_nothing_and_one_that_is_missing_is_refused() -> None:
    empty = LogIndex.decode(LogIndex.of(np.empty(0, dtype=RUN), []).encode())
    assert empty.find(1, 1) is None
    assert empty.find_all(np.array([1], dtype=np.uint64), np.array([1], dtype=np.uint64)).tolist() == [-1]
    assert empty.after(1, 0) == []
    assert not empty.holds_tenant("t")
    with pytest.raises(KeyError):
        LogIndex.decode({})
