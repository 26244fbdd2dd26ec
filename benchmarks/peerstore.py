"""A vector store of others, under the same work: `.venv-bench/bin/python -m benchmarks.peerstore NAME ...`.

It runs as a process of its own and times itself, so that nothing but the store's own client is in the figures. It answers
commands (see commands.py):

    {"do": "fill", "rows": N}                    -> {"fill_s": ...}
    {"do": "search", "start": A, "stop": B}      -> {"search_s": [...], "found": [[row, ...], ...]}
    {"do": "insert", "start": A, "stop": B}      -> {"insert_s": [...], "visible_s": [...]}

Rows and queries are positions in the file of vectors. `insert_s` is what the call took; `visible_s` is the time from the
call to the start of the first search that found the row, so the search itself is not counted.

Each store is set up as its documentation advises for this size: Chroma by its server and HTTP client with its defaults;
Qdrant's local mode as it is (it scans); LanceDB without an index (advised up to about 100,000 rows). Telemetry is off.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.commands import answer_commands

K = 10
FILL = 1000  # rows a call while filling
VISIBLE_WITHIN_S = 10.0


class Store(Protocol):
    """A collection of vectors with a text each, by inner product of vectors of length 1."""

    def insert(self, first: int, vectors: np.ndarray, texts: list[str]) -> None:
        """Insert rows `first`, `first` + 1, ..."""

    def search(self, query: np.ndarray) -> list[int]:
        """The K nearest rows, best first."""


class Chroma:
    """Chroma's server on the loopback; `benchmarks.vectorpeers` starts it."""

    def __init__(self, _: Path, port: int) -> None:
        import chromadb  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only

        client = chromadb.HttpClient("127.0.0.1", port, settings=chromadb.Settings(anonymized_telemetry=False))
        self.rows = client.create_collection(
            "rows", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )

    def insert(self, first: int, vectors: np.ndarray, texts: list[str]) -> None:
        self.rows.add(ids=[str(first + at) for at in range(len(texts))], embeddings=vectors, documents=texts)

    def search(self, query: np.ndarray) -> list[int]:
        answer = self.rows.query(query_embeddings=query[None], n_results=K, include=["distances"])
        return [int(row) for row in answer["ids"][0]]


class Qdrant:
    """Qdrant's local mode, on the disk."""

    def __init__(self, folder: Path, _: int) -> None:
        from qdrant_client import QdrantClient, models  # type: ignore[import-not-found, unused-ignore]

        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        self.models = models
        self.client = QdrantClient(path=str(folder / "qdrant"))
        params = models.VectorParams(size=256, distance=models.Distance.COSINE)
        self.client.create_collection("rows", vectors_config=params)

    def insert(self, first: int, vectors: np.ndarray, texts: list[str]) -> None:
        ids = list(range(first, first + len(texts)))
        payloads = [{"text": text} for text in texts]
        self.client.upsert("rows", self.models.Batch(ids=ids, vectors=vectors.tolist(), payloads=payloads))

    def search(self, query: np.ndarray) -> list[int]:
        answer = self.client.query_points("rows", query=query.tolist(), limit=K, with_payload=False)
        return [int(point.id) for point in answer.points]


class Lance:
    """LanceDB, embedded."""

    def __init__(self, folder: Path, _: int) -> None:
        import lancedb  # type: ignore[import-not-found, unused-ignore]
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

        self.arrow = pa
        self.database = lancedb.connect(str(folder / "lance"))
        self.rows: Any = None

    def insert(self, first: int, vectors: np.ndarray, texts: list[str]) -> None:
        flat = self.arrow.array(vectors.reshape(-1))
        columns = {
            "id": self.arrow.array(range(first, first + len(texts))),
            "text": self.arrow.array(texts),
            "vector": self.arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
        if self.rows is None:
            self.rows = self.database.create_table("rows", self.arrow.table(columns))
        else:
            self.rows.add(self.arrow.table(columns))

    def search(self, query: np.ndarray) -> list[int]:
        answer = self.rows.search(query).distance_type("cosine").select(["id", "_distance"]).limit(K).to_list()
        return [int(row["id"]) for row in answer]


STORES: dict[str, Callable[[Path, int], Store]] = {"chroma": Chroma, "qdrant": Qdrant, "lancedb": Lance}


class Session:
    """One store, and the commands on it."""

    def __init__(self, store: Store, vectors: np.ndarray, texts: list[str]) -> None:
        self.store = store
        self.vectors = vectors
        self.texts = texts

    def fill(self, rows: int) -> dict[str, object]:
        """Insert the first `rows`."""
        began = time.perf_counter()
        for at in range(0, rows, FILL):
            stop = min(at + FILL, rows)
            self.store.insert(at, np.ascontiguousarray(self.vectors[at:stop]), self.texts[at:stop])
        return {"fill_s": time.perf_counter() - began}

    def search(self, start: int, stop: int) -> dict[str, object]:
        """Ask with each, one after another."""
        took: list[float] = []
        found: list[list[int]] = []
        for query in np.array(self.vectors[start:stop]):
            began = time.perf_counter()
            found.append(self.store.search(query))
            took.append(time.perf_counter() - began)
        return {"search_s": took, "found": found}

    def insert(self, start: int, stop: int) -> dict[str, object]:
        """Insert each, one after another, and wait until a search finds it."""
        inserted: list[float] = []
        visible: list[float] = []
        for row in range(start, stop):
            vector = np.array(self.vectors[row : row + 1])
            began = time.perf_counter()
            self.store.insert(row, vector, [self.texts[row]])
            inserted.append(time.perf_counter() - began)
            while True:
                asked = time.perf_counter() - began
                if row in self.store.search(vector[0]):
                    break
                if asked > VISIBLE_WITHIN_S:
                    raise RuntimeError(f"row {row} is not found {asked:.0f} s after its insert")
            visible.append(asked)
        return {"insert_s": inserted, "visible_s": visible}


def main() -> None:
    """Answer commands until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=STORES)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    vectors = np.load(args.vectors, mmap_mode="r")
    store = STORES[args.name](args.dir, args.port)
    answer_commands(Session(store, vectors, json.loads(args.texts.read_text())))


if __name__ == "__main__":
    main()
