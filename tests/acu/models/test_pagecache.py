"""acu.models.pagecache: what is in memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
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


@pytest.mark.parametrize("pages", [1, 7, 64])
def test_pages_are_counted_one_by_one(file: Path, pages: int) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(pages):
            os.pread(opened.fileno(), 10, page * mmap.PAGESIZE)
    assert cached(file) == pages * mmap.PAGESIZE


def test_where_no_memory_can_be_mapped_nothing_is_told_and_the_file_is_read_all_the_same(tmp_path: Path) -> None:
    program = """
import mmap, resource, sys
from pathlib import Path
from acu.models import preload
room = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
done = preload(Path(sys.argv[1]), available=8 << 30)
print(done.bytes, done.cached)
"""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(256 << 20)  # a hole, which takes no disk
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(256 << 20), "None"], done.stderr


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached(tmp_path / "empty") == 0
