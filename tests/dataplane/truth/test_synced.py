"""Damage in RocksDB's log: an end that nobody had synced is cut off, anything before it is named and never dropped in silence."""

import os
from pathlib import Path

import pytest

from dataplane.errors import Damaged
from dataplane.truth.rocks import Rocks
from dataplane.truth.synced import SyncedMark
from tests.dataplane.damage import flip

MEMORY = 16 << 20


def put(rocks: Rocks, number: int) -> None:
    batch = rocks.batch()
    batch.put("rows", b"%03d" % number, b"x" * 200)
    rocks.write(batch)


def stored(path: Path) -> list[int]:
    rocks = Rocks.open(path, memory_bytes=MEMORY)
    try:
        return [int(key) for key, _ in rocks.scan("rows", b"")]
    finally:
        rocks.close()


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A database of which rows 0 to 39 were synced and 40 to 49 were not, as the disk is when the process dies."""
    source, copy = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY), tmp_path / "copy"
    for number in range(50):
        put(source, number)
        if number == 39:
            source.sync()
    copy.mkdir()
    for path in (tmp_path / "rocks").iterdir():
        if path.name != "LOCK":
            (copy / path.name).write_bytes(path.read_bytes())
    source.close()
    return copy


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def test_a_whole_log_is_read_whole(crashed: Path) -> None:
    assert stored(crashed) == list(range(50))


def test_damage_in_what_was_not_synced_costs_only_what_follows_it(crashed: Path) -> None:
    flip(log_of(crashed), share=0.9)
    left = stored(crashed)
    assert left == list(range(len(left)))
    assert 40 <= len(left) < 50
    assert stored(crashed) == left


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_damage_in_what_was_synced_is_named_and_nothing_is_dropped(crashed: Path, share: float) -> None:
    flip(log_of(crashed), share=share)
    content = log_of(crashed).read_bytes()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"acknowledged as durable.*synced to go on without"):
            stored(crashed)
    assert log_of(crashed).read_bytes() == content
    (crashed / "synced").unlink()
    left = stored(crashed)
    assert left == list(range(len(left)))
    assert len(left) < 40


def test_a_log_that_lost_its_synced_end_does_not_open(crashed: Path) -> None:
    os.truncate(log_of(crashed), log_of(crashed).stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(Damaged, match="is damaged or was cut"):
            stored(crashed)


def test_a_mark_is_what_was_written_last_or_nothing(tmp_path: Path) -> None:
    mark = SyncedMark(tmp_path / "synced")
    assert mark.read() == 0
    mark.write(7)
    mark.write(1 << 40)
    assert mark.read() == SyncedMark(tmp_path / "synced").read() == 1 << 40
    mark.close()
    mark.close()
    content = (tmp_path / "synced").read_bytes()
    for damaged in (b"", content[:5], content[:11], bytes([content[0] ^ 1]) + content[1:], content + b"x"):
        (tmp_path / "synced").write_bytes(damaged)
        assert mark.read() == 0
    (tmp_path / "synced").write_bytes(content)
    assert mark.read() == 1 << 40
