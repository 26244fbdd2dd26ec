"""One file into one vector store: read -> cut -> embed -> rows, a batch at a time.

A form feed, which tells the pages of a PDF apart, is a border for the cut and a line end in what is stored.

Texts are cut in a thread while the last batch is embedded elsewhere, and a batch is small, so that chats and other
people's embeddings have their turn between two. Rows get the same ids each time, so this can be done again from the
beginning; rows of an earlier run that are too many are cut off at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct

from agentflow.library.chunking import Chunk, ChunkingStrategy, chunks
from agentflow.library.chunkrows import ChunkRows
from agentflow.library.embedder import Embedder
from agentflow.library.extraction import Extractor
from agentflow.library.patience import patiently
from agentflow.library.records import EntryRecord


class Source(Struct, frozen=True):
    """A file to put in: its owner, the path of its bytes, and the name that its owner gave it."""

    tenant: str
    path: Path
    filename: str


class Filled(Struct, frozen=True):
    """What was put in: rows, and the bytes of their texts and vectors."""

    rows: int
    usage_bytes: int


class Ingest:
    """Puts files in. `batch`: chunks that are embedded at once; `threads`: where texts are cut."""

    def __init__(self, embedder: Embedder, extractor: Extractor, batch: int, threads: Executor) -> None:
        self.embedder = embedder
        self._extractor = extractor
        self._batch = batch
        self._threads = threads

    async def fill(self, source: Source, entry: EntryRecord, rows: ChunkRows) -> Filled:
        """Make the rows of a file, as its entry says. What is refused for now is waited for.

        Raises FileRefused, ExtractionFailed, InvalidRequest, EngineFailure, DataDamaged.
        """
        extracted = await self._extractor.extract(source.path, source.filename)
        most = await patiently(self._max_tokens)
        cut = chunks(extracted.text, self.embedder.spans, entry.chunking or ChunkingStrategy(), most)
        count = size = 0
        while texts := await self._next(cut):
            vectors = await patiently(partial(self.embedder.embed, source.tenant, texts, background=True))
            await patiently(partial(rows.add, entry.file_id, count, texts, vectors, entry.attributes))
            count += len(texts)
            size += sum(len(text.encode()) for text in texts) + int(vectors.nbytes)
        await patiently(partial(rows.cut, entry.file_id, count))
        return Filled(count, size)

    async def _max_tokens(self) -> int:
        return self.embedder.max_tokens()

    async def _next(self, cut: Iterator[Chunk]) -> list[str]:
        """The texts of the next batch. Cancelled, it still waits for the thread, which has the iterator."""

        def take() -> list[str]:
            return [chunk.text.replace("\f", "\n") for chunk in islice(cut, self._batch)]

        job = asyncio.get_running_loop().run_in_executor(self._threads, take)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])
            raise
