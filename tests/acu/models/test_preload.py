"""acu.models.preload: what is read, how, and what is told of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest

from acu import models
from acu.errors import ModelIncomplete
from acu.models.preload import behind_others


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 9 MB in all, on the disk and not in memory."""
    for name, size in (("a.safetensors", 8_000_000), ("b.safetensors", 1_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.write(os.urandom(size))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return tmp_path


def test_a_second_preload_tells_that_all_was_in_memory(folder: Path) -> None:
    first, second = models.preload(folder), models.preload(folder)
    assert first.bytes == second.bytes == 9_000_000
    assert second.cached == 9_000_000
    assert first.cached in {0, 9_000_000}  # the latter where a file system keeps every file in memory


def test_it_reads_behind_others_and_its_thread_has_its_priority_back_afterwards(folder: Path) -> None:
    seen: list[tuple[int, int]] = []

    def priority(*_: object) -> None:
        now = psutil.Process(threading.get_native_id()).ionice()
        seen.append((int(now.ioclass), now.value))

    priority()
    models.preload(folder, priority)
    priority()
    assert set(seen[1:-1]) == {(int(psutil.IOPRIO_CLASS_BE), 7)}
    assert seen[-1] == seen[0] != seen[1]


def test_what_fails_within_gives_the_priority_back() -> None:
    before = psutil.Process(threading.get_native_id()).ionice()
    with pytest.raises(ZeroDivisionError), behind_others():
        raise ZeroDivisionError
    assert psutil.Process(threading.get_native_id()).ionice() == before


def test_of_a_file_that_grows_it_reads_what_was_counted(folder: Path) -> None:
    told: list[tuple[int, int]] = []

    def grow(_stage: str, done: int, total: int) -> None:
        told.append((done, total))
        with (folder / "b.safetensors").open("ab") as file:
            file.write(b"more" * 1_000_000)

    assert models.preload(folder, grow).bytes == 9_000_000
    assert told[-1] == (9_000_000, 9_000_000)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_no_file_or_is_not_there_is_named_and_waited_for_by_nobody(folder: Path) -> None:
    before = descriptors()
    os.mkfifo(folder / "c.safetensors")
    with pytest.raises(ModelIncomplete, match=r"c\.safetensors is no regular file"):
        models.preload(folder)
    (folder / "c.safetensors").unlink()
    (folder / "c.safetensors").symlink_to(folder / "gone")
    with pytest.raises(ModelIncomplete, match=r"c\.safetensors cannot be read: No such file"):
        models.preload(folder)
    assert descriptors() == before


def test_a_file_that_is_cut_short_meanwhile_is_told_of(folder: Path) -> None:
    with pytest.raises(
        ModelIncomplete, match=r"b\.safetensors was cut short while it was read: it has 500 of 1000000 bytes"
    ):
        models.preload(folder, lambda *_: os.truncate(folder / "b.safetensors", 500))


def test_files_that_are_removed_or_replaced_meanwhile_are_read_as_they_were(folder: Path) -> None:
    def pull_anew(*_: object) -> None:
        (folder / "new").write_bytes(b"new")
        (folder / "new").replace(folder / "b.safetensors")
        (folder / "a.safetensors").unlink(missing_ok=True)

    assert models.preload(folder, pull_anew).bytes == 9_000_000


def test_an_interrupt_gives_back_the_priority_and_the_files(folder: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    thread = psutil.Process(threading.get_native_id())
    before = thread.ionice(), descriptors()
    with pytest.raises(KeyboardInterrupt):
        models.preload(folder, interrupted)
    assert (thread.ionice(), descriptors()) == before
