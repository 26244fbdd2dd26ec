"""The commands that change collections. Each drafts its part of a batch, and brings memory up to it once that is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dataplane import clock
from dataplane.collections import loading
from dataplane.collections.changes import Change, Ended, RowBatch
from dataplane.collections.collection import Collection
from dataplane.errors import NotFound
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from dataplane.truth.writer import Command, Draft

Rows = NDArray[np.uint64]

WEIGHED_CHARACTERS = 4096  # of text weigh as much as a row, so that the ring is bounded in bytes too


class _Change(Command):
    """A change of one collection."""

    def __init__(self, collection: Collection, now_ms: int) -> None:
        self._collection = collection
        self._now_ms = now_ms
        self._first = 0
        self._last = 0  # of the sequence numbers of this change
        self._ended: list[Ended] = []

    @property
    def _hour(self) -> float:
        return clock.hour(self._now_ms)

    def _check(self) -> None:
        if self._collection.dropped:
            raise NotFound(f"the collection {self._collection.name!r} has been deleted.")

    def _draft_ends(self, draft: Draft, ends: Sequence[tuple[int, int]]) -> None:
        """Rows end: pairs of the change's number and the row's."""
        if not ends:
            return
        collection = self._collection
        texts: list[str | None] = [None] * len(ends)
        if collection.record.text:
            stored = draft.get_many("rows", [collection.scope + keys.number(row) for _, row in ends])
            texts = [None if value is None else records.decode(RowRecord, value).text for value in stored]
        for (seq, row), text in zip(ends, texts, strict=True):
            key = collection.scope + keys.number(row)
            draft.delete("rows", key)
            draft.delete("vectors", key)
            draft.put(
                "dead", collection.scope + keys.number(seq), keys.number(row) + (text or "").encode(), read_again=False
            )
            self._ended.append(Ended(row, text))

    def _draft_seq(self, draft: Draft) -> None:
        self._last = self._collection.seq
        draft.put("meta", self._collection.seq_key, keys.number(self._last), read_again=False)

    @property
    def target(self) -> Collection:
        return self._collection

    def change(self) -> Change | None:
        """What memory is to know of it; None: nothing changed."""
        return Change(0, self._last, None, self._ended, self._hour) if self._ended else None

    def publish(self, others: Sequence[Command] = ()) -> None:
        changes = [one.change() for one in (self, *others) if isinstance(one, _Change)]
        if written := [change for change in changes if change is not None]:
            self._collection.publish(written)


class Upsert(_Change):
    """Insert rows; those with an id that is there already replace it. Ids within a batch differ. Result: rows that were new."""

    def __init__(self, collection: Collection, batch: RowBatch, now_ms: int) -> None:
        super().__init__(collection, now_ms)
        self._batch = batch
        self.looked_up = [collection.scope + keys.name(id_) for id_ in batch.ids]
        self.weight = len(batch) + sum(len(text) for text in batch.texts if text) // WEIGHED_CHARACTERS

    def draft(self, draft: Draft) -> int:
        self._check()
        collection, batch, index = self._collection, self._batch, self.looked_up
        replaced = draft.get_many("index", index)
        self._first = first = collection.reserve(len(batch))
        ends = [(first + at, int.from_bytes(old, "big")) for at, old in enumerate(replaced) if old is not None]
        self._draft_ends(draft, ends)
        vectors = batch.vectors.astype("<f4", copy=False)
        for at, id_ in enumerate(batch.ids):
            number = keys.number(first + at)
            record = RowRecord(id_, batch.texts[at], batch.attributes[at], self._now_ms, batch.expires_ms[at])
            draft.put("rows", collection.scope + number, records.encode(record))
            draft.put("vectors", collection.scope + number, vectors[at].tobytes(), read_again=False)
            draft.put("index", index[at], number)
        self._draft_seq(draft)
        return len(batch) - len(ends)

    def change(self) -> Change:
        return Change(self._first, self._last, self._batch, self._ended, self._hour)


class Delete(_Change):
    """Delete rows by id. Result: how many there were."""

    def __init__(self, collection: Collection, ids: Sequence[str], now_ms: int) -> None:
        super().__init__(collection, now_ms)
        self.looked_up = [collection.scope + keys.name(id_) for id_ in ids]
        self.weight = len(ids)

    def draft(self, draft: Draft) -> int:
        self._check()
        collection, index = self._collection, self.looked_up
        found = [(key, old) for key, old in zip(index, draft.get_many("index", index), strict=True) if old is not None]
        if not found:
            return 0
        first = collection.reserve(len(found))
        self._draft_ends(draft, [(first + at, int.from_bytes(old, "big")) for at, (_, old) in enumerate(found)])
        for key, _ in found:
            draft.delete("index", key)
        self._draft_seq(draft)
        return len(found)


class Expire(_Change):
    """Delete rows whose time has come, by number; those that were replaced meanwhile are left. Result: how many."""

    def __init__(self, collection: Collection, rows: Sequence[int], now_ms: int) -> None:
        super().__init__(collection, now_ms)
        self._rows = rows
        self.weight = len(rows)

    def draft(self, draft: Draft) -> int:
        self._check()
        collection = self._collection
        stored = draft.get_many("rows", [collection.scope + keys.number(row) for row in self._rows])
        found = [
            (row, records.decode(RowRecord, value).id)
            for row, value in zip(self._rows, stored, strict=True)
            if value is not None
        ]
        if not found:
            return 0
        first = collection.reserve(len(found))
        self._draft_ends(draft, [(first + at, row) for at, (row, _) in enumerate(found)])
        for _, id_ in found:
            draft.delete("index", collection.scope + keys.name(id_))
        self._draft_seq(draft)
        return len(found)


class Mend(_Change):
    """Have the index lead to every one of `rows` by its id, and take away those of `ids` that lead to no row of theirs.

    Of two rows with one id the later stays, as after an upsert. Result: how many rows ended.
    """

    def __init__(self, collection: Collection, rows: Sequence[int], ids: Sequence[bytes], now_ms: int) -> None:
        super().__init__(collection, now_ms)
        self._rows = rows
        self._ids = ids
        self.weight = len(rows) + len(ids)

    def draft(self, draft: Draft) -> int:
        self._check()
        scope = self._collection.scope
        leads: dict[bytes, int | None] = {}  # ids of which the index is to lead elsewhere, or nowhere
        for id_ in self._ids:
            if draft.get("index", scope + id_) is not None and self._row_of(draft, id_) is None:
                leads[id_] = None
        ended = []
        for row in sorted(self._rows):
            stored = draft.get("rows", scope + keys.number(row))
            if stored is None:
                continue
            id_ = keys.name(records.decode(RowRecord, stored).id)
            other = leads[id_] if id_ in leads else self._row_of(draft, id_)
            if other is not None and other > row:
                ended.append(row)
            elif other != row:
                leads[id_] = row
                ended += [] if other is None else [other]
        if ended:
            first = self._collection.reserve(len(ended))
            self._draft_ends(draft, [(first + at, row) for at, row in enumerate(ended)])
            self._draft_seq(draft)
        for id_, to in leads.items():  # last: nothing is added to the batch before all is read
            if to is None:
                draft.delete("index", scope + id_)
            else:
                draft.put("index", scope + id_, keys.number(to))
        return len(ended)

    def _row_of(self, draft: Draft, id_: bytes) -> int | None:
        """The row to which the index leads, if it has that id."""
        number = draft.get("index", self._collection.scope + id_)
        stored = None if number is None else draft.get("rows", self._collection.scope + number)
        if number is None or stored is None or keys.name(records.decode(RowRecord, stored).id) != id_:
            return None
        return int.from_bytes(number, "big")


class Remake(Command):
    """Make a collection's memory anew from RocksDB. The keeper must be held."""

    alone = True

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def draft(self, draft: Draft) -> None:  # here, where it may fail
        if self._collection.dropped:
            raise NotFound(f"the collection {self._collection.name!r} has been deleted.")
        loading.remake(self._collection)


class Forget(Command):
    """Entries of `dead` that nobody needs any more, by key."""

    def __init__(self, collection: Collection, ended: Sequence[bytes]) -> None:
        self._collection = collection
        self._ended = ended
        self.weight = len(ended)

    def draft(self, draft: Draft) -> None:
        if not self._collection.dropped:
            for key in self._ended:
                draft.delete("dead", key)


class Touch(Command):
    """Rows were found by a search: they are warmer now. Changes memory only."""

    weight = 0

    def __init__(self, collection: Collection, rows: Rows, hour: float) -> None:
        self._collection = collection
        self._rows = rows
        self._hour = hour

    def draft(self, draft: Draft) -> None:
        """Nothing is stored: heat is kept by the snapshots."""

    def publish(self, others: Sequence[Command] = ()) -> None:
        self._collection.touch(self._rows, self._hour)
