"""files: what is under a final name is whole, and a failed write leaves nothing."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from dataplane.errors import Damaged, StorageFull, Unavailable
from dataplane.files import remove_files, remove_leftovers, sha256_file, write_atomically, write_bytes
from tests.dataplane.killing import killed

ENDLESS_WRITER = """
import sys
from pathlib import Path
from dataplane.files import write_bytes
number = 0
while True:
    write_bytes(Path(sys.argv[1]), bytes([number % 256]) * 300_000)
    print(number, flush=True)
    number += 1
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    result = write_atomically(tmp_path / "a", lambda path: path.write_bytes(b"content"))
    assert result == 7
    assert (tmp_path / "a").read_bytes() == b"content"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["a"]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old and longer")
    write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_atomically(tmp_path / "a", fail)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    def fill(_: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")

    with pytest.raises(StorageFull, match="no room for .*/a. Free some space"):
        write_atomically(tmp_path / "a", fill)
    assert names(tmp_path) == []


def test_an_exceeded_quota_is_a_full_disk_too(tmp_path: Path) -> None:
    def exceed(_: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with pytest.raises(StorageFull):
        write_atomically(tmp_path / "a", exceed)


def test_what_else_the_system_refuses_is_unavailable_and_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"missing/a cannot be written: No such file"):
        write_bytes(tmp_path / "missing" / "a", b"x")


def test_a_very_long_name_is_written_too(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("n" * 255), b"x")
    assert names(tmp_path) == ["n" * 255]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".tmp-1-a", ".tmp-2-b", "a", "tmp-c", ".hidden"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".tmp-folder").mkdir()
    assert remove_leftovers(tmp_path) == 2
    assert names(tmp_path) == [".hidden", ".tmp-folder", "a", "tmp-c"]
    assert remove_leftovers(tmp_path) == 0


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"x")
    remove_files(tmp_path, ["a", "b"])
    assert names(tmp_path) == []


def test_a_file_s_sha256_is_that_of_its_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    write_bytes(tmp_path / "a", content)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_file_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="a cannot be read"):
        sha256_file(tmp_path / "a")


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.011, 0.027])
def test_a_killed_writer_leaves_a_whole_file_and_removable_leftovers(tmp_path: Path, delay_s: float) -> None:
    target = tmp_path / "a"
    killed(ENDLESS_WRITER, target, wait_s=delay_s)
    content = target.read_bytes()
    assert content == content[:1] * 300_000
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["a"]
