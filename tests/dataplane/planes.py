"""Data planes for tests: small collections of vectors that are close enough to each other to be hard to tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dataplane.config import DataPlaneConfig
from dataplane.rows import CollectionSpec, Metric, Row, SearchQuery, SearchResult
from dataplane.store import DataPlane

TENANT = "acme"
NAME = "notes"
DIMENSIONS = 48


def config(folder: Path, memory_mb: int = 64) -> DataPlaneConfig:
    return DataPlaneConfig(path=str(folder), hot_layer_mem_mb=memory_mb)


def vectors(count: int, seed: int = 0, dimensions: int = DIMENSIONS) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Texts' embeddings in small: a few topics, and much that all have in common."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(1).standard_normal((40, dimensions))
    mixed = topics[rng.integers(0, 40, count)] + 0.9 * rng.standard_normal((count, dimensions)) + 0.5
    found: np.ndarray[Any, np.dtype[np.float32]] = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(
        np.float32
    )
    return found


def rows(stored: np.ndarray[Any, Any], start: int = 0) -> list[Row]:
    return [
        Row(id=f"r{number}", vector=vector, text=f"note {number} word{number % 50}", attributes={"n": number % 20})
        for number, vector in enumerate(stored, start)
    ]


async def filled(plane: DataPlane, stored: np.ndarray[Any, Any], *, metric: Metric = "cosine") -> None:
    """A collection with `stored` as rows r0, r1, ..."""
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=stored.shape[1], metric=metric))
    await plane.upsert(TENANT, NAME, rows(stored))


def exact(
    stored: np.ndarray[Any, Any], query: np.ndarray[Any, Any], k: int = 10, metric: Metric = "cosine"
) -> list[str]:
    """The ids of the true nearest, best first."""
    scores = -((stored - query) ** 2).sum(axis=1) if metric == "l2" else stored @ query
    return [f"r{number}" for number in np.argsort(-scores, kind="stable")[:k]]


async def recall(
    plane: DataPlane, stored: np.ndarray[Any, Any], queries: Any, *, alive: Any = None, **options: Any
) -> tuple[float, list[SearchResult]]:
    """Recall@10 over all queries, and the results. `alive`: which of `stored` are there, shape [n]."""
    found, results = 0, []
    for query in queries:
        scores = stored @ query
        if alive is not None:
            scores = np.where(alive, scores, -np.inf)
        wanted = {f"r{number}" for number in np.argsort(-scores)[:10]}
        result = await plane.search(TENANT, NAME, SearchQuery(vector=query, **options))
        results.append(result)
        found += len(wanted & {hit.id for hit in result.hits})
    return found / (10 * len(queries)), results


def only(plane: DataPlane) -> Any:
    """The status of the one collection."""
    (status,) = plane.status().collections
    return status
