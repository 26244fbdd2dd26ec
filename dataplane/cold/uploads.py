"""Uploads: what the files of `library/files` should be, by whoever has their records, against what lies there.

The data plane knows no records of files. Their owner gives it a `Listing` (ColdTier.uploads): name, size and SHA-256 of every
file that must be there. A record is stored after its file and goes before it, so a file that is listed is there; one that
went meanwhile is not listed any more when the list is read again, which is done before anything is called wrong.

A file is right if it is a regular one of the listed size (a symbolic link is not followed) and, where all bytes are read, has
the listed SHA-256; where none is listed (older records), that which the archive knows counts. Files are never changed in
place: so one that is wrong is damaged, and the archive has the good one if it ever was there. From there it is brought back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from dataplane.cold import attachments, filelist
from dataplane.cold import manifest as manifests
from dataplane.cold.archive_attachments import Guarded, Incoming
from dataplane.cold.attachments import FILES, Attachment
from dataplane.cold.bucket import Bucket
from dataplane.errors import Damaged, DataPlaneError
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks

STEP = 256
HELP = "Restore it with `acu data verify --deep --repair` if the archive has it, or from a backup; else delete it."


class Upload(Struct, frozen=True):
    """A file that must be there. `name` is relative to the data plane's folder; `sha256` None: an older record."""

    name: str
    size: int
    sha256: str | None = None


Listing = Callable[[], Awaitable[Sequence[Upload]]]


async def wrong(
    rocks: Rocks, data: Path, listing: Listing, *, deep: bool = False, listed: Sequence[Upload] | None = None
) -> dict[Upload, str]:
    """The files that are not what they should be, and what is wrong with each. `deep`: all bytes are read. Raises Damaged.

    `listed`: what the listing gave a moment ago, if it was asked. It is asked again only before something is called wrong.
    """
    found: dict[Upload, str] = {}
    if listed is None:
        listed = await listing()
    for at in range(0, len(listed), 1 if deep else STEP):
        found |= await in_thread(_wrong, rocks, data, listed[at : at + (1 if deep else STEP)], deep)
    if not found:
        return found
    still = set(await listing())
    return {upload: what for upload, what in found.items() if upload in still}


async def check(rocks: Rocks, data: Path, listing: Listing | None) -> None:
    """Raise Damaged, which names them, if files are missing or of another size."""
    found = await wrong(rocks, data, listing) if listing is not None else {}
    if found:
        raise Damaged(f"{len(found):,} uploaded files are damaged, the first of them: {next(iter(found.values()))}")


def told_again(what: str, missed: DataPlaneError | None) -> str:
    """What is said of a damaged file after the archive was asked for it; `missed`: why that could not be done."""
    if missed is not None:
        return what.replace(HELP, f"The archive may have it, and was not reached: {missed} Repair again when it is.")
    return what.replace(
        HELP, "The archive does not have it. Restore it from a backup, or upload it again, or delete it."
    )


async def bring_back(rocks: Rocks, bucket: Bucket, data: Path, damaged: Iterable[Upload]) -> dict[str, DataPlaneError]:
    """Fetch from the archive what it has of these. A file that it does not have as it should be stays as it is.

    Returns those that the archive has or may have, and that could not be fetched now: by name, and why. Raises
    BucketUnreachable where it does not answer at all.
    """
    wanted = {upload.name: upload for upload in damaged}
    known = await in_thread(_kept_of, rocks, list(wanted.values()))
    found = {name: one for name, one in known.items() if one is not None}
    missed: dict[str, DataPlaneError] = {}
    shelf = await manifests.shelf(bucket)
    try:
        async for one in filelist.each(bucket, filelist.segments(shelf.whole[0].manifest) if shelf.whole else ()):
            if one.name in wanted and _is(one, wanted[one.name]):
                found[one.name] = one
    except Damaged as error:  # of the list, which may name what nobody else knows
        missed = dict.fromkeys(wanted.keys() - found.keys(), error)
    incoming = Incoming(bucket, data, lambda _bytes: None)
    for one in found.values():
        try:
            await in_thread(_make_way, data / one.name)
            await incoming.bring(one)
            await in_thread(filelist.remember, rocks, [one])
        except Damaged:  # the archive's: the file is still wrong when it is looked at again
            continue
        except DataPlaneError as error:
            missed[one.name] = error
    await incoming.finish()
    return missed


async def guarded(rocks: Rocks, data: Path, listing: Listing, *, deep: bool) -> tuple[Guarded, list[str]]:
    """What an archive run must know of the files, and what is wrong with them. Raises Damaged."""
    found = await wrong(rocks, data, listing, deep=deep)
    kept = await in_thread(_kept_of, rocks, list(found))
    return Guarded({upload.name: upload.sha256 for upload in await listing()}, kept), list(found.values())


def waiting(rocks: Rocks, uploads: Sequence[Upload]) -> list[Upload]:
    """Those of the files that the archive does not have yet. Reads what is known of it here. Raises Damaged."""
    found = []
    for start in range(0, len(uploads), STEP):
        part = uploads[start : start + STEP]
        stored = filelist.by_name(rocks, [upload.name for upload in part])
        found += [up for up, one in zip(part, stored, strict=True) if one is None or not _is(one, up)]
    return found


def names_of(data: Path) -> Iterator[tuple[str, Path]]:
    """All uploaded files that are there, by name. Raises Damaged."""
    for folder in attachments.folders(data, FILES):
        for found in attachments.look_at(data, folder, attachments.names_in(data, folder)):
            yield found.name, data / found.name


def _kept_of(rocks: Rocks, uploads: Sequence[Upload]) -> dict[str, Attachment | None]:
    """What the archive knows of these, where that is what they should be."""
    stored = filelist.by_name(rocks, [upload.name for upload in uploads])
    return {
        upload.name: one if one is not None and _is(one, upload) else None
        for upload, one in zip(uploads, stored, strict=True)
    }


def _is(one: Attachment, upload: Upload) -> bool:
    return one.size == upload.size and one.sha256 == (upload.sha256 or one.sha256)


def _wrong(rocks: Rocks, data: Path, uploads: Sequence[Upload], deep: bool) -> dict[Upload, str]:
    found = {}
    for upload in uploads:
        if (what := _differs(rocks, data, upload, deep=deep)) is not None:
            found[upload] = f"the uploaded file {upload.name} {what}. {HELP}"
    return found


def _differs(rocks: Rocks, data: Path, upload: Upload, *, deep: bool) -> str | None:
    """What is wrong with a file; None: nothing."""
    return difference(data / upload.name, upload.size, (upload.sha256 or _archived(rocks, upload)) if deep else None)


def difference(path: Path, size: int, sha256: str | None) -> str | None:
    """What is wrong with a file, in words that follow its name; None: nothing. `sha256` None: its bytes are not read."""
    try:
        known = path.lstat()
        if stat.S_ISLNK(known.st_mode):
            return "has become a symbolic link"
        if not stat.S_ISREG(known.st_mode):
            return "is no regular file"
        if known.st_size != size:
            return f"has {known.st_size:,} bytes, and was uploaded with {size:,}"
        if sha256 is None:
            return None
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return None if hashlib.file_digest(file, "sha256").hexdigest() == sha256 else "has another SHA-256"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _archived(rocks: Rocks, upload: Upload) -> str | None:
    (one,) = filelist.by_name(rocks, [upload.name])
    return one.sha256 if one is not None and one.size == upload.size else None


def _make_way(path: Path) -> None:
    """Remove what is no file, if it is a folder with nothing in it."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):
            path.rmdir()
