"""acu.models.preload: what is read, how, and what is told of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest

from acu import models
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
