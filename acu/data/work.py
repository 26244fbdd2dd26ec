"""What is done with a whole data plane, whoever asks: a job of the daemon, or a command that opened the folder itself.

Results are plain values, ready for JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from acu.config import RESULTS
from acu.http.library import LibrarySource
from acu.http.wire.data import ArchiveBody, BackupBody, DataWork, EraseBody, VerifyBody
from agentflow.agents.archive import HOUSE as AGENTS_HOUSE
from agentflow.errors import AgentFlowError
from agentflow.library.erased import count_anew
from agentflow.library.filestore import listed
from agentflow.library.records import HOUSE, Records
from agentflow.library.refusals import DataUnavailable, NotStored
from agentflow.library.shelf import Changes, Shelves
from agentflow.library.values import PageRequest
from agentflow.tools.handles import erase_folder
from dataplane.care import inspection as care
from dataplane.care.erasure import absence, erase, measure
from dataplane.cold.tier import cold_folder, default_cold_folder
from dataplane.cold.uploads import waiting, wrong
from dataplane.errors import DataPlaneError, InvalidInput, NotFound

if TYPE_CHECKING:
    from agentflow.agents.runs import Runs
    from agentflow.library.library import Library
    from dataplane.cold.archive_export import ArchiveReport
    from dataplane.store import DataPlane

UPLOADS = "library/files"
UPLOADS_STAY = (
    "Of files in this vector store these chunks are gone, and their usage is less (a file without any is failed). The uploaded "
    "files still have the words: delete them too, for a file that is attached again has all its chunks again."
)
ROW_IDS = "A file in a vector store has the rows FILE_ID#0, FILE_ID#1 and so on."
Told = Callable[[str, int, int], None]


async def perform(
    plane: DataPlane, work: DataWork, told: Told, library: LibrarySource | None = None, runs: Runs | None = None
) -> dict[str, Any]:
    """Do it, and return what came of it. `told` hears of stages, also from other threads.

    `library` gives the library that is open over the data plane, if one may be; `runs` are those of a daemon.
    Raises DataPlaneError, AgentFlowError.
    """
    # Where the library and the agents list tenants: erasing one removes it there.
    plane.state.rosters = ((HOUSE, "tenant"), (AGENTS_HOUSE, "tenant"))
    if plane.cold.uploads is None:  # the library is not open
        plane.cold.uploads = partial(listed, plane.state)
    if isinstance(work, VerifyBody):
        return _plain(await care.verify(plane, deep=work.deep, mend=work.repair, progress=told))
    if isinstance(work, BackupBody):
        target = Path(work.folder)
        await asyncio.to_thread(_check_outside, plane, target)
        files = await asyncio.to_thread(uploaded, plane.folder)
        return _plain(await care.back_up(plane, target, files=files, progress=told))
    if isinstance(work, ArchiveBody):

        def archived(report: ArchiveReport) -> None:
            told("archiving", report.bytes, 0)

        told("archiving", 0, 0)
        report = await plane.cold.archive_now(archived, restart=work.restart)
        return {
            "rows": report.rows,
            "files": report.files,
            "damaged": report.damaged,
            "objects": report.objects,
            "bytes": report.bytes,
            "skipped": report.skipped,
            "rewritten": report.rewritten,
            "removed": report.removed,
            "manifest": report.manifest,
            "where": plane.cold.status().where,
        }
    return await _erased(plane, work, told, library, runs)


def damaged_in(result: dict[str, Any]) -> list[str]:
    """What verifying or archiving has found wrong with files."""
    if "problems" in result:
        return [one["what"] for one in result["problems"] if one["where"] == "files"]
    return list(result["damaged"])


async def uploads(plane: DataPlane) -> dict[str, int] | None:
    """How many uploaded files there are, by their records, and how many of them wait for the archive; and their bytes.

    `damaged_files` are missing or of another size: no file is read. The records are read once, and again where some are.
    None where that cannot be read, of which `acu data verify` says more.
    """
    try:
        there = await listed(plane.state)
        late = await asyncio.to_thread(waiting, plane.rocks, there)
        damaged = await wrong(plane.rocks, plane.folder, partial(listed, plane.state), listed=there)
    except DataPlaneError:
        return None
    return {
        "files": len(there),
        "bytes": sum(one.size for one in there),
        "damaged_files": len(damaged),
        "waiting_files": len(late),
        "waiting_bytes": sum(one.size for one in late),
    }


async def _erased(
    plane: DataPlane, work: EraseBody, told: Told, library: LibrarySource | None, runs: Runs | None
) -> dict[str, Any]:
    """The receipt. Raises NotFound where there was nothing, also nothing in the archive."""
    before = await measure(plane, work.tenant, work.collection)
    if not before.known:
        raise await absence(plane, work.tenant, work.collection)
    whole = work.collection is None
    async with _emptied(library if whole else None, work.tenant, told), _runs_ended(plane, work.tenant, runs, whole):
        receipt = _plain(await erase(plane, work.tenant, work.collection, work.ids, progress=told, before=before))
    try:
        changed = work.ids and await _counted_anew(plane, library, work)
    except (AgentFlowError, DataPlaneError) as error:  # the receipt is of what was erased before
        receipt["left"] = [*receipt["left"], f"the vector store's usage was not counted anew: {error} Erase again."]
        return receipt
    if changed:
        receipt["beyond"] = [UPLOADS_STAY, *receipt["beyond"]]
    elif work.ids and not receipt["rows"] and not receipt["left"] and not (receipt["archive"] or {}).get("rewritten"):
        raise NotFound(
            f"none of these ids is a row of the collection {work.collection!r}: nothing was erased. {ROW_IDS}"
        )
    return receipt


@contextlib.asynccontextmanager
async def _runs_ended(plane: DataPlane, tenant: str, runs: Runs | None, whole: bool) -> AsyncIterator[None]:
    """End a tenant's runs and remove its tools' results, where the whole tenant is erased; no run of it begins within."""
    if not whole:
        yield
        return
    if runs is None:
        await asyncio.to_thread(erase_folder, plane.folder / RESULTS, tenant)
        yield
        return
    async with runs.closed(tenant):
        yield


@contextlib.asynccontextmanager
async def _emptied(source: LibrarySource | None, tenant: str, told: Told) -> AsyncIterator[None]:
    """Have an open library forget all that a tenant has in it, and store nothing new of it until the tenant is erased.

    Erasing removes what lies in the data plane's folder.
    """
    library = None
    if source is not None:
        with contextlib.suppress(DataUnavailable):
            library = await source()
    if library is None:
        yield
        return
    told("deleting files and vector stores", 0, 0)
    async with library.closed(tenant):
        await _delete_all(library, tenant)
        yield


async def _delete_all(library: Library, tenant: str) -> None:
    while stores := (await library.stores(tenant, PageRequest(limit=100))).data:
        for store in stores:
            with contextlib.suppress(NotStored):
                await library.delete_store(tenant, store.id)
    while files := (await library.files(tenant, PageRequest(limit=1000))).data:
        for file in files:
            with contextlib.suppress(NotStored):
                await library.delete_file(tenant, file.id)


async def _counted_anew(plane: DataPlane, source: LibrarySource | None, work: EraseBody) -> list[str]:
    """Tell of a vector store's files what is left of them; the ids of those that lost something."""
    assert work.collection is not None
    ids = work.ids or ()
    library = None
    if source is not None:
        with contextlib.suppress(DataUnavailable):  # then none is open, and what is stored counts
            library = await source()
    if library is not None:  # nobody else may write its records, also while it cannot
        return await library.count_anew(work.tenant, work.collection, ids)
    shelves = Shelves(Records(plane.state))
    await shelves.load()
    return await count_anew(plane, shelves.of(work.tenant), Changes(), work.collection, ids)


def _check_outside(plane: DataPlane, target: Path) -> None:
    """Raise InvalidInput for a backup that would lie among the data or in their archive."""
    places = {"the data plane's own folder": plane.folder}
    if plane.config.cold.bucket is None:
        places["the archive's folder"] = cold_folder(plane.config.cold, default_cold_folder(plane.folder))
    for what, folder in places.items():
        if folder.resolve() in (target.resolve(), *target.resolve().parents):
            raise InvalidInput(f"{target} lies in {what}: name one outside of it.", param="folder")


def uploaded(folder: Path) -> dict[str, Path]:
    """The files of the library, by their names below the data plane's folder. None of them is ever changed in place."""
    return {path.relative_to(folder).as_posix(): path for path in (folder / UPLOADS).rglob("*") if path.is_file()}


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value, enc_hook=str)
    return plain
