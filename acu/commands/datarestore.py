"""`acu data restore`: an empty folder becomes a data plane again, from a backup or from the archive alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acu.commands.dataplace import Told, archive_of, data_errors, ran
from acu.errors import DataError

if TYPE_CHECKING:
    from dataplane.cold.archive_restore import RestoreReport
    from dataplane.cold.bucket import Bucket
    from dataplane.config import DataPlaneConfig
    from dataplane.truth.rocks import Rocks

ROCKS_BYTES = 64 << 20  # memory of the database while it is filled


def from_backup(folder: Path, config: DataPlaneConfig, told: Told) -> dict[str, Any]:
    """Check the backup, and copy it to the configured folder. Raises DataError; then nothing was restored."""
    from dataplane.care import backup
    from dataplane.errors import AlreadyExists

    target = Path(config.path)
    with data_errors():
        try:
            done = backup.restore(
                folder, target, progress=lambda done, total: told("checking and copying", done, total)
            )
        except AlreadyExists as error:
            raise DataError(
                f"{target} is there already, and nothing is overwritten. Stop the daemon that uses it, move the folder away, and "
                "restore again."
            ) from error
    return {
        "source": str(folder),
        "folder": str(target),
        "files": done.files,
        "bytes": done.size,
        "created_ms": done.created_ms,
    }


def backup_problems(folder: Path, told: Told) -> list[str]:
    """What is wrong with a backup, a sentence each. Raises DataError where there is none."""
    from dataplane.care import backup

    with data_errors():
        return backup.check_backup(folder, progress=lambda done, total: told("checking", done, total))


def from_bucket(config: DataPlaneConfig, told: Told) -> dict[str, Any]:
    """Fill the configured folder from the archive. Raises DataError; it is run again then, and begins anew."""
    with data_errors():
        _check_there(config)
        return ran(_from_bucket(config, told))


def _check_there(config: DataPlaneConfig) -> None:
    """Raises what the folder of the archive and that of the data say already, before anything is made."""
    from dataplane.cold.tier import cold_folder, default_cold_folder
    from dataplane.truth.rocks import check_not_lost

    if config.cold.bucket is None and archive_of(config) is None:
        folder = cold_folder(config.cold, default_cold_folder(Path(config.path)))
        raise DataError(f"the folder {folder} has no archive: check data_plane.cold, its folder and prefix.")
    check_not_lost(Path(config.path) / "rocks")


async def _from_bucket(config: DataPlaneConfig, told: Told) -> dict[str, Any]:
    from dataplane.cold.archive_restore import restore
    from dataplane.cold.bucket import Bucket
    from dataplane.cold.tier import default_cold_folder

    folder = Path(config.path)
    bucket = Bucket(config.cold, default_cold_folder(folder))
    size = await _size_of(bucket)
    rocks = await asyncio.to_thread(_opened, folder)

    def filled(report: RestoreReport) -> None:
        told(f"manifest {report.manifest}: {report.rows} rows, {report.files} files", report.bytes, size)

    try:
        done = await restore(bucket, rocks, filled, folder)
    finally:
        await asyncio.to_thread(rocks.close)
    return {
        "source": bucket.where,
        "folder": str(folder),
        "manifest": done.manifest,
        "created_ms": done.created_ms,
        "rows": done.rows,
        "entries": done.entries,
        "files": done.files,
        "bytes": done.bytes,
        "passed_over": [problem.what for problem in done.passed_over],
    }


def _opened(folder: Path) -> Rocks:
    from dataplane.files import storage_errors
    from dataplane.truth.rocks import Rocks

    with storage_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Rocks.open(folder / "rocks", memory_bytes=ROCKS_BYTES)


async def _size_of(bucket: Bucket) -> int:
    """Bytes of all that the newest whole manifest names; before the folder is touched. Raises NotFound."""
    from dataplane.cold import manifest as manifests
    from dataplane.errors import NotFound

    shelf = await manifests.shelf(bucket)
    if not shelf.whole:
        what = f"no whole manifest ({shelf.broken[0].what})" if shelf.broken else "no archive"
        raise NotFound(f"{bucket.where} has {what}: check data_plane.cold, its bucket and prefix.")
    manifest = shelf.whole[0].manifest
    return sum(segment.size for segment in manifest.segments()) + manifest.files.bytes
