"""Uploaded files: their bytes on disk, and their records.

    <folder>/uploads/<random>                  what is being uploaded
    <folder>/files/<hash of tenant>/<file id>  what was; 0600, in folders that are 0700

Ordering. An upload is fsynced and moved to its place, and the tenant's folder and the one above it are fsynced; then its
record is stored, then its id is told. (That it has left `uploads` need not be durable: what is there goes at the next start.)
A file goes the other way: first its record, then its bytes. So a record has its bytes, and bytes without a record are what
a crash left: the next start removes them, and every upload that was not finished.

A record whose sync failed may be there: it is removed again, and where that fails, its bytes stay for the next start to judge.
So a record without bytes is damage: it stays, cannot be read, and is logged at each start, until the bytes are brought back
or its owner deletes it. A record has the size and the SHA-256 of its bytes, by which damage is found (`listed`). What is on
the disk and is no file of ours, such as a folder, is removed from `uploads` and left alone in `files`.

What is told of a name on disk comes from ids that the library made: no caller's text becomes part of a path. The data plane
archives the files by this layout, and erases a tenant's folder without knowing the library (dataplane/cold/attachments.py):
meanwhile an open library refuses what is new of that tenant (`Shelves.closed`), or bytes could go before their record comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from agentflow.errors import InvalidRequest
from agentflow.library.config import LibraryConfig
from agentflow.library.errors import FileTooLarge
from agentflow.library.extraction import shown
from agentflow.library.ids import Ids
from agentflow.library.paging import paged
from agentflow.library.planeerrors import translated
from agentflow.library.records import FileRecord, Records
from agentflow.library.refusals import DataDamaged, NotStored, QuotaExceeded
from agentflow.library.shelf import Shelf, Shelves
from agentflow.library.values import PURPOSES, FileObject, Page, PageRequest
from dataplane import StateStore
from dataplane.cold.attachments import FILES, tenant_folder
from dataplane.cold.uploads import HELP, Upload, difference
from dataplane.errors import Damaged
from dataplane.files import sha256_file

MIB: Final = 1 << 20
MAX_FILENAME: Final = 512
"""Characters of a file's name."""
MOST_FILES: Final = 10_000
"""On one page."""
_EXPIRES_S = (3_600, 2_592_000)

_log = logging.getLogger(__name__)


class FileStore:
    """Keeps files in `folder`. `prepare` it before it is used."""

    def __init__(self, folder: Path, shelves: Shelves, ids: Ids, config: LibraryConfig) -> None:
        self._uploads = folder / "uploads"
        self._files = folder / "files"
        self._shelves = shelves
        self._ids = ids
        self._config = config
        self._arriving: dict[str, list[int]] = {}  # bytes of files whose records are being stored
        self._leaving: dict[tuple[str, str], asyncio.Event] = {}  # files that are being deleted

    @property
    def max_bytes(self) -> int:
        """The largest file that may be uploaded."""
        return self._config.max_file_mb * MIB

    async def prepare(self) -> None:
        """Make the folders, remove what no record knows, and log records whose bytes are gone."""
        kept = {tenant_folder(shelf.tenant): set(shelf.files) for shelf in self._shelves.all()}
        with translated():
            lost = await asyncio.to_thread(_prepare, self._uploads, self._files, kept)
            for shelf in self._shelves.all():
                for file_id in sorted(lost.get(tenant_folder(shelf.tenant), ())):
                    _log.error(
                        f"the bytes of a file are gone. {HELP}",
                        extra={"tenant": shelf.tenant, "file": file_id},
                    )

    def new_upload(self, tenant: str) -> Path:
        """Where to write a new upload. Raises QuotaExceeded."""
        self._check_room(self._shelves.of(tenant), 1)
        return self._uploads / secrets.token_hex(16)

    async def keep(
        self, tenant: str, upload: Path, filename: str, purpose: str, expires_after_s: int | None
    ) -> FileObject:
        """Make a file of an upload, which is gone afterwards, also on an error. See Library.create_file."""
        try:
            with translated():
                return await self._keep(tenant, upload, filename, purpose, expires_after_s)
        finally:
            await asyncio.to_thread(upload.unlink, missing_ok=True)

    async def _keep(
        self, tenant: str, upload: Path, filename: str, purpose: str, expires_after_s: int | None
    ) -> FileObject:
        _check_purpose(purpose)
        _check_expiry(expires_after_s)
        name = _plain_name(filename)
        size = (await asyncio.to_thread(upload.stat)).st_size
        self._check_size(size)
        self._check_room(self._shelves.of(tenant), size)
        arriving = self._arriving.setdefault(tenant, [])
        arriving.append(size)
        try:
            shelf = await self._shelves.made(tenant)
            file_id, now = self._ids.new("file-")
            sha256 = await asyncio.to_thread(sha256_file, upload)
            await asyncio.to_thread(_move, upload, self.path(tenant, file_id))
            record = FileRecord(
                id=file_id,
                filename=name,
                purpose=purpose,
                bytes=size,
                created_ms=now,
                expires_ms=None if expires_after_s is None else now + 1000 * expires_after_s,
                sha256=sha256,
            )
            try:
                await shelf.put_file(record)
            except BaseException:
                if await _taken_back(shelf, file_id):
                    await asyncio.to_thread(self.path(tenant, file_id).unlink, missing_ok=True)
                raise
        finally:
            arriving.remove(size)
        return _told(record)

    def file(self, tenant: str, file_id: str) -> FileRecord:
        """Raises NotStored, also for a file that has expired."""
        record = self._shelves.of(tenant).files.get(file_id)
        if record is None or _expired(record):
            raise NotStored(f"No such file: {shown(file_id)!r}.", param="file_id")
        return record

    def told(self, tenant: str, file_id: str) -> FileObject:
        """Raises NotStored."""
        return _told(self.file(tenant, file_id))

    def page(self, tenant: str, request: PageRequest, purpose: str | None) -> Page[FileObject]:
        """See Library.files."""
        live = (file for file in self._shelves.of(tenant).files.values() if not _expired(file))
        chosen = (file for file in live if purpose is None or file.purpose == purpose)
        page = paged(chosen, lambda file: file.id, request, most=MOST_FILES)
        return Page(tuple(map(_told, page.data)), page.has_more)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Remove the record, then the bytes. Of several calls at once one does it. Raises NotStored, and DiskFull: it stays."""
        shelf, key = self._shelves.of(tenant), (tenant, file_id)
        while (leaving := self._leaving.get(key)) is not None:
            await leaving.wait()
        if file_id not in shelf.files:
            raise NotStored(f"No such file: {shown(file_id)!r}.", param="file_id")
        self._leaving[key] = done = asyncio.Event()
        try:
            with translated():
                await shelf.delete_file(file_id)
            await asyncio.to_thread(_unlink, self.path(tenant, file_id))
        finally:
            del self._leaving[key]
            done.set()

    def expired(self) -> list[tuple[str, str]]:
        """Tenants and ids of files that are to go."""
        return [
            (shelf.tenant, file.id) for shelf in self._shelves.all() for file in shelf.files.values() if _expired(file)
        ]

    def path(self, tenant: str, file_id: str) -> Path:
        """Where the bytes of a file lie, whose id the library made."""
        return self._files / tenant_folder(tenant) / file_id

    async def check(self, tenant: str, file: FileRecord) -> None:
        """Read a file whole. Raises DataDamaged, which names it, if its bytes are not those that were uploaded."""
        wrong = await asyncio.to_thread(difference, self.path(tenant, file.id), file.bytes, file.sha256)
        if wrong is not None:
            raise damaged(file.id, f"it {wrong}")

    def _check_size(self, size: int) -> None:
        if size == 0:
            raise InvalidRequest("The file is empty: upload a file with something in it.", param="file")
        if size > self.max_bytes:
            raise FileTooLarge(f"The file has {size:,} bytes, and {self.max_bytes:,} are the most: split it.")

    def _check_room(self, shelf: Shelf, size: int) -> None:
        arriving = self._arriving.get(shelf.tenant, [])
        if len(shelf.files) + len(arriving) >= self._config.max_tenant_files:
            raise QuotaExceeded(f"You have {len(shelf.files):,} files, which is the most: delete some.", param="file")
        most, held = self._config.max_tenant_mb * MIB, shelf.bytes + sum(arriving)
        if held + size > most:
            raise QuotaExceeded(
                f"Your files have {held:,} bytes, and {most:,} are the most, so {size:,} more do not fit: delete some.",
                param="file",
            )


async def listed(state: StateStore) -> list[Upload]:
    """What files there must be, by their records, for the data plane that has them in its folder. Raises Damaged."""
    records = Records(state)
    found = []
    try:
        for tenant in await records.tenants():
            folder = f"{FILES.folder}/{tenant_folder(tenant)}"
            for _, file in await records.all(tenant, "file", FileRecord):
                found.append(Upload(f"{folder}/{file.id}", file.bytes, file.sha256))
    except DataDamaged as error:
        raise Damaged(str(error)) from error
    return found


def damaged(file_id: str, what: str) -> DataDamaged:
    """The error for a file that cannot be given as it was uploaded: what is wrong with it, and what to do."""
    return DataDamaged(f"The file {file_id!r} is damaged: {what}. {HELP}")


def _told(record: FileRecord) -> FileObject:
    return FileObject(
        id=record.id,
        filename=record.filename,
        purpose=record.purpose,
        bytes=record.bytes,
        created_at=record.created_ms // 1000,
        expires_at=None if record.expires_ms is None else record.expires_ms // 1000,
    )


def _expired(record: FileRecord) -> bool:
    return record.expires_ms is not None and record.expires_ms <= time.time() * 1000


def _check_purpose(purpose: str) -> None:
    if purpose not in PURPOSES:
        allowed = ", ".join(PURPOSES)
        raise InvalidRequest(f"{shown(purpose)!r} is no purpose of a file. Allowed: {allowed}.", param="purpose")


def _check_expiry(seconds: int | None) -> None:
    least, most = _EXPIRES_S
    if seconds is not None and not least <= seconds <= most:
        raise InvalidRequest(
            f"seconds must be from {least:,} to {most:,}, not {seconds:,}.", param="expires_after.seconds"
        )


def _plain_name(filename: str) -> str:
    """A name without folders. It is never part of a path here; others may be less careful with it."""
    name = filename.replace("\\", "/").rpartition("/")[2].strip()
    if not name or name in (".", "..") or "\0" in name:
        raise InvalidRequest("The file needs a name, such as notes.md.", param="file")
    if len(name) > MAX_FILENAME:
        raise InvalidRequest(f"The file's name has {len(name)} characters; {MAX_FILENAME} are the most.", param="file")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("The file's name is no valid Unicode.", param="file") from error
    return name


async def _taken_back(shelf: Shelf, file_id: str) -> bool:
    """Whether a record that could not be stored is surely not there. One of which only the sync failed is removed again."""
    try:
        if await shelf.has_file(file_id):
            await shelf.delete_file(file_id)
    except Exception as error:  # noqa: BLE001 - the caller has the first error to tell
        _log.warning(
            "the record of a failed upload may be there, so its bytes stay until the next start",
            extra={"file": file_id, "why": str(error)},
        )
        return False
    return True


def _unlink(path: Path) -> None:
    """Remove the bytes of a file that has no record any more; what cannot be removed now is left to the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the bytes of a deleted file stay", extra={"file": path.name, "why": str(error)})


def _prepare(uploads: Path, files: Path, kept: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns the names in `kept`, by folder, that are not there."""
    lost = {folder: set(names) for folder, names in kept.items()}
    if not files.is_dir():
        if any(lost.values()):
            _log.error("the folder of all uploaded files is missing: bring it back", extra={"folder": str(files)})
        lost = {}
    for folder in (uploads, files):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    for folder in (files, files.parent, files.parent.parent):  # what was made now, or just before a crash
        _sync(folder)
    for left in list(uploads.iterdir()):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    for tenant in [path for path in files.iterdir() if path.is_dir()]:
        known = kept.get(tenant.name, set())
        for path in list(tenant.iterdir()):
            if path.name in known:
                lost.get(tenant.name, set()).discard(path.name)
            elif path.is_symlink() or not path.is_dir():
                path.unlink()
    return lost


def _move(upload: Path, place: Path) -> None:
    """Give an upload its place, durably."""
    place.parent.mkdir(mode=0o700, exist_ok=True)
    upload.chmod(0o600)
    _sync(upload)
    upload.replace(place)
    try:
        _sync(place.parent)
        _sync(place.parent.parent)  # always: who made the tenant's folder may not have come so far
    except OSError:
        with contextlib.suppress(OSError):
            place.unlink()
        raise


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
