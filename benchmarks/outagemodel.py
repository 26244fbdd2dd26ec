"""What was acknowledged while the S3 server lived, died and came back: the model that everything is compared with. Pure.

A `Book` holds the rows of one collection, numbered 0 to n-1, of which some are not there. A `Diary` holds a tenant's records and
logs. Every cell is changed by one lane alone, which waits for each of its calls: so a row is what its last acknowledged call
made it, and between `begin` and `done` it may be either. For searches that run beside the writers a book tells time: a row
that nobody touched since a moment, and that nobody is changing, was the same all the while (`still`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataplane.rows import Row, StoredRow
from dataplane.state.versioned import Versioned
from dataplane.truth.records import EventRecord

TENANTS = ("north", "south")
NOTES, MARKS = "notes", "marks"
KIND = "run"  # of records
ENDED = 200
CLOSE = 1e-5  # of float32 that were computed in another order

Mask = NDArray[np.bool_]


class Place(NamedTuple):
    """A collection of a tenant."""

    tenant: str
    collection: str


class Book:
    """The rows of one collection. `vectors`: float32, shape [n, dimensions], zeros where no row is."""

    def __init__(self, rows: int, dimensions: int) -> None:
        self.rows: list[Row | None] = [None] * rows
        self.vectors = np.zeros((rows, dimensions), np.float32)
        self.there = np.zeros(rows, np.bool_)
        self.changes = 0  # rows that were inserted, replaced or deleted
        self.time = 0
        self.ended: deque[str] = deque(maxlen=ENDED)  # texts of the latest rows that were deleted or replaced
        self._touched = np.zeros(rows, np.int64)
        self._open = np.zeros(rows, np.bool_)

    @property
    def ids(self) -> list[str]:
        """Of all rows, whether they are there or not."""
        return [f"r{number}" for number in range(len(self.rows))]

    def begin(self, numbers: Sequence[int]) -> None:
        """A call that changes these rows is on its way."""
        self._touch(numbers)
        self._open[numbers] = True

    def done(self, numbers: Sequence[int], rows: Sequence[Row] | None) -> None:
        """It was acknowledged: they are now `rows`; None: they were deleted."""
        self._touch(numbers)
        self._open[numbers] = False
        self.changes += len(numbers) if rows is not None else int(self.there[numbers].sum())
        self.there[numbers] = rows is not None
        for at, number in enumerate(numbers):
            old = self.rows[number]
            if old is not None and old.text is not None:
                self.ended.append(old.text)
            self.rows[number] = None if rows is None else rows[at]
            self.vectors[number] = 0 if rows is None else rows[at].vector

    def _touch(self, numbers: Sequence[int]) -> None:
        self.time += 1
        self._touched[numbers] = self.time

    def still(self, since: int) -> Mask:
        """Which rows were the same from time `since` until now, shape [n]."""
        return (self._touched <= since) & ~self._open

    def wrong(self, number: int, found: StoredRow | None) -> str | None:
        """What is wrong with a row as it was found, vector and all; None: nothing."""
        row = self.rows[number]
        if row is None or found is None:
            if row is None and found is None:
                return None
            return f"r{number} is {'lost' if found is None else 'there, and was deleted'}"
        if (found.id, found.text, found.attributes) != (row.id, row.text, row.attributes):
            return f"r{number} is {found.text!r} {found.attributes}, not {row.text!r} {row.attributes}"
        if (found.expires_ms is None) != (row.ttl_s is None):
            return f"r{number} expires at {found.expires_ms}, and was stored with a time of {row.ttl_s} s"
        if found.vector is None or not np.allclose(found.vector, row.vector, atol=CLOSE):
            return f"r{number} has another vector"
        return None


class Log:
    """An event log: its last number, the first that is kept, and what events hold, which follows from their number."""

    def __init__(self, tenant: str, name: str) -> None:
        self.tenant = tenant
        self.name = name
        self.last, self.first = 0, 1

    def event(self, number: int) -> EventRecord:
        """Event `number`."""
        return EventRecord("token", number, f"{self.tenant} {self.name} {number}".encode())

    def wrong(self, last: int, found: Sequence[tuple[int, EventRecord]]) -> list[str]:
        """What is wrong with a log as it was found."""
        wanted = [(number, self.event(number)) for number in range(self.first, self.last + 1)]
        if (last, list(found)) == (self.last, wanted):
            return []
        return [f"{self.name} of {self.tenant} ends at {last} with {len(found)} events, not at {self.last}"]


class Diary:
    """A tenant's records, by name (version and value), and its logs."""

    def __init__(self, tenant: str, logs: Sequence[str]) -> None:
        self.tenant = tenant
        self.records: dict[str, tuple[int, bytes]] = {}
        self.logs = {name: Log(tenant, name) for name in logs}

    def wrong(self, found: Sequence[tuple[str, Versioned]]) -> list[str]:
        """What is wrong with the records that were found."""
        stored = {name: (record.version, record.value) for name, record in found}
        names = sorted(stored.keys() | self.records.keys())
        wrong = [name for name in names if stored.get(name) != self.records.get(name)]
        problems = [f"record {name} of {self.tenant} is not what was acknowledged" for name in wrong]
        if len(stored) != len(found):
            problems.append(f"records of {self.tenant} came twice")
        return problems


class Model:
    """Everything of all tenants. `calls`: writes that were acknowledged; `refused`: writes that were not."""

    def __init__(self, sizes: dict[str, int], dimensions: int, logs: Sequence[str]) -> None:
        self.books = {Place(tenant, name): Book(size, dimensions) for tenant in TENANTS for name, size in sizes.items()}
        self.diaries = {tenant: Diary(tenant, logs) for tenant in TENANTS}
        self.calls = 0
        self.refused = 0

    @property
    def changes(self) -> int:
        """Rows that were inserted, replaced or deleted."""
        return sum(book.changes for book in self.books.values())

    @property
    def rows(self) -> int:
        """Rows that are there."""
        return sum(int(book.there.sum()) for book in self.books.values())
