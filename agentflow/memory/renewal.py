"""Renewal: the vectors of a memory are made anew, for another embedding model than the one that they are of. Stateful.

Part by part, the rows are put with new vectors into a collection of their own. Then the memory's place (places.py) names that
one, in one step, and the old one is dropped. Meanwhile nothing is written into the memory (what is to be written waits in the
diary), and it is searched by words alone.

What is forgotten meanwhile is removed from the old collection first, then from the new one; and a part looks, once it is
written, which of its rows the old one still has. So nothing comes back.

A crash leaves a part of the new collection, and so does a part that fails: whoever begins again skips what is there. What of it
was of yet another model is dropped at the end. How wide a model's vectors are is asked once, when a renewal begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentflow.library.embedderid import EmbedderId
from agentflow.library.planeerrors import translated
from agentflow.memory.places import Place, Places, is_of, renewed_name
from agentflow.memory.scripts import is_chinese
from agentflow.memory.vectors import Vectors
from dataplane import CollectionSpec, Row, StoredRow
from dataplane.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from dataplane import DataPlane

PART: Final = 32  # rows


class _Way(NamedTuple):
    """How far the renewal of a memory has come, for a model whose vectors have that width."""

    embedder: EmbedderId
    width: int
    reached: str | None = None  # the last id that was copied


class Renewal:
    """`plane` opens the data plane if it is not. For each memory, one caller at a time."""

    def __init__(self, plane: Callable[[], Awaitable[DataPlane]], vectors: Vectors) -> None:
        self._plane = plane
        self._vectors = vectors
        self._ways: dict[tuple[str, str], _Way] = {}  # by tenant and memory, while its renewal goes on well

    async def part(self, tenant: str, name: str) -> bool:
        """Renew the next part of a memory. Whether nothing is left to renew. Raises Refused, EngineFailure, DataDamaged."""
        plane, embedder = await self._plane(), await self._vectors.embedder()
        way = self._ways.pop((tenant, name), None)
        places = Places(plane.state)
        place = await places.of(tenant, name)
        there = plane.collections(tenant).get(place.collection)
        if there is None:
            return True
        if way is None or way.embedder != embedder:
            way = _Way(embedder, int((await self._vectors.passages(tenant, [name])).shape[1]))
        if place.fits(embedder) and there.dimensions == way.width:
            return True
        target = renewed_name(name, embedder, way.width)
        with translated():
            ids = await plane.ids(tenant, place.collection, after=way.reached, limit=PART)
            if ids:
                await self._copy(plane, tenant, (place.collection, target), ids, embedder)
                self._ways[tenant, name] = way._replace(reached=ids[-1])
                return False
        known = self._vectors.knows_chinese(embedder)
        await places.put(tenant, name, Place(collection=target, embedder=embedder, knows_chinese=known))
        with translated():
            for old in plane.collections(tenant):
                if is_of(old, name) and old != target:
                    with contextlib.suppress(NotFound):
                        await plane.drop_collection(tenant, old)
        return True

    async def _copy(
        self, plane: DataPlane, tenant: str, way: tuple[str, str], ids: Sequence[str], embedder: EmbedderId
    ) -> None:
        """Rows with new vectors, from one collection into another, unless they are there; measure the model for Chinese ones."""
        source, target = way
        have = await _ids_in(plane, tenant, target, ids)
        there = [row for row in await plane.get(tenant, source, ids) if row is not None]
        if any(is_chinese(row.text or "") for row in there):
            await self._vectors.measured(tenant, embedder)
        rows = [row for row in there if row.id not in have]
        if rows:
            vectors = await self._vectors.passages(tenant, [row.text or "" for row in rows])
            with contextlib.suppress(AlreadyExists):
                await plane.create_collection(tenant, target, CollectionSpec(dimensions=int(vectors.shape[1])))
            now = time.time_ns() // 1_000_000
            await plane.upsert(
                tenant, target, [_renewed(row, vector, now) for row, vector in zip(rows, vectors, strict=True)]
            )
        gone = set(ids) - await _ids_in(plane, tenant, source, ids)
        if gone:
            with contextlib.suppress(NotFound):
                await plane.delete(tenant, target, sorted(gone))


async def _ids_in(plane: DataPlane, tenant: str, collection: str, ids: Sequence[str]) -> set[str]:
    try:
        return {row.id for row in await plane.get(tenant, collection, ids) if row is not None}
    except NotFound:
        return set()


def _renewed(row: StoredRow, vector: Any, now: int) -> Row:
    ttl_s = None if row.expires_ms is None else max(0.001, (row.expires_ms - now) / 1000)
    return Row(id=row.id, vector=vector, text=row.text, attributes=row.attributes, ttl_s=ttl_s)
