"""A search of a vector store: embed the queries, ask the data plane, say how well each chunk fits.

Score: from 0 to 1; results come in its order, so a threshold cuts them from the end. It is one of two things:

    ranker none    the cosine of the chunk's vector and the query's, and 0 where it is negative: how near it is
    else           the data plane's fusion (fusion.py) of the ranking by vectors and the one by full text: how high it is. A chunk
                   that both have first has 1, one that is first in one and not in the other 0.5, and number n of a ranking
                   has 61 / (60 + n) of that ranking's half.

A fused score does not say how near a chunk is: the first of a store has 0.5 for any query. Whoever wants only what is near
asks for the ranker `none`. Only the first places of a ranking count (four times FEWEST, or four times the results that are
wanted). A chunk that several queries find counts where it is best.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from agentflow.errors import ContextLengthExceeded, InvalidRequest
from agentflow.library.embedder import Embedder
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import NotStored
from agentflow.library.shelf import Shelf, StoreShelf
from agentflow.library.values import SearchHit, SearchRequest
from dataplane import DataPlane, Filter, SearchQuery, StoredRow, parse_filter

MOST_RESULTS: Final = 50
MOST_QUERIES: Final = 16
FEWEST: Final = 10
"""So many rows are asked for at least, so that scores hardly depend on how many results are wanted."""


async def search(
    plane: DataPlane, embedder: Embedder, shelf: Shelf, store: StoreShelf, request: SearchRequest
) -> tuple[SearchHit, ...]:
    """See Library.search."""
    filter_ = _checked(request)
    vectors = await _vectors(embedder, shelf.tenant, request)
    try:
        with translated():
            ranked = await _ranked(plane, (shelf.tenant, store.record.id), request, vectors, filter_)
    except NotStored:  # no row has been stored yet, or the store has gone meanwhile
        return ()
    ids = [id_ for id_, score in ranked.items() if score >= request.score_threshold and _is_shown(store, id_)]
    hits: list[SearchHit] = []
    wanted = request.max_num_results
    while ids and len(hits) < wanted:
        part, ids = ids[:wanted], ids[wanted:]
        with translated():
            rows = await plane.get(shelf.tenant, store.record.id, part)
        hits.extend(_hits(shelf, store, [row for row in rows if row is not None], ranked))
    return tuple(hits[:wanted])


def _checked(request: SearchRequest) -> Filter | None:
    """The parsed filter of a request that is right."""
    if not 1 <= len(request.queries) <= MOST_QUERIES:
        raise InvalidRequest(f"query must be a text, or a list of 1 to {MOST_QUERIES} texts.", param="query")
    for query in request.queries:
        if not query.strip():
            raise InvalidRequest("query must have words to look for.", param="query")
    if not 1 <= request.max_num_results <= MOST_RESULTS:
        raise InvalidRequest(
            f"max_num_results must be from 1 to {MOST_RESULTS}, not {request.max_num_results}.", param="max_num_results"
        )
    if not 0 <= request.score_threshold <= 1:
        raise InvalidRequest(
            f"score_threshold must be from 0 to 1, not {request.score_threshold}.",
            param="ranking_options.score_threshold",
        )
    with translated():
        return None if request.filters is None else parse_filter(request.filters)


async def _vectors(embedder: Embedder, tenant: str, request: SearchRequest) -> Any:
    """Of the queries: float32, shape [queries, dimensions], each of length 1."""
    try:
        vectors = await embedder.embed(tenant, request.queries, background=False, deadline_s=request.deadline_s)
    except ContextLengthExceeded as error:
        raise ContextLengthExceeded(str(error), param="query") from error
    except InvalidRequest as error:
        raise InvalidRequest(str(error), param="query", code=error.code) from error
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))


async def _ranked(
    plane: DataPlane, collection: tuple[str, str], request: SearchRequest, vectors: Any, filter_: Filter | None
) -> dict[str, float]:
    """Ids of rows with their scores, best first."""
    k = max(FEWEST, request.max_num_results)
    fused = request.ranker != "none"
    queries = [
        SearchQuery(vector=vector, text=text if fused else None, k=k, filter=filter_, fetch=False)
        for text, vector in zip(request.queries, vectors, strict=True)
    ]
    found = await asyncio.gather(*(plane.search(*collection, query) for query in queries))
    best: dict[str, float] = {}
    for hit in (hit for result in found for hit in result.hits):
        best[hit.id] = max(min(1.0, hit.score), best.get(hit.id, 0.0))  # rounding may pass 1
    return dict(sorted(best.items(), key=lambda pair: -pair[1]))


def _is_shown(store: StoreShelf, row_id: str) -> bool:
    """Whether the file of a row is in the store, and not about to go."""
    entry = store.entries.get(_file_id(row_id))
    return entry is not None and entry.status in ("completed", "in_progress") and entry.due != "remove"


def _hits(shelf: Shelf, store: StoreShelf, rows: Sequence[StoredRow], scores: Mapping[str, float]) -> list[SearchHit]:
    """The rows of files that are still there, with their scores."""
    hits: list[SearchHit] = []
    for row in rows:
        entry, file = store.entries.get(_file_id(row.id)), shelf.files.get(_file_id(row.id))
        if entry is None or file is None:
            continue
        hits.append(
            SearchHit(
                file_id=file.id,
                filename=file.filename,
                score=scores[row.id],
                attributes=entry.attributes,
                text=row.text or "",
            )
        )
    return hits


def _file_id(row_id: str) -> str:
    return row_id.rpartition("#")[0]
