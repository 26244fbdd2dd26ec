"""acu.models.pagecache: what is in memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from acu.models.pagecache import cached_bytes


def cached(path: Path) -> int | None:
    with path.open("rb") as opened:
        return cached_bytes(opened.fileno())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 64 pages and 100 bytes, on the disk and not in memory."""
    path = tmp_path / "weights"
    with path.open("wb") as written:
        written.write(b"w" * (64 * mmap.PAGESIZE + 100))
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path) == path.stat().st_size:
        pytest.skip("this file system keeps every file in memory")
    return path


def test_a_file_that_was_let_go_of_is_not_in_memory_and_one_that_was_read_is(file: Path) -> None:
    assert cached(file) == 0
    assert cached(file) == 0  # asking brings nothing in
    file.read_bytes()
    assert cached(file) == 64 * mmap.PAGESIZE + 100


def test_a_part_is_told_in_whole_pages(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        os.pread(opened.fileno(), 10, 0)
    assert cached(file) == mmap.PAGESIZE


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached(tmp_path / "empty") == 0
