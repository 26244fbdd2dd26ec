"""Rocks: families, atomic batches, scans, and what a death, a second process and damage leave behind."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.errors import Closed, Damaged, DataPlaneError, Locked
from dataplane.truth import keys
from dataplane.truth.rocks import FAMILIES, Rocks, _translated
from tests.dataplane.killing import killed

MEMORY = 16 << 20


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    yield rocks
    rocks.close()


def put(rocks: Rocks, family: str, *wanted: bytes, value: bytes = b"v") -> None:
    batch = rocks.batch()
    for key in wanted:
        batch.put(family, key, value)
    rocks.write(batch)


def scanned(rocks: Rocks, prefix: bytes, *, start: bytes = b"", backwards: bool = False) -> list[bytes]:
    return [key for key, _ in rocks.scan("rows", prefix, start=start, backwards=backwards)]


def test_each_family_keeps_its_own_values(rocks: Rocks) -> None:
    for family in FAMILIES:
        put(rocks, family, b"key", value=family.encode())

    assert [rocks.get(family, b"key") for family in FAMILIES] == [family.encode() for family in FAMILIES]
    assert rocks.get("rows", b"other") is None


def test_a_batch_changes_several_families_at_once_in_its_order(rocks: Rocks) -> None:
    put(rocks, "rows", b"a1", b"a2", b"b1")
    batch = rocks.batch()
    batch.delete_prefix("rows", b"a")
    batch.put("rows", b"a3", b"new")
    batch.delete("rows", b"b1")
    batch.put("index", b"a3", b"3")
    batch.put("index", b"a3", b"4")
    assert len(batch) == 5
    assert rocks.get("rows", b"a1") == b"v"  # nothing happens before the write

    rocks.write(batch)

    assert list(rocks.scan("rows", b"")) == [(b"a3", b"new")]
    assert rocks.get("index", b"a3") == b"4"


def test_many_values_come_in_the_order_that_was_asked_for(rocks: Rocks) -> None:
    for number in range(20):
        put(rocks, "vectors", b"%02d" % number, value=b"%d" % number)

    assert rocks.get_many("vectors", [b"07", b"none", b"00", b"07", b"19"]) == [b"7", None, b"0", b"7", b"19"]
    assert rocks.get_many("vectors", []) == []
    assert rocks.get_many("vectors", (b"03",)) == [b"3"]


@pytest.fixture
def edges(rocks: Rocks) -> Rocks:
    """Keys on both sides of the prefix `a`."""
    put(rocks, "rows", b"\x00", b"Z\xff", b"a", b"a\x00", b"ab", b"ac", b"a\xff\xff", b"b", b"b\x00")
    return rocks


INSIDE = [b"a", b"a\x00", b"ab", b"ac", b"a\xff\xff"]


def test_a_scan_gives_the_keys_of_its_prefix_and_no_others(edges: Rocks) -> None:
    assert scanned(edges, b"a") == INSIDE
    assert scanned(edges, b"a", backwards=True) == INSIDE[::-1]
    assert scanned(edges, b"q") == scanned(edges, b"q", backwards=True) == []


def test_a_scan_begins_at_its_start_and_backwards_at_the_last_key_not_above_it(edges: Rocks) -> None:
    assert scanned(edges, b"a", start=b"b") == [b"ab", b"ac", b"a\xff\xff"]
    assert scanned(edges, b"a", start=b"b\x00") == [b"ac", b"a\xff\xff"]
    assert scanned(edges, b"a", start=b"b", backwards=True) == [b"ab", b"a\x00", b"a"]
    assert scanned(edges, b"a", start=b"bz", backwards=True) == [b"ab", b"a\x00", b"a"]
    assert scanned(edges, b"a", start=b"\xff\xff\xff") == []


def test_a_prefix_without_a_key_after_it_is_scanned_to_the_end(rocks: Rocks) -> None:
    put(rocks, "rows", b"\xfe\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff\x01")

    assert scanned(rocks, b"\xff") == [b"\xff", b"\xff\xff", b"\xff\xff\xff\x01"]
    assert scanned(rocks, b"\xff\xff", backwards=True) == [b"\xff\xff\xff\x01", b"\xff\xff"]
    assert rocks.last_key("rows", b"\xff") == b"\xff\xff\xff\x01"


def test_tenants_whose_names_end_in_the_highest_bytes_stay_apart(rocks: Rocks) -> None:
    names = ["a", "a\U0010ffff", "a\U0010ffff\U0010ffff", "b", "\U0010ffff", "x" * 255, "x" * 256]
    for name in names:
        put(rocks, "rows", keys.tenant_prefix(name) + b"\xff" * 8, keys.tenant_prefix(name))

    for name in names:
        prefix = keys.tenant_prefix(name)
        assert scanned(rocks, prefix) == [prefix, prefix + b"\xff" * 8]
        assert rocks.last_key("rows", prefix) == prefix + b"\xff" * 8
    batch = rocks.batch()
    batch.delete_prefix("rows", keys.tenant_prefix("a\U0010ffff"))
    rocks.write(batch)
    assert len(scanned(rocks, b"")) == 2 * (len(names) - 1)


def test_the_last_key_of_a_prefix(edges: Rocks) -> None:
    assert edges.last_key("rows", b"a") == b"a\xff\xff"
    assert edges.last_key("rows", b"b") == b"b\x00"
    assert edges.last_key("rows", b"c") is None
    assert edges.last_key("index", b"a") is None
    assert edges.last_key("rows", b"") == b"b\x00"


def test_a_scan_sees_the_moment_of_its_first_step(edges: Rocks) -> None:
    with contextlib.closing(edges.scan("rows", b"a")) as found:
        assert next(found) == (b"a", b"v")
        put(edges, "rows", b"aa")

        assert [key for key, _ in found] == INSIDE[1:]


def test_memory_and_disk_are_told(rocks: Rocks) -> None:
    put(rocks, "vectors", *(b"%03d" % number for number in range(200)), value=os.urandom(4096))

    assert rocks.memory_bytes() > 200 * 4096
    assert rocks.disk_bytes("vectors") == 0  # it is all in memory, and in the log

    rocks.flush()

    assert rocks.disk_bytes("vectors") > 0
    assert rocks.disk_bytes("events") == 0
    assert rocks.get("vectors", b"007") is not None


def test_after_close_every_call_says_so(tmp_path: Path) -> None:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    batch = rocks.batch()
    batch.put("rows", b"k", b"v")
    rocks.close()
    rocks.close()

    for call in (
        lambda: rocks.get("rows", b"k"),
        lambda: rocks.get_many("rows", [b"k"]),
        lambda: list(rocks.scan("rows", b"")),
        lambda: rocks.last_key("rows", b""),
        lambda: rocks.write(batch),
        lambda: batch.put("rows", b"l", b"v"),
        rocks.sync,
        rocks.flush,
        lambda: rocks.checkpoint(tmp_path / "copy"),
        lambda: rocks.disk_bytes("rows"),
    ):
        with pytest.raises(Closed):
            call()


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    put(rocks, "rows", b"k")
    rocks.close()

    again = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    assert again.get("rows", b"k") == b"v"
    again.close()


def test_a_database_that_is_open_elsewhere_names_its_folder_and_what_to_do(tmp_path: Path) -> None:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    second = (
        "import sys; from pathlib import Path\n"
        "from dataplane.errors import Locked\nfrom dataplane.truth.rocks import Rocks\n"
        "try: Rocks.open(Path(sys.argv[1]), memory_bytes=1)\n"
        "except Locked as error: print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", second, str(tmp_path / "rocks")], capture_output=True, text=True, check=True, timeout=60
    )

    assert answer.stdout.strip() == f"{tmp_path / 'rocks'} is open in another process: stop the daemon that uses it."
    with pytest.raises(Locked):
        Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    rocks.close()


def test_a_checkpoint_is_a_database_of_that_moment(rocks: Rocks, tmp_path: Path) -> None:
    put(rocks, "rows", b"before")
    put(rocks, "events", b"e")

    rocks.checkpoint(tmp_path / "copy")
    put(rocks, "rows", b"after")

    copy = Rocks.open(tmp_path / "copy", memory_bytes=MEMORY)
    assert [key for key, _ in copy.scan("rows", b"")] == [b"before"]
    assert copy.get("events", b"e") == b"v"
    put(copy, "rows", b"in the copy")
    copy.close()
    assert rocks.get_many("rows", [b"after", b"in the copy"]) == [b"v", None]
    with pytest.raises(DataPlaneError, match="RocksDB"):
        rocks.checkpoint(tmp_path / "copy")  # never over something


_DIES = """
import sys, time
from pathlib import Path
from dataplane.truth.rocks import Rocks
rocks = Rocks.open(Path(sys.argv[1]), memory_bytes=1)
for number in range(1_000_000):
    batch = rocks.batch()
    for family in ("rows", "index", "vectors"):
        batch.put(family, b"%08d" % number, b"x" * 300)
    rocks.write(batch)
    print(number, flush=True)
"""


def test_unsynced_writes_survive_the_death_of_the_process_and_batches_stay_whole(tmp_path: Path) -> None:
    told = int(killed(_DIES, tmp_path / "rocks", lines=500)[-1])

    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    found = {family: [int(key) for key, _ in rocks.scan(family, b"")] for family in ("rows", "index", "vectors")}
    rocks.close()
    assert found["rows"] == found["index"] == found["vectors"]
    assert found["rows"] == list(range(len(found["rows"])))
    assert len(found["rows"]) in (told + 1, told + 2)  # one batch may have been written and not told


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A database of 200 rows in table files, closed."""
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    for number in range(200):
        put(rocks, "rows", b"%03d" % number, value=os.urandom(500))
    rocks.flush()
    rocks.close()
    return tmp_path / "rocks"


def _read_all(folder: Path) -> None:
    rocks = Rocks.open(folder, memory_bytes=MEMORY)
    try:
        for _ in rocks.scan("rows", b""):
            pass
    finally:
        rocks.close()


def test_a_flipped_byte_in_a_table_is_found_when_it_is_read(closed: Path) -> None:
    table = max(closed.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)

    rocks = Rocks.open(closed, memory_bytes=MEMORY)
    for backwards in (False, True):
        found = rocks.scan("rows", b"", backwards=backwards)
        with pytest.raises(Damaged, match="Restore it from a backup"):  # and not an end before the last row
            list(found)
    with pytest.raises(Damaged, match=table.name):
        rocks.get_many("rows", [b"%03d" % number for number in range(200)])
    rocks.close()


def test_a_table_that_was_cut_or_lost_is_found(closed: Path) -> None:
    table = max(closed.glob("*.sst"), key=lambda path: path.stat().st_size)
    os.truncate(table, table.stat().st_size // 2)
    with pytest.raises(Damaged, match="Restore it from a backup"):
        _read_all(closed)

    table.unlink()
    with pytest.raises(DataPlaneError, match=table.name):
        _read_all(closed)


@pytest.mark.parametrize("content", [b"", b"MANIFEST-999999\n", b"\x00\xff\x00\n"])
def test_a_damaged_pointer_to_the_database_is_found_and_nothing_is_made_anew(closed: Path, content: bytes) -> None:
    (closed / "CURRENT").write_bytes(content)

    with pytest.raises(DataPlaneError):
        _read_all(closed)

    assert list(closed.glob("*.sst"))


@pytest.mark.parametrize("kept", ["*", "*.sst", "*.log", "MANIFEST-*", "synced"])
def test_a_database_without_its_pointer_is_refused_each_time_and_stays_as_it_is(closed: Path, kept: str) -> None:
    (closed / "CURRENT").unlink()
    (closed / "synced").touch()
    for path in set(closed.iterdir()) - set(closed.glob(kept)):
        path.unlink()
    before = {path.name: path.read_bytes() for path in closed.iterdir()}
    assert before

    for _ in range(3):
        with pytest.raises(Damaged, match=r"Move the folder .* away; then .*acu data restore --from-bucket"):
            Rocks.open(closed, memory_bytes=MEMORY)

    assert {path.name: path.read_bytes() for path in closed.iterdir()} == before


@pytest.mark.parametrize("beside", ["derived/a-1/graph", "library/files/a/file", "history/manifest.json"])
@pytest.mark.parametrize("empty", [False, True])
def test_no_database_is_made_beside_the_files_of_a_lost_one(tmp_path: Path, beside: str, empty: bool) -> None:
    (tmp_path / beside).parent.mkdir(parents=True)
    (tmp_path / beside).touch()
    if empty:
        (tmp_path / "rocks").mkdir()

    for _ in range(2):
        with pytest.raises(Damaged, match="beside it is not empty"):
            Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)

    assert (tmp_path / "rocks").exists() == empty


def test_a_making_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    Rocks.open(tmp_path / "whole", memory_bytes=MEMORY).close()
    folder = tmp_path / "rocks"
    folder.mkdir()
    (tmp_path / "derived").mkdir()
    for name in ("rocksdict-config.json", "IDENTITY", "LOCK", "LOG"):
        (folder / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    (folder / "MANIFEST-000001").write_bytes(b"half of it")
    (folder / "000001.dbtmp").write_bytes(b"MANIFEST-0")

    rocks = Rocks.open(folder, memory_bytes=MEMORY)
    put(rocks, "rows", b"a")
    rocks.close()

    rocks = Rocks.open(folder, memory_bytes=MEMORY)
    assert scanned(rocks, b"") == [b"a"]
    rocks.close()


def test_a_log_cut_at_its_end_loses_the_cut_batch_alone(tmp_path: Path) -> None:
    source = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    for number in range(49):
        put(source, "rows", b"%03d" % number, value=b"x" * 200)
    source.sync()
    put(source, "rows", b"049", value=b"x" * 200)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (tmp_path / "rocks").iterdir():  # as the disk is when the power goes
        if path.name != "LOCK":
            (copy / path.name).write_bytes(path.read_bytes())
    source.close()
    log = max(copy.glob("*.log"), key=lambda path: path.stat().st_size)
    os.truncate(log, log.stat().st_size - 10)

    rocks = Rocks.open(copy, memory_bytes=MEMORY)
    assert [key for key, _ in rocks.scan("rows", b"")] == [b"%03d" % number for number in range(49)]
    rocks.close()


@pytest.mark.parametrize(
    ("words", "damaged"),
    [
        ("Corruption: block checksum mismatch: stored = 1, computed = 2 in /d/rocks/7.sst", True),
        ("Failed to open: Corruption: not an sstable", True),
        ("IO error: No such file or directory: While open a file: /mnt/corrupted-disk/Corruption/7.sst", False),
    ],
)
def test_what_a_folder_is_called_is_no_damage(words: str, damaged: bool) -> None:
    with pytest.raises(DataPlaneError) as raised, _translated():
        raise Exception(words)  # noqa: TRY002 - what rocksdict raises
    assert isinstance(raised.value, Damaged) is damaged
