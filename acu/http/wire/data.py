"""Bodies of /acu/v1/data: jobs on the whole data plane, and how they go on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from acu.http.errors import BadRequest
from acu.http.wire.decode import BodyDecoder, clean_text

MAX_IDS = 10_000

JobKind = Literal["verify", "backup", "archive", "erase"]
Name = Annotated[str, Meta(min_length=1, max_length=512)]


class VerifyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compare everything that is derived with the rows, and files with their checksums.

    `deep` reads all state, and every object of the archive; `repair` makes anew what is wrong.
    """

    deep: bool = False
    repair: bool = False


class BackupBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Back up to `folder`, an absolute path on the daemon's machine that is new or empty."""

    folder: Annotated[str, Meta(min_length=1, max_length=4096, pattern="^/")]


class ArchiveBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Archive what is new; with `restart`, everything anew."""

    restart: bool = False


class EraseBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Erase a tenant, a collection of it, or rows of this collection, on every tier and in the archive."""

    tenant: Name
    collection: Name | None = None
    ids: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_IDS)] | None = None


DataWork = VerifyBody | BackupBody | ArchiveBody | EraseBody


class DataJob(Struct, frozen=True, kw_only=True):
    """A job, as it is now. Times are Unix seconds.

    `done` of `total` tells how far the `stage` is (bytes or things; a total of 0: nobody knows). `result` is what a job that is
    done has found out, `error` why one failed.
    """

    id: str
    kind: JobKind
    state: Literal["running", "done", "failed"]
    created_at: float
    ended_at: float | None = None
    stage: str = ""
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: str | None = None


VERIFY_DECODER = BodyDecoder(VerifyBody)
BACKUP_DECODER = BodyDecoder(BackupBody)
ARCHIVE_DECODER = BodyDecoder(ArchiveBody)
ERASE_DECODER = BodyDecoder(EraseBody)


def kind_of(work: DataWork) -> JobKind:
    """What the job is called."""
    if isinstance(work, VerifyBody):
        return "verify"
    if isinstance(work, BackupBody):
        return "backup"
    return "archive" if isinstance(work, ArchiveBody) else "erase"


def checked(work: DataWork) -> DataWork:
    """The body, or BadRequest for texts that no name can be, and ids without their collection."""
    if isinstance(work, BackupBody):
        clean_text(work.folder, "folder")
    if isinstance(work, EraseBody):
        for field, text in (("tenant", work.tenant), ("collection", work.collection or "")):
            clean_text(text, field)
        if work.ids is not None and work.collection is None:
            raise BadRequest("Rows are erased from a collection: name it.", param="collection")
    return work
