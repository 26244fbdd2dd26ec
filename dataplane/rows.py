"""What goes into a collection and what comes out of a search: frozen values, the data plane's own words."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from dataplane.filters import Attribute, Filter

Metric = Literal["cosine", "dot", "l2"]
Tier = Literal["hot", "warm", "cold"]
Vector = NDArray[np.float32]
MAX_DIMENSIONS = 8192
MAX_TEXT_BYTES = 1 << 20
MAX_K = 1000


class CollectionSpec(Struct, frozen=True, kw_only=True):
    """What a collection is made with. `text`: whether texts are indexed for full-text search."""

    dimensions: Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)]
    metric: Metric = "cosine"
    text: bool = True


class Row(Struct, frozen=True, kw_only=True):
    """A row to store. `vector`: shape [dimensions]; `ttl_s`: seconds after which it is gone, None: never."""

    id: str
    vector: Vector
    text: str | None = None
    attributes: dict[str, Attribute] = {}
    ttl_s: float | None = None


class StoredRow(Struct, frozen=True, kw_only=True):
    """A row as it is stored. Times are milliseconds since 1970, UTC."""

    id: str
    text: str | None
    attributes: dict[str, Attribute]
    created_ms: int
    expires_ms: int | None
    vector: Vector | None = None


class SearchQuery(Struct, frozen=True, kw_only=True):
    """What is looked for: a vector, shape [dimensions], a text, or both (fused by rank).

    `exact`: every row is compared, wherever it is. `fetch`: whether texts and attributes come with the hits.
    `deadline_s`: how long the search may wait for data that is not hot; what was not read by then makes the answer incomplete.
    """

    vector: Vector | None = None
    text: str | None = None
    k: Annotated[int, Meta(ge=1, le=MAX_K)] = 10
    filter: Filter | None = None
    exact: bool = False
    fetch: bool = True
    deadline_s: float = 5.0


class Hit(Struct, frozen=True, kw_only=True):
    """A row that was found. Scores: higher is better; cosine, inner product, minus the squared distance, or fused (0 to 1)."""

    id: str
    score: float
    tier: Tier
    text: str | None = None
    attributes: dict[str, Attribute] = {}


class SearchResult(Struct, frozen=True, kw_only=True):
    """The best rows, best first; the tiers that were searched; whether that was all; and what it cost."""

    hits: tuple[Hit, ...]
    tiers: tuple[Tier, ...]
    complete: bool
    warm_rows_read: int = 0
    took_ms: float = 0.0


class Location(Struct, frozen=True, kw_only=True):
    """Where the answer to a query lies: of the rows that are probably the best, how many are hot and how many are on the disk.

    `warm_bytes`: what a search has to read for it; with prewarming, it is being read now.
    """

    hot_rows: int
    warm_rows: int
    warm_groups: int
    warm_bytes: int
