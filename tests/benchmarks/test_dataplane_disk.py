"""Which file system a folder lies on, and what memory holds of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import disk
from benchmarks.report import NotMeasured

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/vdb /run/data xfs rw 0 0
tmpfs /with\\040space tmpfs rw 0 0
/dev/vdc /again ext4 rw 0 0
tmpfs /again tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x", "ext4"),
        ("/run/x", "tmpfs"),
        ("/run/data/x", "xfs"),
        ("/running", "ext4"),
        ("/with space/x", "tmpfs"),
        ("/again", "tmpfs"),
    ],
)
def test_the_longest_mount_point_decides(path: str, kind: str) -> None:
    assert disk.filesystem(Path(path), MOUNTS) == kind


def test_a_folder_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert disk.refuse_memory(Path(__file__)) == disk.filesystem(Path(__file__))
    monkeypatch.setattr(disk, "IN_MEMORY", {disk.filesystem(tmp_path)})
    with pytest.raises(NotMeasured, match="--dir"):
        disk.refuse_memory(tmp_path)


def test_pages_that_were_dropped_are_not_resident_and_come_back_by_reading(tmp_path: Path) -> None:
    if disk.filesystem(tmp_path) in disk.IN_MEMORY:
        pytest.skip("the temporary folder lies in memory")
    path = tmp_path / "deep" / "file"
    path.parent.mkdir()
    path.write_bytes(b"x" * 5_000_000)
    cache = disk.PageCache(tmp_path)
    assert disk.resident_share(path) == cache.resident_share() == 1.0
    cache.drop()
    assert disk.resident_share(path) == cache.resident_share() < 0.1
    assert path.read_bytes() == b"x" * 5_000_000
    assert disk.resident_share(path) == 1.0


def test_of_a_folder_without_bytes_nothing_is_resident(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert disk.PageCache(tmp_path).resident_share() == 0.0
    assert disk.resident_share(tmp_path / "empty") == 1.0


def test_a_file_that_is_gone_by_now_is_no_error(tmp_path: Path) -> None:
    disk.drop_pages([tmp_path / "gone"])


def test_syncs_are_counted_and_leave_nothing(tmp_path: Path) -> None:
    took = disk.fdatasync_s(tmp_path, 3)
    assert len(took) == 3
    assert min(took) > 0
    assert list(tmp_path.iterdir()) == []
