"""Backup and restore: taken while it runs, whole or not there, and never over anything."""

import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.care.backup import back_up, check_backup, restore
from dataplane.errors import (
    AlreadyExists,
    Damaged,
    DataPlaneError,
    InvalidInput,
    Locked,
    NotFound,
    StorageFull,
    Unavailable,
    UnsupportedFormat,
)
from dataplane.truth.rocks import Rocks
from tests.dataplane.killing import killed_by_itself
from tests.smalldisk import small_disk

MEMORY = 16 << 20
SHARD = "warm/history/0001.parquet"


def put(rocks: Rocks, family: str, *wanted: bytes, value: bytes = b"v") -> None:
    batch = rocks.batch()
    for key in wanted:
        batch.put(family, key, value)
    rocks.write(batch)


def content(folder: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """Everything in the database under a data directory."""
    rocks = Rocks.open(folder / "rocks", memory_bytes=MEMORY)
    found = {family: list(rocks.scan(family, b"")) for family in ("rows", "state", "events")}
    rocks.close()
    return found


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a shard."""
    data = tmp_path / "data"
    shard = data / SHARD
    shard.parent.mkdir(parents=True)
    shard.write_bytes(os.urandom(3_000_000))
    return data


@pytest.fixture
def rocks(data: Path) -> Iterator[Rocks]:
    rocks = Rocks.open(data / "rocks", memory_bytes=MEMORY)
    put(rocks, "rows", *(b"%04d" % number for number in range(1000)), value=os.urandom(300))
    rocks.flush()
    put(rocks, "state", b"in the log only")
    put(rocks, "events", b"e1", b"e2")
    yield rocks
    rocks.close()


@pytest.fixture
def made(rocks: Rocks, data: Path, tmp_path: Path) -> Path:
    """A backup."""
    back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD})
    return tmp_path / "backup"


def test_a_backup_restores_to_the_same_data(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    report = back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD})
    assert check_backup(tmp_path / "backup") == []
    before = tree(tmp_path / "backup")
    assert report.files == len(before) - 1  # without the manifest
    assert report.size == sum(len(one) for name, one in before.items() if name != "MANIFEST")

    restored = restore(tmp_path / "backup", tmp_path / "new" / "data")

    assert (restored.files, restored.size, restored.created_ms) == (report.files, report.size, report.created_ms)
    assert restored.folder == tmp_path / "new" / "data"
    assert (restored.folder / SHARD).read_bytes() == (data / SHARD).read_bytes()
    found = content(restored.folder)
    assert [key for key, _ in found["rows"]] == [b"%04d" % number for number in range(1000)]
    assert found["state"] == [(b"in the log only", b"v")]
    assert [key for key, _ in found["events"]] == [b"e1", b"e2"]
    assert tree(tmp_path / "backup") == before  # opening what was restored touched nothing of it
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    assert restored.folder.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_backup_stays_as_it_is_while_its_source_changes(rocks: Rocks, data: Path, made: Path, tmp_path: Path) -> None:
    tables = list((made / "rocks").glob("*.sst"))
    assert tables
    assert all(path.stat().st_nlink > 1 for path in [*tables, made / SHARD])  # links, not copies
    for _ in range(3):
        put(rocks, "rows", *(b"%04d" % number for number in range(1000)), value=os.urandom(400))
        batch = rocks.batch()
        batch.delete_prefix("rows", b"00")
        batch.delete("state", b"in the log only")
        rocks.write(batch)
        rocks.flush()
    rocks._families["rows"].compact_range(None, None)
    (data / SHARD).unlink()
    (data / SHARD).write_bytes(b"another")

    assert check_backup(made) == []
    restore(made, tmp_path / "restored")
    assert content(tmp_path / "restored")["state"] == [(b"in the log only", b"v")]
    rocks.close()
    shutil.rmtree(data)
    assert check_backup(made) == []


def test_changes_of_what_was_restored_do_not_reach_the_backup(made: Path, tmp_path: Path) -> None:
    restore(made, tmp_path / "restored")
    for path in (tmp_path / "restored").rglob("*"):
        if path.is_file():
            assert path.stat().st_nlink == 1
            path.write_bytes(b"changed in place")

    assert check_backup(made) == []


def test_a_backup_while_writes_go_on_is_one_moment(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    begun = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            batch = rocks.batch()
            batch.put("state", b"%08d" % number, b"x" * 2000)
            batch.put("events", b"%08d" % number, b"x" * 2000)
            rocks.write(batch)
            number += 1
            if number == 100:
                begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(30)
        for name in ("one", "two"):
            back_up(rocks, data, tmp_path / name, files={})
    finally:
        stop.set()
        thread.join()

    lengths = []
    for name in ("one", "two"):
        assert check_backup(tmp_path / name) == []
        restore(tmp_path / name, tmp_path / "restored" / name)
        found = content(tmp_path / "restored" / name)
        numbers = [key for key, _ in found["state"] if key != b"in the log only"]
        assert numbers == [key for key, _ in found["events"] if not key.startswith(b"e")]
        assert numbers == [b"%08d" % number for number in range(len(numbers))]
        lengths.append(len(numbers))
    assert 100 <= lengths[0] < lengths[1]


def test_progress_rises_to_all_bytes(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    report = back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD}, progress=progress)
    for total, call in (
        (report.size, lambda: None),
        (report.size, lambda: check_backup(tmp_path / "backup", progress)),
        (2 * report.size, lambda: restore(tmp_path / "backup", tmp_path / "restored", progress=progress)),
    ):
        call()
        assert len(told) > 3
        assert told == sorted(told)
        assert {all_ for _, all_ in told} == {total}
        assert told[-1] == (total, total)
        told.clear()


def test_an_empty_folder_is_a_target_and_anything_else_is_not(
    made: Path, rocks: Rocks, data: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")

    for target in (taken, file, link, made):
        with pytest.raises(AlreadyExists, match="nothing is overwritten"):
            back_up(rocks, data, target, files={})
        with pytest.raises(AlreadyExists, match="nothing is overwritten"):
            restore(made, target)
    assert tree(taken) == {"mine": b"mine"}
    assert file.read_text() == "mine"
    for name in ("empty1", "empty2"):
        (tmp_path / name).mkdir()
    back_up(rocks, data, tmp_path / "empty1", files={})
    restore(made, tmp_path / "empty2")
    assert check_backup(tmp_path / "empty1") == []
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_file_that_is_gone_makes_no_backup(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"0002\.parquet went away before it was backed up"):
        back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD, "warm/2": data / "0002.parquet"})

    assert not (tmp_path / "backup").exists()
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/x", "a/../../x", "a//b", "./a", "a/", "a\0b", "MANIFEST", "rocks/x"]
)
def test_names_that_lead_elsewhere_are_refused(rocks: Rocks, data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        back_up(rocks, data, tmp_path / "backup", files={name: data / SHARD})

    assert not (tmp_path / "backup").exists()


def test_a_flipped_byte_anywhere_is_found_named_and_not_restored(made: Path, tmp_path: Path) -> None:
    chance = random.Random()
    for name in tree(made):
        path = made / name
        whole = path.read_bytes()
        if not whole:
            continue
        for place in {0, len(whole) - 1, chance.randrange(len(whole))}:
            broken = bytearray(whole)
            broken[place] ^= 1 << chance.randrange(8)
            path.unlink()  # the source's own file stays as it is
            path.write_bytes(broken)

            problems = check_backup(made)
            assert len(problems) == 1, (name, place)
            assert problems[0].startswith(name), (name, place)
            with pytest.raises(Damaged, match=name):
                restore(made, tmp_path / "restored")
        path.write_bytes(whole)
    assert check_backup(made) == []
    assert not (tmp_path / "restored").exists()


def test_what_is_missing_cut_added_or_no_file_is_found_and_named(made: Path) -> None:
    current, shard = made / "rocks" / "CURRENT", made / SHARD
    whole = shard.read_bytes()
    current.unlink()
    shard.unlink()
    shard.write_bytes(whole[:-1])
    (made / "rocks" / "more").write_bytes(b"")

    assert check_backup(made) == [
        "rocks/CURRENT is missing.",
        f"{SHARD} has {len(whole) - 1} bytes, and had {len(whole)}.",
        "rocks/more does not belong to the backup.",
    ]
    current.symlink_to(shard)
    shard.unlink()
    shard.mkdir()
    assert check_backup(made)[:2] == ["rocks/CURRENT is no regular file.", f"{SHARD} is no regular file."]


def test_a_folder_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(NotFound, match="is no backup"):
            check_backup(folder)
        with pytest.raises(NotFound, match="is no backup"):
            restore(folder, tmp_path / "restored")


def _sealed(made: Path, content: str) -> None:
    digest = hashlib.sha256(content.encode()).hexdigest()
    (made / "MANIFEST").write_text(f'{{"sha256": "{digest}", "content": {content}}}')


@pytest.mark.parametrize(
    "stored",
    [b"", b"\xff\xfe", b"[]", b"{}", b'{"sha256": 1, "content": {}}', b'{"sha256": "", "content": {}}', b"[" * 100_000],
)
def test_a_manifest_that_is_none_is_named(made: Path, tmp_path: Path, stored: bytes) -> None:
    (made / "MANIFEST").write_bytes(stored)

    problems = check_backup(made)

    assert len(problems) == 1
    assert problems[0].startswith("MANIFEST ")
    with pytest.raises(Damaged, match="MANIFEST"):
        restore(made, tmp_path / "restored")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "", "."])
def test_a_manifest_that_names_files_elsewhere_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"")
    digest = hashlib.sha256(b"").hexdigest()
    _sealed(made, json.dumps({"format": 1, "created_ms": 1, "files": [{"name": name, "size": 0, "sha256": digest}]}))

    (problem,) = check_backup(made)
    assert problem.startswith("MANIFEST cannot be read")
    with pytest.raises(Damaged):
        restore(made, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_backup_of_a_newer_release_asks_for_it(made: Path, tmp_path: Path) -> None:
    _sealed(made, '{"format": 2, "created_ms": 1, "files": [], "more": 1}')

    for call in (lambda: check_backup(made), lambda: restore(made, tmp_path / "restored")):
        with pytest.raises(UnsupportedFormat, match="format 2, and this release reads 1"):
            call()


def test_two_backups_to_one_place_do_not_disturb_each_other(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    refused: list[DataPlaneError] = []

    def second(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(Locked, match="in use by another backup") as caught:
                back_up(rocks, data, tmp_path / "backup", files={})
            refused.append(caught.value)

    back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD}, progress=second)

    assert refused
    assert check_backup(tmp_path / "backup") == []


def test_an_error_in_the_middle_leaves_nothing(rocks: Rocks, data: Path, made: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(rocks, data, tmp_path / "other", files={}, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        restore(made, tmp_path / "restored", progress=stop)

    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "restored").exists()
    assert not list(tmp_path.rglob(".tmp-*"))


_DIES = """
import os, signal, sys
from pathlib import Path
from dataplane.care.backup import back_up, restore
from dataplane.truth.rocks import Rocks
data, what, target, steps = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
def progress(done, total):
    global steps
    steps -= 1
    if steps < 0:
        os.kill(os.getpid(), signal.SIGKILL)
if what == "restore":
    restore(data.parent / "backup", target, progress=progress)
else:
    rocks = Rocks.open(data / "rocks", memory_bytes=1)
    back_up(rocks, data, target, files={"warm/1": data / "warm/history/0001.parquet"}, progress=progress)
"""


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_kill_in_the_middle_leaves_no_final_name_and_the_next_clears_up(
    made: Path, rocks: Rocks, data: Path, tmp_path: Path, what: str
) -> None:
    rocks.close()
    target = tmp_path / "target"
    told: list[int] = []
    check_backup(made, lambda done, _: told.append(done))
    checks = len(told) if what == "restore" else 0  # which come before the first step of copying
    for steps in (checks, checks + 3, checks + len(told) - 1):
        killed_by_itself(_DIES, data, what, target, steps)
        assert not target.exists()
        assert (tmp_path / ".tmp-target").is_dir()

    if what == "restore":
        restore(made, target)
        assert len(content(target)["rows"]) == 1000
    else:
        again = Rocks.open(data / "rocks", memory_bytes=MEMORY)
        back_up(again, data, target, files={SHARD: data / SHARD})
        again.close()
        assert check_backup(target) == []
    assert not (tmp_path / ".tmp-target").exists()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """Another file system, of 2 MiB."""
    with small_disk(tmp_path / "small", 2) as made:
        yield made


def test_a_full_disk_says_so_and_leaves_nothing_and_the_data_plane_goes_on(
    rocks: Rocks, data: Path, made: Path, other_disk: Path
) -> None:
    with pytest.raises(StorageFull, match="no room"):
        back_up(rocks, data, other_disk / "backup", files={SHARD: data / SHARD})
    with pytest.raises(StorageFull, match="Free some space"):
        restore(made, other_disk / "restored")

    assert list(other_disk.iterdir()) == []
    put(rocks, "state", b"after")
    assert rocks.get("state", b"after") == b"v"


def test_a_backup_to_another_file_system_is_a_copy(rocks: Rocks, data: Path, other_disk: Path, tmp_path: Path) -> None:
    back_up(rocks, data, other_disk / "deep" / "backup", files={})

    assert all(path.stat().st_nlink == 1 for path in (other_disk / "deep" / "backup" / "rocks").iterdir())
    restore(other_disk / "deep" / "backup", tmp_path / "restored")
    assert len(content(tmp_path / "restored")["rows"]) == 1000


def test_a_mount_point_is_refused_before_anything_is_copied(made: Path, other_disk: Path) -> None:
    with pytest.raises(InvalidInput, match="is a mount point"):
        restore(made, other_disk)


def test_a_place_that_cannot_be_written_says_so(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        restore(made, tmp_path / "file" / "data")


def test_a_database_that_is_closed_makes_no_backup(rocks: Rocks, data: Path, tmp_path: Path) -> None:
    rocks.close()

    with pytest.raises(Unavailable, match="closed"):
        back_up(rocks, data, tmp_path / "backup", files={})
    assert not (tmp_path / "backup").exists()


def test_later_files_are_put_in_after_the_checkpoint(tmp_path: Path, rocks: Rocks, data: Path) -> None:
    seen: list[bool] = []

    def later(folder: Path) -> None:
        seen.append((folder / "rocks" / "CURRENT").exists())
        (folder / "history").mkdir()
        (folder / "history" / "late").write_bytes(b"late")

    back_up(rocks, data, tmp_path / "backup", files={SHARD: data / SHARD}, later=later)
    assert seen == [True]
    assert check_backup(tmp_path / "backup") == []
    assert (tmp_path / "backup" / "history" / "late").read_bytes() == b"late"
