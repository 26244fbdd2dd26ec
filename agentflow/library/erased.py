"""Files in vector stores whose rows somebody erased behind the library's back (`acu data erase`).

A file that has lost some rows stays completed: what is left is found, and its usage is counted anew. One that has lost all is
told as failed. The uploaded file itself is not touched: whoever attaches it again has all rows again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from agentflow.library.chunkrows import ChunkRows
from agentflow.library.planeerrors import translated
from agentflow.library.records import EntryRecord
from agentflow.library.shelf import Changes, Shelf
from agentflow.library.values import FileError
from dataplane import DataPlane


def without_rows(entry: EntryRecord) -> EntryRecord:
    """An entry all of whose rows were erased, as it is to be told."""
    if entry.status != "completed":  # it is being put in anew, or was not
        return replace(entry, rows=0, usage_bytes=0)
    error = FileError(
        "server_error", "erased: its chunks were erased from the data plane; attach it again to have them."
    )
    return replace(entry, status="failed", due="", error=error, rows=0, usage_bytes=0)


async def count_anew(
    plane: DataPlane, shelf: Shelf, changes: Changes, store_id: str, row_ids: Iterable[str]
) -> list[str]:
    """Write what is left of the files that had these rows, and return the ids of those that lost some.

    Raises the library's refusals. A collection that is no vector store has no files.
    """
    store = shelf.stores.get(store_id)
    if store is None:
        return []
    rows = ChunkRows(plane, shelf.tenant, store, changes)
    changed = []
    async with store.lock:
        for file_id in dict.fromkeys(row_id.rpartition("#")[0] for row_id in row_ids):
            entry = store.entries.get(file_id)
            if entry is None or entry.status != "completed" or entry.due == "remove":
                continue
            left = await rows.usage(file_id, entry.rows)
            if left < entry.usage_bytes:
                changed.append(replace(entry, usage_bytes=left) if left else without_rows(entry))
        if changed:
            with translated():
                await shelf.put_entries(store_id, changed)
    return [entry.file_id for entry in changed]
