"""What the library stores of files and vector stores: one record each, in the data plane's state store.

    kind          name                   value
    tenant        <tenant>               empty; under the tenant HOUSE, which no key can have
    file          <file id>              FileRecord
    store         <store id>             StoreRecord
    store_file    <store id>/<file id>   EntryRecord
    batch         <store id>/<batch id>  BatchRecord

Records are JSON. A reader ignores fields that it does not know, and what is added later has a default.

`due` is work that has been promised and is not done: it is written before the work begins and taken back after it has
ended, so whoever reads the records after a crash knows what to take up again. All of it can be done twice.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.embedderid import EmbedderId
from agentflow.library.refusals import DataDamaged
from agentflow.library.values import Attribute, FileError, FileStatus
from dataplane import StateStore

HOUSE: Final = "/library"
"""Whose records say which tenants there are. Keys' tenants have no slash."""

EntryWork = Literal["", "ingest", "rewrite", "clear", "remove"]
StoreWork = Literal["", "expire", "remove"]
_PAGE = 1000

T = TypeVar("T", bound=Struct)


class FileRecord(Struct, frozen=True, kw_only=True):
    """An uploaded file. Times of all records are milliseconds since 1970, UTC. `sha256` None: an older record."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int | None = None
    sha256: str | None = None


class StoreRecord(Struct, frozen=True, kw_only=True):
    """A vector store. Its rows lie in the data plane's collection of the same name, which the first row makes.

    `embedder` names the model that its vectors are of, `fingerprint` tells which of that name (empty: it was not known).
    """

    id: str
    name: str | None
    created_ms: int
    embedder: str
    last_active_ms: int
    fingerprint: str = ""
    metadata: dict[str, str] = {}
    expires_after_days: int | None = None
    expired: bool = False
    due: StoreWork = ""

    @property
    def made_with(self) -> EmbedderId:
        """Whose the vectors are."""
        return EmbedderId(model=self.embedder, fingerprint=self.fingerprint)


class EntryRecord(Struct, frozen=True, kw_only=True):
    """A file in a vector store. `serial` is another one each time that it is attached; `place` is the first of them.

    Its rows are `<file id>#0`, `#1` and so on, without a gap: they are added at the end and removed from there. `rows` is how
    many were put in; of these some may have been erased (erased.py).
    """

    file_id: str
    created_ms: int
    serial: str
    place: str
    status: FileStatus = "in_progress"
    due: EntryWork = "ingest"
    error: FileError | None = None
    rows: int = 0
    usage_bytes: int = 0
    attributes: dict[str, Attribute] = {}
    chunking: ChunkingStrategy | None = None
    batch_id: str | None = None


class BatchRecord(Struct, frozen=True, kw_only=True):
    """Files that were attached together. Those of them count whose entries name this batch."""

    id: str
    created_ms: int
    file_ids: tuple[str, ...]
    cancelled: bool = False


class Records:
    """Reads and writes records. What `put` and `delete` have done is durable."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def put(self, tenant: str, kind: str, name: str, record: Struct | None) -> None:
        """Set a record. Raises the data plane's errors."""
        await self._state.put(tenant, kind, name, b"" if record is None else msgspec.json.encode(record))

    async def has(self, tenant: str, kind: str, name: str) -> bool:
        """Whether a record is stored, durably or not."""
        return await self._state.get(tenant, kind, name) is not None

    async def delete(self, tenant: str, kind: str, name: str) -> None:
        """Remove a record, if it is there."""
        await self._state.delete(tenant, kind, name)

    async def tenants(self) -> list[str]:
        """Everybody who has ever stored something."""
        return [name for name, _ in await self._pairs(HOUSE, "tenant")]

    async def all(self, tenant: str, kind: str, type_: type[T]) -> list[tuple[str, T]]:
        """Every record of a kind, by name. Raises DataDamaged for one that cannot be read."""
        found: list[tuple[str, T]] = []
        for name, value in await self._pairs(tenant, kind):
            try:
                found.append((name, msgspec.json.decode(value, type=type_)))
            except msgspec.DecodeError as error:
                raise DataDamaged(f"the {kind} record {name!r} cannot be read: restore it from a backup.") from error
        return found

    async def _pairs(self, tenant: str, kind: str) -> list[tuple[str, bytes]]:
        pairs: list[tuple[str, bytes]] = []
        after = None
        while page := await self._state.scan(tenant, kind, after=after, limit=_PAGE):
            pairs.extend((name, found.value) for name, found in page)
            after = page[-1][0]
        return pairs
