"""Rows between the values that callers have and what is stored: a batch to insert, and rows that were asked for by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dataplane import clock, keys
from dataplane.collection import Collection, RowBatch
from dataplane.errors import DimensionMismatch, InvalidInput
from dataplane.filters import check_attributes
from dataplane.records import RowRecord, decode
from dataplane.rows import MAX_TEXT_BYTES, Row, StoredRow


def row_batch(collection: Collection, rows: Sequence[Row], at: int, now: int) -> RowBatch:
    """`rows` as they are stored; of two with the same id the later counts. `at` is the first one's place in the call.

    Raises InvalidInput.
    """
    distinct = {row.id: (at + number, row) for number, row in enumerate(rows)}
    for number, row in distinct.values():
        keys.name(row.id)
        check_attributes(row.attributes, param=f"rows[{number}].attributes")
        if row.text is not None and len(row.text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise InvalidInput(f"a row's text has at most {MAX_TEXT_BYTES} bytes.", param=f"rows[{number}].text")
        if row.vector.shape != (collection.dimensions,):
            raise DimensionMismatch(
                f"{collection.name} takes vectors of {collection.dimensions} dimensions; this one has shape "
                f"{row.vector.shape}.",
                param=f"rows[{number}].vector",
            )
    kept = [row for _, row in distinct.values()]
    return RowBatch(
        [row.id for row in kept],
        _vectors(collection, kept),
        [row.text for row in kept],
        [row.attributes for row in kept],
        [None if row.ttl_s is None else now + int(row.ttl_s * 1000) for row in kept],
    )


def _vectors(collection: Collection, rows: Sequence[Row]) -> NDArray[np.float32]:
    """The vectors of rows as they are stored, shape [n, dimensions]. Raises InvalidInput."""
    if len(rows) == 1:
        return collection.ready_one(rows[0].vector).reshape(1, -1)
    return collection.ready(np.stack([row.vector for row in rows]), "rows")


def stored_rows(collection: Collection, wanted: Sequence[bytes], vectors: bool) -> list[StoredRow | None]:
    """What is stored under keys of the family index, in their order; None for what is not there, or has expired."""
    numbers = collection.rocks.get_many("index", wanted)
    found = [None if number is None else collection.scope + number for number in numbers]
    there = [key for key in found if key is not None]
    stored = dict(zip(there, collection.rocks.get_many("rows", there), strict=True))
    content = dict(zip(there, collection.rocks.get_many("vectors", there), strict=True)) if vectors else {}
    now = clock.now_ms()
    rows: list[StoredRow | None] = []
    for key in found:
        value = None if key is None else stored[key]
        record = None if value is None else decode(RowRecord, value)
        if key is None or record is None or (record.expires_ms is not None and record.expires_ms <= now):
            rows.append(None)
            continue
        vector = content.get(key)
        rows.append(
            StoredRow(
                id=record.id,
                text=record.text,
                attributes=record.attributes,
                created_ms=record.created_ms,
                expires_ms=record.expires_ms,
                vector=None if vector is None else np.frombuffer(vector, "<f4").astype(np.float32),
            )
        )
    return rows
