"""Memories: collections of the data plane, one for each tenant and name, `memory/<name>`. A tenant never sees another's.

    id          of 18 characters, which follows from what is remembered: what is written twice is there once
    text        as the model reads it
    vector      of the text, or of its beginning where the embedding model does not take more
    attributes  kind (turn, note, result), agent, run, at (milliseconds since 1970); said (see `fingerprint`) of a turn

A row with an end (`until`) is gone from then on: the data plane finds it no more. A collection is made for its first row, and
its vectors have the length that the embedding model had then. All writes are durable when they return, and may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct

from agentflow.errors import AgentFlowError, ContextLengthExceeded
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataUnavailable, NotStored
from agentflow.memory.recollection import Memory
from dataplane import CollectionSpec, Row, SearchQuery, parse_filter
from dataplane.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from dataplane import DataPlane, Filter, Hit, SearchResult

Kind = Literal["turn", "note", "result"]
Embed = Callable[[str, Sequence[str], bool], Awaitable[Any]]
"""Vectors of texts, for a tenant: float32 (texts, width). True: nobody waits for them, and they are to be found; else queries."""

QUERY_CHARS: Final = 1000
MOST_SAID: Final = 512
"""Turns of a conversation that are not found again in it, counted from its end."""
_EMBED_SHARE: Final = 0.6  # of a search's time; what is left is for the search by words alone
_HALVINGS: Final = 6


class Entry(Struct, frozen=True, kw_only=True):
    """Something to remember. Times are milliseconds since 1970. `until`: when it is gone; None: never."""

    id: str
    kind: Kind
    text: str
    agent: str
    run_id: str
    at: int
    said: str = ""
    until: int | None = None


class Findings(Struct, frozen=True, kw_only=True):
    """Memories, the best first; the tiers that were searched; whether that was all there is, and if not, why."""

    memories: tuple[Memory, ...] = ()
    tiers: tuple[str, ...] = ()
    complete: bool = True
    why: str = ""


class Wanted(NamedTuple):
    """What is looked for: at most `most` memories. `said`: fingerprints of turns that are not to be found."""

    text: str
    most: int
    within_s: float
    said: Sequence[str] = ()


class Memories:
    """Lives on the event loop. `plane` opens the data plane if it is not, and raises Refused.

    All methods raise errors of agentflow's tree: Refused, EngineFailure, InvalidRequest, DataDamaged.
    """

    def __init__(self, plane: Callable[[], Awaitable[DataPlane]], embed: Embed) -> None:
        self._plane = plane
        self._embed = embed
        self._opening: asyncio.Task[DataPlane] | None = None

    async def write(self, tenant: str, name: str, entries: Iterable[Entry]) -> None:
        """Remember. What has an id that is there replaces it; what is past its end is left out."""
        now = _now_ms()
        lasting = [entry for entry in entries if entry.until is None or entry.until > now]
        if not lasting:
            return
        vectors = await self._vectors(tenant, [entry.text for entry in lasting])
        rows = [_row(entry, vector, now) for entry, vector in zip(lasting, vectors, strict=True)]
        plane, collection = await self._opened(), collection_name(name)
        with translated():
            try:
                await plane.upsert(tenant, collection, rows, "durable")
            except NotFound:
                with contextlib.suppress(AlreadyExists):  # another run was faster
                    await plane.create_collection(tenant, collection, CollectionSpec(dimensions=int(vectors.shape[1])))
                await plane.upsert(tenant, collection, rows, "durable")

    async def search(self, tenant: str, name: str, wanted: Wanted) -> Findings:
        """What is nearest by vectors and by words, within `within_s` seconds; what is not ready by then is left out.

        An embedding model that takes too long leaves the words. Raises DataUnavailable where there was no time at all.
        """
        ends_at = time.monotonic() + wanted.within_s
        try:
            async with asyncio.timeout(wanted.within_s):
                vector, why = await self._query_vector(tenant, wanted)
                plane = await self._opened()
                query = SearchQuery(
                    vector=vector,
                    text=wanted.text[:QUERY_CHARS],
                    k=wanted.most,
                    filter=_unsaid(wanted.said),
                    deadline_s=max(0.0, ends_at - time.monotonic()),
                )
                with translated():
                    found = await plane.search(tenant, collection_name(name), query)
        except TimeoutError as error:
            said = f"the memory was not searched within {1000 * wanted.within_s:.0f} ms"
            raise DataUnavailable(said, retry_after_s=1.0) from error
        except NotStored:  # nothing was remembered yet
            return Findings()
        return _findings(found, why)

    async def forget(self, tenant: str, name: str, memory_id: str) -> bool:
        """Remove a memory; False if there is none of that id."""
        plane = await self._opened()
        try:
            with translated():
                return await plane.delete(tenant, collection_name(name), [memory_id], "durable") > 0
        except NotStored:
            return False

    async def _query_vector(self, tenant: str, wanted: Wanted) -> tuple[Any, str]:
        """The query's vector, or None and why there is none."""
        within_s = _EMBED_SHARE * wanted.within_s
        try:
            async with asyncio.timeout(within_s):
                vectors = await self._embed(tenant, [wanted.text[:QUERY_CHARS]], False)
        except (AgentFlowError, TimeoutError) as error:
            slow = f"the embedding model took over {1000 * within_s:.0f} ms"
            return None, f"searched by words alone: {str(error) or slow}"
        return vectors[0], ""

    async def _vectors(self, tenant: str, texts: list[str]) -> Any:
        """Of texts that are to be found. Of one that the model does not take, that of its beginning."""
        for _ in range(_HALVINGS):
            try:
                return await self._embed(tenant, texts, True)
            except ContextLengthExceeded:
                half = max(map(len, texts)) // 2
                texts = [text[:half] for text in texts]
        return await self._embed(tenant, texts, True)

    async def _opened(self) -> DataPlane:
        """The data plane. Who has no time to wait for it leaves, and its opening goes on."""
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(_failed)
        return await asyncio.shield(self._opening)

    async def _open(self) -> DataPlane:
        return await self._plane()


def collection_name(name: str) -> str:
    """What the collection of a memory is called."""
    return f"memory/{name}"


def fingerprint(text: str) -> str:
    """Stands for what a user said, so that a conversation is not reminded of itself."""
    return hashlib.sha256(text.strip().encode(errors="replace")).hexdigest()[:16]


def memory_id(run_id: str, kind: Kind, text: str) -> str:
    """The id of what a run remembers: the same for the same text."""
    digest = hashlib.sha256(f"{run_id}\n{kind}\n{text}".encode(errors="replace"))
    return f"m_{digest.hexdigest()[:16]}"


def _row(entry: Entry, vector: Any, now: int) -> Row:
    attributes: dict[str, str | float | bool] = {
        "kind": entry.kind,
        "agent": entry.agent,
        "run": entry.run_id,
        "at": entry.at,
    }
    if entry.said:
        attributes["said"] = entry.said
    ttl_s = None if entry.until is None else (entry.until - now) / 1000
    return Row(id=entry.id, vector=vector, text=entry.text, attributes=attributes, ttl_s=ttl_s)


def _unsaid(said: Sequence[str]) -> Filter | None:
    return parse_filter({"type": "nin", "key": "said", "value": list(said[-MOST_SAID:])}) if said else None


def _findings(found: SearchResult, why: str) -> Findings:
    if not found.complete:
        why = "; ".join(filter(None, (why, "what was not ready in time was left out")))
    memories = tuple(_memory(hit) for hit in found.hits)
    return Findings(memories=memories, tiers=found.tiers, complete=not why, why=why)


def _memory(hit: Hit) -> Memory:
    at = hit.attributes.get("at", 0)
    return Memory(
        id=hit.id,
        kind=str(hit.attributes.get("kind", "")),
        text=hit.text or "",
        at=int(at) if isinstance(at, int | float) else 0,
    )


def _failed(task: asyncio.Task[DataPlane]) -> bool:
    return task.cancelled() or task.exception() is not None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
