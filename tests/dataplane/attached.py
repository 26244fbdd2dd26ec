"""Boxes with files: a data plane's folder with a database, a history and uploads, and what the archive has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dataplane.cold import attachments, filelist, manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_restore import RestoreReport, restore
from dataplane.cold.attachments import Attachment, tenant_folder
from dataplane.cold.bucket import Bucket
from dataplane.state.history import History
from dataplane.state.logshards import LogEvent
from dataplane.truth.rocks import Rocks
from tests.dataplane.boxes import Tenant, open_box


class Box:
    """A data plane's folder with a database, a history and uploaded files."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        folder.mkdir()
        self.folder = folder
        self.bucket = bucket
        self.rocks: Rocks = open_box(folder / "rocks")
        self.history = History.open(folder / "history")
        self.archiver = Archiver(self.rocks, bucket, folder=folder)
        Tenant(self.rocks, "alice").put_state("session", b"said")

    def close(self) -> None:
        self.history.close()
        self.rocks.close()

    def file(self, tenant: str, name: str, data: bytes) -> Path:
        """Upload a file."""
        path = self.path(tenant, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def path(self, tenant: str, name: str) -> Path:
        return self.folder / "library" / "files" / tenant_folder(tenant) / name

    def events(self, first: int, count: int = 5) -> None:
        """A shard of the history."""
        self.history.append_shard(
            LogEvent("alice", "run", seq, "note", 1000 + seq, b"%d" % seq) for seq in range(first, first + count)
        )


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files below the folders that are archived, with content and time, whatever their names."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for top in ("library", "history")
        for path in (folder / top).rglob("*")
        if path.is_file()
    }


async def newest(bucket: Bucket) -> manifest.Manifest:
    return (await manifest.shelf(bucket)).whole[0].manifest


async def listed(bucket: Bucket) -> list[Attachment]:
    """All files that the newest manifest names."""
    return [file async for file in filelist.each(bucket, filelist.segments(await newest(bucket)))]


async def attachment(bucket: Bucket, end: str) -> Attachment:
    """The one whose name ends so."""
    return next(one for one in await listed(bucket) if one.name.endswith(end))


async def objects(bucket: Bucket) -> set[str]:
    return {name async for name, _ in bucket.list(attachments.FOLDER)}


async def brought_back(
    bucket: Bucket, folder: Path, progress: Callable[[RestoreReport], None] | None = None
) -> RestoreReport:
    """Restore into a folder, and close it again."""
    rocks = open_box(made(folder) / "rocks")
    try:
        return await restore(bucket, rocks, progress, folder)
    finally:
        rocks.close()


def made(folder: Path) -> Path:
    """The folder, which may be there."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
