"""Rows between the values that callers have and what is stored: a batch to insert, and rows that were asked for by id."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dataplane import clock
from dataplane.collections.changes import RowBatch
from dataplane.collections.collection import Collection
from dataplane.errors import DimensionMismatch, InvalidInput
from dataplane.filters import check_attributes
from dataplane.rows import MAX_TEXT_BYTES, Row, StoredRow
from dataplane.truth import keys
from dataplane.truth.records import RowRecord, decode


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
    """What is stored under keys of the family index, in their order; None for what is not there, or has expired.

    A row may be replaced between the reading of its number and of its content: it is then looked up again.
    """
    rows: list[StoredRow | None] = [None] * len(wanted)
    known: dict[int, bytes] = {}  # numbers that led to nothing the last time
    pending, now = list(range(len(wanted))), clock.now_ms()
    while pending:
        numbers = collection.rocks.get_many("index", [wanted[at] for at in pending])
        found = [(at, number) for at, number in zip(pending, numbers, strict=True) if number is not None]
        places = [collection.scope + number for _, number in found]
        records = collection.rocks.get_many("rows", places)
        content = collection.rocks.get_many("vectors", places) if vectors else [b""] * len(places)
        pending = []
        for (at, number), record, vector in zip(found, records, content, strict=True):
            if (record is None or vector is None) and known.get(at) != number:
                known[at] = number
                pending.append(at)
            elif record is not None:
                rows[at] = _stored_row(decode(RowRecord, record), vector if vectors else None, now)
    return rows


def stored_ids(collection: Collection, after: str | None, limit: int) -> list[str]:
    """The next `limit` ids behind `after` (None: the first ones), in the order of UTF-8; also of rows that have expired."""
    start = b"" if after is None else keys.name(after) + b"\0"
    with contextlib.closing(collection.rocks.scan("index", collection.scope, start=start)) as found:
        return [key[len(collection.scope) :].decode() for key, _ in itertools.islice(found, limit)]


def _stored_row(record: RowRecord, vector: bytes | None, now: int) -> StoredRow | None:
    if record.expires_ms is not None and record.expires_ms <= now:
        return None
    return StoredRow(
        id=record.id,
        text=record.text,
        attributes=record.attributes,
        created_ms=record.created_ms,
        expires_ms=record.expires_ms,
        vector=None if vector is None else np.frombuffer(vector, "<f4").astype(np.float32),
    )
