"""Uploaded files that are damaged are found, named and brought back, and the archive keeps the good ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from dataplane.care.backup import check_backup
from dataplane.care.inspection import back_up, verify
from dataplane.cold.attachments import tenant_folder
from dataplane.cold.bucket import Bucket
from dataplane.cold.tier import default_cold_folder
from dataplane.cold.uploads import Upload, waiting, wrong
from dataplane.cold_config import ColdConfig
from dataplane.errors import ChecksumMismatch, Damaged
from dataplane.store import DataPlane, opened
from tests.dataplane.attached import attachment, listed
from tests.dataplane.planes import config

GOOD = b"The good content."


class Uploaded:
    """A data plane with uploaded files, whose records the test has."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.records: list[Upload] = []
        plane.cold.uploads = self.listing
        self.bucket = Bucket(ColdConfig(), default_cold_folder(plane.folder))

    async def listing(self) -> list[Upload]:
        return list(self.records)

    def add(self, name: str, content: bytes = GOOD, *, older: bool = False) -> Path:
        folder = f"library/files/{tenant_folder('alice')}"
        path = self.plane.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = None if older else hashlib.sha256(content).hexdigest()
        self.records.append(Upload(f"{folder}/{name}", len(content), sha256))
        return path

    async def wrong(self, *, deep: bool = False, mend: bool = False) -> list[str]:
        return [one.what for one in (await verify(self.plane, deep=deep, mend=mend)).problems]


@pytest_asyncio.fixture
async def box(tmp_path: Path) -> AsyncIterator[Uploaded]:
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as plane:
        yield Uploaded(plane)


def flip(path: Path) -> None:
    path.write_bytes(b"the" + GOOD[3:])


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def folder_gone(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(b"shrt"), "has 4 bytes, and was uploaded with 17"),
    "link": (link, "has become a symbolic link"),
    "directory": (directory, "is no regular file"),
    "missing": (Path.unlink, "is missing"),
    "folder gone": (folder_gone, "is missing"),
    "flipped": (flip, "has another SHA-256"),
}


@pytest.mark.parametrize(("harm", "says"), HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("restart", [False, True])
async def test_a_damaged_file_is_named_kept_in_the_archive_and_brought_back(
    box: Uploaded, harm: Callable[[Path], object], says: str, *, restart: bool
) -> None:
    path = box.add("file-1")
    await box.plane.cold.archive_now()
    harm(path)
    (what,) = await box.wrong(deep=True)
    assert f"file-1 {says}" in what
    report = await box.plane.cold.archive_now(restart=restart)
    assert len(report.damaged) == 1
    assert "file-1" in report.damaged[0]
    assert "file-1" in str(box.plane.cold.status().last_error)
    assert box.plane.status().cold.damaged_files == 1
    assert (await attachment(box.bucket, "file-1")).sha256 == hashlib.sha256(GOOD).hexdigest()
    mended = await verify(box.plane, deep=True, mend=True)
    assert (mended.problems, [one.where for one in mended.repaired]) == ((), ["files"])
    assert (path.read_bytes(), path.is_symlink()) == (GOOD, False)
    assert (await box.plane.cold.archive_now()).damaged == []
    assert box.plane.status().cold.damaged_files == 0
    assert await box.wrong(deep=True) == []


async def test_what_went_after_it_was_listed_is_not_wrong(box: Uploaded) -> None:
    box.add("file-1").unlink()
    box.add("file-2").unlink()
    before = await box.listing()
    del box.records[0]
    found = await wrong(box.plane.rocks, box.plane.folder, box.listing, listed=before)
    assert list(found) == box.records


async def test_without_a_deep_look_sizes_are_compared_only(box: Uploaded) -> None:
    flip(box.add("file-1"))
    box.add("file-2").write_bytes(b"")
    (what,) = await box.wrong()
    assert "file-2 has 0 bytes" in what
    assert len(await box.wrong(deep=True)) == 2


async def test_of_an_older_record_what_the_archive_knows_tells(box: Uploaded) -> None:
    path = box.add("file-1", older=True)
    box.add("file-2", older=True).write_bytes(GOOD.upper())
    await box.plane.cold.archive_now()
    before = path.stat().st_mtime_ns
    flip(path)
    os.utime(path, ns=(before, before))
    (what,) = await box.wrong(deep=True)
    assert "file-1 has another SHA-256" in what
    assert await box.wrong(deep=True, mend=True) == []
    assert path.read_bytes() == GOOD


async def test_what_nobody_has_stays_named_and_out_of_the_archive_and_no_backup_is_made(
    box: Uploaded, tmp_path: Path
) -> None:
    box.add("file-1")
    box.add("file-2").unlink()
    flip(box.add("file-3"))
    report = await box.plane.cold.archive_now()
    assert len(report.damaged) == 2
    assert [one.name[-6:] for one in await listed(box.bucket)] == ["file-1"]
    left = await box.wrong(deep=True, mend=True)
    assert sorted(what.split()[3][-6:] for what in left) == ["file-2", "file-3"]
    with pytest.raises(Damaged, match="1 uploaded files are damaged.*file-2 is missing"):
        await back_up(box.plane, tmp_path / "backup")
    del box.records[1]  # its owner deleted it
    with pytest.raises(ChecksumMismatch, match=r"another SHA-256 than when they were uploaded: \S*file-3\. Bring"):
        await back_up(box.plane, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    del box.records[1]
    await back_up(box.plane, tmp_path / "backup")
    assert check_backup(tmp_path / "backup") == []
    assert len(list((tmp_path / "backup" / "library" / "files").rglob("file-*"))) == 2


async def test_of_an_older_record_a_backup_believes_what_the_archive_knows(box: Uploaded, tmp_path: Path) -> None:
    path = box.add("file-1", older=True)
    box.add("file-2", older=True)
    await box.plane.cold.archive_now()
    box.add("file-3", older=True).write_bytes(GOOD.upper())  # of which nobody knows more than its size
    flip(path)
    with pytest.raises(ChecksumMismatch, match=r"uploaded: \S*file-1\. Bring"):
        await back_up(box.plane, tmp_path / "backup")
    assert await box.wrong(deep=True, mend=True) == []
    await back_up(box.plane, tmp_path / "backup")
    assert check_backup(tmp_path / "backup") == []


async def test_a_file_that_was_deleted_is_neither_wrong_nor_kept(box: Uploaded) -> None:
    box.add("file-1")
    path = box.add("file-2")
    await box.plane.cold.archive_now()
    box.records.pop()
    path.unlink()
    assert await box.wrong(deep=True) == []
    assert (await box.plane.cold.archive_now()).damaged == []
    assert [one.name[-6:] for one in await listed(box.bucket)] == ["file-1"]


async def test_a_file_that_goes_while_files_are_looked_at_is_not_called_missing(box: Uploaded) -> None:
    box.add("file-1").unlink()
    calls: list[int] = []

    async def listing() -> list[Upload]:
        calls.append(1)
        return box.records if len(calls) == 1 else []

    box.plane.cold.uploads = listing
    assert await box.wrong() == []
    assert len(calls) == 2


async def test_files_wait_until_an_archive_run_has_them_as_they_are_listed(box: Uploaded) -> None:
    rocks = box.plane.rocks
    box.add("a")
    assert waiting(rocks, box.records) == box.records
    await box.plane.cold.archive_now()
    assert waiting(rocks, box.records) == []
    box.add("b", older=True)
    assert waiting(rocks, box.records) == box.records[1:]
    await box.plane.cold.archive_now()
    assert waiting(rocks, box.records) == []
    assert waiting(rocks, [msgspec.structs.replace(box.records[0], size=1)]) != []
