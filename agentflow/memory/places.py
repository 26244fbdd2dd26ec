"""Places: in which collection a memory lies, and of which embedding model its vectors are. Records in the state store.

    kind     name       value
    memory   <memory>   Place, as JSON

A memory is first in the collection `memory/<memory>`. When its vectors are made anew for another model, they are made in a
collection of their own, `memory/<memory>@<digest of the model>`, and the record then names that one: in one step. A memory
without a record is from before there were any: it lies in the first collection, and its vectors are taken for the served model's.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agentflow.library.embedderid import EmbedderId
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged, DataUnavailable

if TYPE_CHECKING:
    from dataplane import StateStore

KIND: Final = "memory"
RETRY_S: Final = 5.0


class MemoryStale(DataUnavailable):
    """A memory's vectors are of another embedding model than the one that is served: they are being made anew."""

    def __init__(self, memory: str, place: Place, embedder: EmbedderId) -> None:
        self.memory = memory
        were = "another embedding model" if place.embedder is None else f"the embedding model {place.embedder}"
        super().__init__(
            f"the memory's vectors are of {were}, and are being made anew for {embedder}", retry_after_s=RETRY_S
        )


class Place(Struct, frozen=True, kw_only=True):
    """Where a memory lies. `embedder` None: it is not known whose vectors they are.

    `knows_chinese`: whether that model knows Chinese (scripts.py); None: not measured, as there was no such text.
    """

    collection: str
    embedder: EmbedderId | None = None
    knows_chinese: bool | None = None

    def fits(self, embedder: EmbedderId) -> bool:
        """Whether the vectors are of this model, for all that is known."""
        return self.embedder is None or self.embedder.same(embedder)


class Places:
    """All methods raise Refused and DataDamaged; what they have done is durable."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def of(self, tenant: str, name: str) -> Place:
        """Where a memory lies, or would lie."""
        with translated():
            found = await self._state.get(tenant, KIND, name)
        if found is None:
            return Place(collection=collection_name(name))
        try:
            return msgspec.json.decode(found.value, type=Place)
        except msgspec.DecodeError as error:
            raise DataDamaged(f"where the memory {name!r} lies cannot be read: restore it from a backup.") from error

    async def put(self, tenant: str, name: str, place: Place) -> None:
        """From here on a memory lies there."""
        with translated():
            await self._state.put(tenant, KIND, name, msgspec.json.encode(place))


def collection_name(name: str) -> str:
    """What the first collection of a memory is called."""
    return f"memory/{name}"


def renewed_name(name: str, embedder: EmbedderId, width: int) -> str:
    """What the collection of a memory is called whose vectors were made anew."""
    digest = hashlib.sha256(f"{embedder.fingerprint or embedder.model}\n{width}".encode(errors="replace"))
    return f"{collection_name(name)}@{digest.hexdigest()[:12]}"


def is_of(collection: str, name: str) -> bool:
    """Whether a collection is one of a memory's."""
    first = collection_name(name)
    return collection == first or collection.startswith(f"{first}@")
