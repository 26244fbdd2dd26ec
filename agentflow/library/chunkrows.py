"""The rows of vector stores in the data plane: a collection for each store, the chunks of its files as rows.

A chunk is the row `<file id>#<number>`; its attributes are its file's, so that filters see them. A file's rows are numbered
without a gap: they are added at the end and removed from there, each part whole, so a crash leaves a beginning of them.
Only `acu data erase` may take some out of the middle: so who wants all of a file's rows says how many it had (`had`).

Rows get other attributes by being stored again. One that was erased after it was read would come back so: it is removed again.
Only a crash between these two writes, which follow each other at once, leaves it there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from agentflow.library.planeerrors import translated
from agentflow.library.refusals import NotStored
from agentflow.library.shelf import Changes, StoreShelf
from agentflow.library.values import Attribute
from dataplane import CollectionSpec, DataPlane, Row, StoredRow
from dataplane.errors import AlreadyExists, NotFound

PART: Final = 64
"""Rows that are read or written at once."""


class ChunkRows:
    """The rows of one vector store. Raises the library's refusals."""

    def __init__(self, plane: DataPlane, tenant: str, store: StoreShelf, changes: Changes) -> None:
        self._plane = plane
        self._tenant = tenant
        self._store = store
        self._store_id = store.record.id
        self._changes = changes

    async def add(
        self, file_id: str, first: int, texts: Sequence[str], vectors: Any, attributes: Mapping[str, Attribute]
    ) -> None:
        """Store chunks as the rows from number `first` on. `vectors`: float32, shape [len(texts), dimensions]."""
        rows = [
            Row(id=f"{file_id}#{first + number}", vector=vector, text=text, attributes=dict(attributes))
            for number, (text, vector) in enumerate(zip(texts, vectors, strict=True))
        ]
        with translated():
            try:
                await self._plane.upsert(self._tenant, self._store_id, rows)
            except NotFound as error:
                if first > 0:  # it was erased under this file, whose first rows are gone
                    raise NotStored(
                        f"the rows of vector store {self._store_id!r} are gone: attach the file again."
                    ) from error
                await self._changes.run(self._make(int(vectors.shape[1])))
                await self._plane.upsert(self._tenant, self._store_id, rows)

    async def _make(self, dimensions: int) -> None:
        async with self._store.lock:
            record = self._store.record
            if record.due or record.expired:
                raise NotStored(f"vector store {record.id!r} is going.")
            with contextlib.suppress(AlreadyExists):  # another file's worker was faster
                spec = CollectionSpec(dimensions=dimensions)
                await self._plane.create_collection(self._tenant, self._store_id, spec)

    async def read(self, file_id: str, first: int, count: int, *, vectors: bool = False) -> list[StoredRow]:
        """The rows from number `first` on, as many as there are, `count` at most."""
        ids = [f"{file_id}#{number}" for number in range(first, first + count)]
        with translated():
            try:
                found = await self._plane.get(self._tenant, self._store_id, ids, vectors=vectors)
            except NotFound:
                return []
        return [row for row in found if row is not None]

    async def cut(self, file_id: str, first: int, had: int = 0) -> None:
        """Remove the rows from number `first` on, from the end."""
        parts = [[row.id for row in rows] async for rows in self._parts(file_id, first, had)]
        for ids in reversed(parts):
            with translated():
                await self._plane.delete(self._tenant, self._store_id, ids)

    async def usage(self, file_id: str, had: int) -> int:
        """Bytes of the texts and vectors of a file's rows that are there."""
        size = 0
        async for rows in self._parts(file_id, 0, had, vectors=True):
            size += sum(
                len((row.text or "").encode()) + (0 if row.vector is None else row.vector.nbytes) for row in rows
            )
        return size

    async def _parts(
        self, file_id: str, first: int, had: int, *, vectors: bool = False
    ) -> AsyncIterator[list[StoredRow]]:
        """The rows from number `first` on, PART numbers at a time; none of the parts is empty."""
        while (rows := await self.read(file_id, first, PART, vectors=vectors)) or first < had:
            if rows:
                yield rows
            first += PART

    async def set_attributes(self, file_id: str, attributes: Mapping[str, Attribute], had: int = 0) -> list[str]:
        """Give a file's rows other attributes; their vectors stay. Returns the ids of those that were erased meanwhile."""
        erased: list[str] = []
        async for rows in self._parts(file_id, 0, had, vectors=True):
            changed = [
                Row(id=row.id, vector=row.vector, text=row.text, attributes=dict(attributes))
                for row in rows
                if row.vector is not None
            ]
            with translated():
                erased += await self._changes.run(self._replace(changed))
        return erased

    async def _replace(self, rows: list[Row]) -> list[str]:
        """Store rows that were there, each by itself: one that is new was erased since it was read, and goes again."""
        done = await asyncio.gather(*map(self._replace_one, rows), return_exceptions=True)
        erased = []
        for row, was_there in zip(rows, done, strict=True):
            if isinstance(was_there, BaseException):
                raise was_there
            if not was_there:
                erased.append(row.id)
        return erased

    async def _replace_one(self, row: Row) -> bool:
        """Store a row; whether it was there."""
        if not await self._plane.upsert(self._tenant, self._store_id, [row]):
            return True
        await self._plane.delete(self._tenant, self._store_id, [row.id])
        return False

    async def drop(self) -> None:
        """Remove all rows of the store. Its lock must be held, and it must be due to go, so that none come again."""
        with translated():
            try:
                await self._plane.drop_collection(self._tenant, self._store_id)
            except NotFound:
                return
