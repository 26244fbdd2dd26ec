"""Libraries for tests: the real data plane in a folder, the real extractor, and the scripted embedder behind the real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Script
from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.library.config import LibraryConfig
from agentflow.library.embedder import Embedder
from agentflow.library.embedderid import EmbedderId
from agentflow.library.extraction import Extractor
from agentflow.library.library import Library
from agentflow.library.prompts import Prompts
from agentflow.library.values import Attachment, FileCounts, FileObject, NewStore, SearchHit, SearchRequest, StoreFile
from agentflow.run import Run
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer
from dataplane import DataPlane, DataPlaneConfig, StateStore

TENANT = "acme"
MODEL = "bytes-embed"
PATIENCE_S = 60.0


class Desk:
    """A library with what it stands on, and short words for what tests do."""

    def __init__(self, library: Library, plane: DataPlane, state: StateStore, folder: Path, ended: list[Run]) -> None:
        self.library = library
        self.plane = plane
        self.state = state
        self.folder = folder
        self.ended = ended

    async def upload(
        self, content: str | bytes, filename: str = "notes.md", tenant: str = TENANT, **more: Any
    ) -> FileObject:
        """A file."""
        path = self.library.new_upload(tenant)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return await self.library.create_file(tenant, path, filename, more.pop("purpose", "assistants"), **more)

    async def store(self, *file_ids: str, tenant: str = TENANT, **more: Any) -> str:
        """The id of a store into which the files have been put."""
        store = await self.library.create_store(tenant, NewStore(file_ids=file_ids, **more))
        await self.idle()
        return store.id

    async def attach(self, store_id: str, file_id: str, tenant: str = TENANT, **more: Any) -> StoreFile:
        """A file that has been put into a store."""
        await self.library.attach(tenant, store_id, Attachment(file_id=file_id, **more))
        await self.idle()
        return await self.library.store_file(tenant, store_id, file_id)

    async def idle(self) -> None:
        """Wait until all background work is done."""
        async with asyncio.timeout(PATIENCE_S):
            while self.library.backlog:
                await asyncio.sleep(0.005)

    async def search(self, store_id: str, *queries: str, tenant: str = TENANT, **more: Any) -> tuple[SearchHit, ...]:
        """What is found."""
        return await self.library.search(tenant, store_id, SearchRequest(queries=queries, **more))

    async def counts(self, store_id: str, tenant: str = TENANT) -> FileCounts:
        """A store's files by state."""
        return (await self.library.store(tenant, store_id)).file_counts

    def rows(self, store_id: str) -> int:
        """How many rows the data plane has of a store."""
        found = [one.rows for one in self.plane.status().collections if one.name == store_id]
        return found[0] if found else 0


@asynccontextmanager
async def opened(
    folder: Path,
    script: Script | None = None,
    model: str = MODEL,
    prompts: Prompts | None = None,
    *,
    within: str = "",
    fingerprint: str = "",
    **config: Any,
) -> AsyncIterator[Desk]:
    """A library in `folder`, or `within` it, closed at the end, whatever it was doing. Its data plane is in `plane`."""
    ended: list[Run] = []
    service = _service(script, model, ended)
    extractor = Extractor()
    plane = await DataPlane.open(DataPlaneConfig(hot_layer_mem_mb=64), folder / "plane")
    state = StateStore(plane.rocks, plane.writer)
    id_ = EmbedderId(model=model, fingerprint=fingerprint)
    embedder = Embedder(service, id_, ByteTokenizer().spans, special_tokens=0, prompts=prompts)
    try:
        library = await Library.open(plane, state, folder / within, embedder, extractor, LibraryConfig(**config))
        async with asyncio.TaskGroup() as tasks:
            await service.start(tasks)
            try:
                await library.start(tasks)
                yield Desk(library, plane, state, folder, ended)
            finally:
                await library.close()
                await service.stop(1.0)
    finally:
        await asyncio.to_thread(extractor.close)
        await plane.close()


def _service(script: Script | None, model: str, ended: list[Run]) -> Service:
    served = ServedModel(
        model,
        ("embed",),
        "embed",
        ModelConfig(model="scripted"),
        None,
        1,
        ByteTokenizer,
        (lambda: ScriptedEmbedder(script),),
    )
    return Service((served,), SchedulerConfig(restart_backoff_s=0.01, deadline_s=1.0), ended.append)
