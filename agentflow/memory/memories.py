"""Memories: collections of the data plane, one for each tenant and name (places.py). A tenant never sees another's.

A row (rows.py) has the vector of its text, or of its beginning where the embedding model does not take more. One with an end
(`until`) is gone from then on: the data plane finds it no more. A collection is made for its first row, and its vectors have the
length that the embedding model had then. All writes are durable when they return, and may be repeated.

The row of a named note follows from its record (named.py): `index` makes it so, and a search tells of such a row what the record
says by then, and nothing of one without a record.

Vectors are those of one embedding model, whose identity is kept with the memory's place. Where another is served, the memory is
stale: whoever `watch`es is told, it is searched by words alone, and not written until it was renewed (renewal.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from agentflow.library.embedderid import EmbedderId
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataUnavailable, NotStored
from agentflow.memory.named import NamedNotes
from agentflow.memory.places import MemoryStale, Place, Places, is_of
from agentflow.memory.recollection import Memory
from agentflow.memory.renewal import Renewal
from agentflow.memory.rows import Entry, entry_of, memory_of, name_of, named_id, row_of
from agentflow.memory.scripts import is_chinese, may_be_told
from agentflow.memory.vectors import QUERY_CHARS, Embed, Identity, Vectors
from dataplane import CollectionSpec, Row, SearchQuery, parse_filter
from dataplane.errors import AlreadyExists, DataPlaneError, DimensionMismatch, NotFound

if TYPE_CHECKING:
    from dataplane import DataPlane, Hit

MOST_SAID: Final = 512
"""Turns of a conversation that are not found again in it, counted from its end."""
_OVER: Final = 2  # times as many are looked at where some may be too far away
_EMBED_SHARE: Final = 0.6  # of a search's time; what is left is for the search by words alone


class Findings(Struct, frozen=True, kw_only=True):
    """Memories, the best first; the tiers that were searched; whether that was all there is, and if not, why.

    `far`: how many were left out that lie below the floor.
    """

    memories: tuple[Memory, ...] = ()
    tiers: tuple[str, ...] = ()
    complete: bool = True
    why: str = ""
    far: int = 0


class Wanted(NamedTuple):
    """What is looked for: at most `most` memories. `said`: fingerprints of turns that are not to be found.

    `floor`: the least cosine of a memory's vector and the query's; where one of them is Chinese and the embedding model
    does not know it (scripts.py), they have a word in common besides. None: of any. A search by words alone knows no such thing.
    """

    text: str
    most: int
    within_s: float
    said: Sequence[str] = ()
    floor: float | None = None


class _At(NamedTuple):
    """Where a memory lies."""

    tenant: str
    name: str
    collection: str


class Memories:
    """Lives on the event loop. `plane` opens the data plane if it is not, and raises Refused.

    All methods raise errors of agentflow's tree: Refused, EngineFailure, InvalidRequest, DataDamaged.
    """

    def __init__(self, plane: Callable[[], Awaitable[DataPlane]], embed: Embed, identity: Identity) -> None:
        self._plane = plane
        self._vectors = Vectors(embed, identity)
        self._renewal = Renewal(self._opened, self._vectors)
        self._opening: asyncio.Task[DataPlane] | None = None
        self._noticed: Callable[[str, str], None] | None = None
        self._making = asyncio.Lock()

    def watch(self, noticed: Callable[[str, str], None]) -> None:
        """Have `noticed` called with the tenant and the name of a memory that is found stale, each time."""
        self._noticed = noticed

    async def write(self, tenant: str, name: str, entries: Iterable[Entry]) -> None:
        """Remember. What has an id that is there replaces it; what is past its end is left out. Raises MemoryStale."""
        now = _now_ms()
        lasting = [entry for entry in entries if entry.until is None or entry.until > now]
        if not lasting:
            return
        embedder = await self._vectors.embedder()
        vectors = await self._vectors.passages(tenant, [entry.text for entry in lasting])
        plane, spec = await self._opened(), CollectionSpec(dimensions=int(vectors.shape[1]))
        place = await self._place(plane, (tenant, name), embedder, spec)
        if place.knows_chinese is None and any(is_chinese(entry.text) for entry in lasting):
            await self._measure(Places(plane.state), (tenant, name), place, embedder)
        with translated():
            try:
                await self._upsert(plane, (tenant, place.collection), spec, partial(_rows, lasting, vectors))
            except DimensionMismatch:
                raise self._stale(tenant, name, place, embedder) from None

    async def search(self, tenant: str, name: str, wanted: Wanted) -> Findings:
        """What is nearest by vectors and by words, within `within_s` seconds; what is not ready by then is left out.

        An embedding model that takes too long, or is not the one that the memory's vectors are of, leaves the words. Raises
        DataUnavailable where there was no time at all.
        """
        ends_at = time.monotonic() + wanted.within_s
        try:
            async with asyncio.timeout(wanted.within_s):
                vector, embedder, why = await self._vectors.query(tenant, wanted.text, _EMBED_SHARE * wanted.within_s)
                plane = await self._opened()
                places = Places(plane.state)
                place, before = await places.of(tenant, name), None
                while place != before:
                    if embedder is not None and not place.fits(embedder):
                        vector, why = None, str(self._stale(tenant, name, place, embedder))
                    at = _At(tenant, name, place.collection)
                    try:
                        query = _query(wanted, vector, ends_at)
                        return await _found(plane, at, query, wanted, why, reads=self._reads_chinese(place, embedder))
                    except DimensionMismatch:
                        assert embedder is not None
                        vector, why = None, str(self._stale(tenant, name, place, embedder))
                    except NotFound:  # nothing was remembered yet, or it was renewed meanwhile
                        place, before = await places.of(tenant, name), place
        except TimeoutError as error:
            said = f"the memory was not searched within {1000 * wanted.within_s:.0f} ms"
            raise DataUnavailable(said, retry_after_s=1.0) from error
        except DataPlaneError:
            with translated():
                raise
        return Findings()

    async def forget(self, tenant: str, name: str, memory_id: str) -> bool:
        """Remove a memory, and the note of which it is the row; False if there is none of that id."""
        plane = await self._opened()
        place = await Places(plane.state).of(tenant, name)
        try:
            with translated():
                (row,) = await plane.get(tenant, place.collection, [memory_id])
        except NotStored:
            return False
        if row is not None and (note := name_of(row.attributes)):
            await NamedNotes(plane.state).delete(tenant, name, note)
        return await self._remove_row(tenant, name, memory_id)

    async def named(self) -> NamedNotes:
        """The notes that are kept under names."""
        return NamedNotes((await self._opened()).state)

    async def index(self, tenant: str, name: str, note_name: str) -> None:
        """Make the row of a named note what its record is by now. Where several do so at a time, the last sees to it.

        Raises MemoryStale.
        """
        notes, version = await self.named(), -1
        while True:
            note, found = await notes.get(tenant, name, note_name)
            if found == version:
                return
            version = found
            if note is None:
                await self._remove_row(tenant, name, named_id(note_name))
            else:
                await self.write(tenant, name, [entry_of(note_name, note)])

    async def renew(self, tenant: str, name: str) -> bool:
        """Make the next part of a stale memory anew. Whether nothing is left. One caller at a time."""
        return await self._renewal.part(tenant, name)

    async def _remove_row(self, tenant: str, name: str, memory_id: str) -> bool:
        """Whether it was there. First from where the memory lies, then from where it is being renewed (see renewal.py)."""
        plane = await self._opened()
        place = await Places(plane.state).of(tenant, name)
        with translated():
            there = await _deleted(plane, tenant, place.collection, memory_id)
            others = [one for one in plane.collections(tenant) if is_of(one, name) and one != place.collection]
            for other in others:
                there = await _deleted(plane, tenant, other, memory_id) or there
        return there

    async def _place(
        self, plane: DataPlane, memory: tuple[str, str], embedder: EmbedderId, spec: CollectionSpec
    ) -> Place:
        """Where to write, which from then on is a place of this model's. Raises MemoryStale."""
        places = Places(plane.state)
        place = await places.of(*memory)
        if place.embedder == embedder:
            return place
        there = plane.collections(memory[0]).get(place.collection)
        if there is not None and not (place.fits(embedder) and there.dimensions == spec.dimensions):
            raise self._stale(*memory, place, embedder)
        known = place.knows_chinese if place.fits(embedder) else None
        place = Place(collection=place.collection, embedder=embedder, knows_chinese=known)
        await places.put(*memory, place)
        return place

    async def _measure(self, places: Places, memory: tuple[str, str], place: Place, embedder: EmbedderId) -> None:
        """Have a place say whether its model knows Chinese."""
        known = await self._vectors.measured(memory[0], embedder)
        if await places.of(*memory) == place:  # and was not renewed meanwhile
            await places.put(*memory, replace(place, knows_chinese=known))

    def _reads_chinese(self, place: Place, embedder: EmbedderId | None) -> bool:
        """Whether a cosine alone speaks for a Chinese text; so it is taken to do until it was measured."""
        known = place.knows_chinese
        return (self._vectors.knows_chinese(embedder) if known is None else known) is not False

    async def _upsert(
        self, plane: DataPlane, at: tuple[str, str], spec: CollectionSpec, rows: Callable[[], Sequence[Row]]
    ) -> None:
        """Put rows in. The first ones make the collection, which is there only once that is done."""
        try:
            await plane.upsert(*at, rows(), "durable")
        except NotFound:
            async with self._making:
                with contextlib.suppress(AlreadyExists):  # another was faster
                    await plane.create_collection(*at, spec)
            await plane.upsert(*at, rows(), "durable")

    def _stale(self, tenant: str, name: str, place: Place, embedder: EmbedderId) -> MemoryStale:
        if self._noticed is not None:
            self._noticed(tenant, name)
        return MemoryStale(name, place, embedder)

    async def _opened(self) -> DataPlane:
        """The data plane. Who has no time to wait for it leaves, and its opening goes on."""
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(_failed)
        return await asyncio.shield(self._opening)

    async def _open(self) -> DataPlane:
        return await self._plane()


def _rows(entries: Sequence[Entry], vectors: Any) -> list[Row]:
    """Their rows, whose time to live counts from now."""
    now = _now_ms()
    return [row_of(entry, vector, now) for entry, vector in zip(entries, vectors, strict=True)]


async def _deleted(plane: DataPlane, tenant: str, collection: str, memory_id: str) -> bool:
    try:
        return await plane.delete(tenant, collection, [memory_id], "durable") > 0
    except NotFound:
        return False


def _query(wanted: Wanted, vector: Any, ends_at: float) -> SearchQuery:
    unsaid = {"type": "nin", "key": "said", "value": list(wanted.said[-MOST_SAID:])}
    return SearchQuery(
        vector=vector,
        text=wanted.text[:QUERY_CHARS],
        k=wanted.most if wanted.floor is None else _OVER * wanted.most,
        filter=parse_filter(unsaid) if wanted.said else None,
        deadline_s=max(0.0, ends_at - time.monotonic()),
    )


async def _found(plane: DataPlane, at: _At, query: SearchQuery, wanted: Wanted, why: str, *, reads: bool) -> Findings:
    """What a query finds. `why` there is no vector. `reads`: whether the embedding model knows Chinese."""
    found = await plane.search(at.tenant, at.collection, query)
    hits, why = found.hits, f"searched by words alone: {why}" if why else ""
    if wanted.floor is not None and query.vector is not None:
        near = await _near(plane, at, query.vector, wanted.floor, hits)
        hits = tuple(hit for hit in hits if hit.id in near and (reads or may_be_told(wanted.text, memory_of(hit).text)))
    far = len(found.hits) - len(hits)
    memories = await _current(NamedNotes(plane.state), at, hits[: wanted.most])
    if not found.complete:
        why = "; ".join(filter(None, (why, "what was not ready in time was left out")))
    return Findings(memories=memories, tiers=found.tiers, complete=not why, why=why, far=far)


async def _near(plane: DataPlane, at: _At, vector: Any, floor: float, hits: Sequence[Hit]) -> set[str]:
    """The ids of hits whose vectors have at least this cosine with the query's."""
    rows = await plane.get(at.tenant, at.collection, [hit.id for hit in hits], vectors=True)
    return {
        row.id for row in rows if row is not None and row.vector is not None and _cosine(row.vector, vector) >= floor
    }


def _cosine(one: Any, other: Any) -> float:
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


async def _current(notes: NamedNotes, at: _At, hits: Sequence[Hit]) -> tuple[Memory, ...]:
    """What was found, as it is by now: what has a name may have been replaced or removed since its row was written."""

    async def current(hit: Hit) -> Memory | None:
        memory = memory_of(hit)
        if not memory.name:
            return memory
        note, _ = await notes.get(at.tenant, at.name, memory.name)
        return None if note is None else replace(memory, text=note.text, at=note.at)

    return tuple(filter(None, await asyncio.gather(*map(current, hits))))


def _failed(task: asyncio.Task[DataPlane]) -> bool:
    return task.cancelled() or task.exception() is not None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
