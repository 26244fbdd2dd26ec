"""What the usual split's tools use: Redis, Chroma's server, the external service and an embedder, metered; in .venv-bench."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.workflowscript import values

FILL: Final = 250  # passages a call


class Meters:
    """Sums by name; see workflowsplit."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.sums[name] += time.perf_counter() - began


class Embedding:
    """Queries and passages to vectors, by ACU's own encoder, which `packages` has what it needs for."""

    def __init__(self, packages: Path, model: Path) -> None:
        sys.path.append(str(packages))
        from agentflow.config import ModelConfig
        from agentflow.engine.encoder import Encoder
        from agentflow.tokenizer import FileTokenizer

        self._tokenizer = FileTokenizer.load(model)
        self._encoder = Encoder(model, ModelConfig(model=str(model)))

    async def start(self) -> None:
        """Load it."""
        await self._encoder.start(lambda _: None)

    async def embed(self, texts: list[str]) -> Any:
        """float32, shape [len(texts), dimensions]."""
        return await self._encoder.embed([self._tokenizer.encode(text, add_special_tokens=True) for text in texts])


class Stores:
    """Redis, Chroma, the external service and the embedder, as tools use them."""

    def __init__(self, args: argparse.Namespace, meters: Meters) -> None:
        import httpx
        import redis.asyncio  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only

        self._args = args
        self._meters = meters
        self._embedding = Embedding(args.packages, args.embedder)
        self.redis = redis.asyncio.Redis(port=args.redis, max_connections=64)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{args.service}", timeout=60)
        self._notes: Any = None

    async def open(self) -> None:
        """Connect, and load the embedder."""
        import chromadb  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only

        settings = chromadb.Settings(anonymized_telemetry=False)
        chroma = await chromadb.AsyncHttpClient("127.0.0.1", self._args.chroma, settings=settings)
        self._notes = await chroma.get_or_create_collection(
            "notes", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )
        await self._embedding.start()

    async def fill(self, texts: list[str]) -> int:
        """What is looked up, and the passages that are searched."""
        await self.redis.mset(values())
        for at in range(0, len(texts), FILL):
            part = texts[at : at + FILL]
            ids = [str(at + number) for number in range(len(part))]
            await self._notes.add(ids=ids, documents=part, embeddings=await self._embedding.embed(part))
        return int(await self._notes.count())

    async def value(self, name: str) -> str:
        """By its key."""
        with self._meters.timed("storage_s"):
            found = await self.redis.get(name)
        return str(found.decode())

    async def nearest(self, query: str, count: int) -> str:
        """A line of JSON for each passage."""
        with self._meters.timed("embed_s"):
            vectors = await self._embedding.embed([query])
        with self._meters.timed("storage_s"):
            found = await self._notes.query(query_embeddings=vectors, n_results=count)
        rows = zip(found["ids"][0], found["documents"][0], found["distances"][0], strict=True)
        lines = [
            {"file_id": row, "filename": f"note-{row}.txt", "score": 1 - far, "text": text} for row, text, far in rows
        ]
        return "\n".join(json.dumps(line) for line in lines)

    async def weather(self, city: str) -> str:
        """What the external service says."""
        answer = await self.http.get(f"/weather/{city}")
        return answer.raise_for_status().text
