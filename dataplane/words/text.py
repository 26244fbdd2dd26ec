"""Full text of a collection: which rows have a query's words, ranked by BM25. SQLite's FTS5 in one file.

    terms   fts5, content=''    a row's words (`dataplane.words.segment`) by row number; the text itself stays with the rows
    vocab   fts5vocab           in how many rows a word is
    meta    name, value         format, seq (up to which the index is built), rows (how many it holds)

Words hold letters, digits and marks only, so FTS5's `ascii` tokenizer keeps each of them whole, and a query is a list of quoted
words: nothing in it can be FTS5's syntax.

Derived from the rows: what a batch adds and removes is one transaction with its seq, so the file is always right up to `seq`.
Row numbers are never used twice. A row that is there already is not added again, one that is not there is not removed, so
batches may be replayed. FTS5 needs a removed row's old text to find its words; the caller has it still.

Crash: WAL with synchronous=NORMAL. A killed process loses nothing; a power cut may take the newest transactions, and `seq` says
so. `open` throws away a file that is visibly damaged, that is no file, or that is of another format (or of another Unicode:
see `segment`), and starts at seq 0. Damage found later raises Damaged. SQLite has no checksums, so a flipped bit in a list of
rows may name a row that does not exist, or never had the word: callers look each row up, and `allowed` must take any number.
`verify` reads all.

Threads: any. One connection writes, under a lock. Searches share a few connections, each used by one of them at a time; they
read beside the writer, and see whole transactions. Each connection caches 1 MiB of pages.

Cost: FTS5 scores every row that has any word of the query, about 1.5 us a row. So a query keeps its rarest words, as
`deciding_words` says, which bounds the work: about 20 ms over 117,000 short texts (40 ms when `allowed` lets few rows pass),
where all words take 140 to 200 ms.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dataplane.errors import Closed, Damaged, UnsupportedFormat
from dataplane.files import remove
from dataplane.words.segment import is_single, words, words_to_index
from dataplane.words.textfile import built, connect, damage, files_of, identity, is_usable, prepare, translated

READERS = 4
MERGE_PAGES = 256  # of one step of `compact`
MERGE_STEPS = 100_000  # more than the largest file takes

MAX_QUERY = 8192  # characters; what follows is not looked at
MAX_QUERY_WORDS = 32
MAX_QUERY_ROWS = 20_000  # rows of all words of a query together, beyond the rarest word
FEW_ROWS = 1000  # in so small an index every word decides something
FREQUENT = 1000  # rows; counting those of a more frequent word takes a while, so the count is kept
MAX_FREQUENT = 4096  # words whose count is kept

# Rows come as one JSON array of [row number, words]: to bind each by itself gives the interpreter's lock away for every row.
ADD = """INSERT INTO terms(rowid, words)
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1)
  WHERE NOT EXISTS (SELECT 1 FROM terms_docsize WHERE terms_docsize.id = json_extract(value, '$[0]'))"""
REMOVE = """INSERT INTO terms(terms, rowid, words)
  SELECT 'delete', json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1)
  WHERE EXISTS (SELECT 1 FROM terms_docsize WHERE terms_docsize.id = json_extract(value, '$[0]'))"""
RANKED = "SELECT rowid, bm25(terms) AS cost FROM terms WHERE terms MATCH ? ORDER BY cost, rowid LIMIT ?"
ALL = "SELECT rowid, bm25(terms) FROM terms WHERE terms MATCH ?"

Rows: TypeAlias = NDArray[np.int64]
Allowed: TypeAlias = Callable[[Rows], NDArray[np.bool_]]


def _as_json(rows: Sequence[tuple[int, str]]) -> str:
    """What the statements take. No row is in it twice."""
    return msgspec.json.encode(
        [(number, " ".join(words_to_index(text))) for number, text in dict(rows).items()]
    ).decode()


class TextIndex:
    """The full-text index in one file. Made by `open`."""

    def __init__(self, path: Path, *, closed: bool = False) -> None:
        """Use `open`. `closed`: nothing is opened, for what stands in for an index that cannot be."""
        self._path = path
        self._lock = threading.Lock()  # held by who writes
        self._closed = closed
        self._seq = self._rows = 0
        self.replaced: str | None = None  # what was wrong with the index that was there, if it had to be made anew
        self._frequent: dict[str, int] = {}
        self._frequent_rows = 0
        self._readers: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue()  # None: not opened yet
        for _ in range(READERS):
            self._readers.put(None)
        self._writer: sqlite3.Connection | None = None
        self._file = (0, 0)  # which one it is: device and inode
        self.used_at = time.monotonic()
        if closed:
            return
        with translated(path):
            self._writer = connect(path)
            try:
                prepare(self._writer)
                self._seq, self._rows = built(self._writer)
                self._file = identity(path)
            except BaseException:
                self._writer.close()
                raise

    @classmethod
    def open(cls, path: Path) -> TextIndex:
        """The index in `path`, which is made when it does not exist. One that is damaged or of another format is made anew.

        So is one of which a file is no file, or not ours to read and write. Raises StorageFull, and Unavailable when the
        file cannot be opened, or not be removed.
        """
        unusable = next((file for file in files_of(path) if os.path.lexists(file) and not is_usable(file)), None)
        why = None if unusable is None else f"{unusable} is no file that can be read and written. It is made anew."
        if why is None:
            try:
                return cls(path)
            except UnsupportedFormat:
                pass
            except Damaged as error:
                why = str(error)
        cls.remove(path)
        made = cls(path)
        made.replaced = why
        return made

    @staticmethod
    def remove(path: Path) -> None:
        """Delete the closed index in `path`, if there is one. Raises Unavailable."""
        # The database goes first: a log without its database is ignored, a database without its log may be torn.
        for file in files_of(path):
            remove(file)

    @property
    def seq(self) -> int:
        """The sequence number up to which the index is built; 0: nothing is in it."""
        return self._seq

    @property
    def bytes(self) -> int:
        """Bytes on disk, log included."""
        total = 0
        for file in files_of(self._path):
            try:
                total += file.stat().st_size
            except OSError:
                continue
        return total

    def count(self) -> int:
        """How many rows it holds, those without a word among them."""
        return self._rows

    def add(self, rows: Sequence[tuple[int, str]], removed: Sequence[tuple[int, str]], seq: int) -> None:
        """Add `rows`, then remove `removed`, both (row number, text); from then on the index is built up to `seq`.

        All of it or nothing. Raises StorageFull, Damaged, Unavailable, Closed.
        """
        new, old = _as_json(rows), _as_json(removed)
        with self._writing() as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                added = writer.execute(ADD, (new,)).rowcount if rows else 0
                gone = writer.execute(REMOVE, (old,)).rowcount if removed else 0
                count, reached = self._rows + added - gone, max(seq, self._seq)
                writer.executemany("UPDATE meta SET value = ?2 WHERE name = ?1", [("seq", reached), ("rows", count)])
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:  # SQLite itself rolls back after some errors
                    writer.execute("ROLLBACK")
                raise
            self._rows, self._seq = count, reached

    def search(self, query: str, limit: int, allowed: Allowed | None = None) -> list[tuple[int, float]]:
        """At most `limit` rows that have words of `query`: (row number, BM25 score, higher is better), best first.

        `allowed` tells of row numbers (int64, (m,)) which may be in the answer: bool (m,). It may be called several times.
        Raises Damaged, Unavailable, Closed.
        """
        wanted = list(dict.fromkeys(words(query[:MAX_QUERY])))
        if limit <= 0 or not wanted:
            return []
        with self._reading() as reader:
            chosen = deciding_words({word: self._count_of(reader, word) for word in wanted}, self._rows)
            if not chosen:
                return []
            match = " OR ".join(f'"{word}" *' if is_single(word) else f'"{word}"' for word in chosen)
            if allowed is None:
                return [(number, -cost) for number, cost in reader.execute(RANKED, (match, limit))]
            return _best_allowed(reader, match, limit, allowed)

    def sync(self) -> int:
        """Make what is in the index survive the loss of power. Returns the sequence number up to which that is.

        Raises StorageFull, Damaged, Unavailable, Closed.
        """
        with self._writing() as writer:
            writer.execute("PRAGMA synchronous = FULL")  # then the log is synced after a transaction
            try:
                writer.execute("UPDATE meta SET value = ?1 WHERE name = 'seq'", (self._seq,))
            finally:
                writer.execute("PRAGMA synchronous = NORMAL")
            return self._seq

    def compact(self) -> None:
        """Merge everything into one segment, without what removed rows left behind, and give the space back to the disk.

        After it no word that only removed rows had is in the file. In steps, between which others may write.
        Raises StorageFull, Damaged, Unavailable, Closed.
        """
        with self._writing() as writer:
            # A negative number of pages puts all segments on one level first, as 'optimize' does.
            writer.execute("INSERT INTO terms(terms, rank) VALUES ('merge', ?)", (-MERGE_PAGES,))
        for _ in range(MERGE_STEPS):
            with self._writing() as writer:
                before = writer.total_changes
                writer.execute("INSERT INTO terms(terms, rank) VALUES ('merge', ?)", (MERGE_PAGES,))
                if writer.total_changes - before < 2:  # FTS5's sign that there was nothing to do
                    break
        with self._writing() as writer:
            writer.execute("PRAGMA incremental_vacuum").fetchall()
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def verify(self) -> None:
        """Read everything, and raise Damaged when the file contradicts itself. Adds wait meanwhile; searches do not."""
        with self._writing() as writer:
            self._check_file()
            said = writer.execute("PRAGMA quick_check(1)").fetchone()[0]
            held = writer.execute("SELECT count(*) FROM terms_docsize").fetchone()[0]
            writer.execute("INSERT INTO terms(terms) VALUES ('integrity-check')")
            if said != "ok" or held != self._rows:
                raise Damaged(damage(self._path))

    def close(self) -> None:
        """Wait for what is running, and close the file. Further calls raise Closed; close itself may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(READERS):
                if (reader := self._readers.get()) is not None:
                    reader.close()
            for _ in range(READERS):  # for those who wait for a connection, and find the index closed
                self._readers.put(None)
            if self._writer is not None:
                self._writer.close()

    @property
    def is_open(self) -> bool:
        """Whether it holds file descriptors."""
        return self._writer is not None or any(self._readers.queue)

    def rest(self) -> None:
        """Close the file until it is used again: it takes three descriptors and more. Waits for who writes."""
        with self._lock, translated(self._path):
            if self._closed:
                return
            idle: list[sqlite3.Connection | None] = []
            with contextlib.suppress(queue.Empty):  # the others are in use
                for _ in range(READERS):
                    idle.append(self._readers.get_nowait())  # noqa: PERF401 - it may end early
            for reader in idle:
                if reader is not None:
                    reader.close()
                self._readers.put(None)
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _connected(self) -> sqlite3.Connection:
        self._check_file()  # SQLite would make one that is not there
        return connect(self._path)

    def _check_file(self) -> None:
        if not is_usable(self._path) or identity(self._path) != self._file:
            raise Damaged(damage(self._path))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self._path):
            if self._closed:
                raise Closed("The full-text index is closed.")
            self.used_at = time.monotonic()
            if self._writer is None:
                self._writer = self._connected()
                if built(self._writer) != (self._seq, self._rows):  # an older copy, which may even have the same inode
                    raise Damaged(damage(self._path))
            yield self._writer

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        reader = self._readers.get()
        try:
            if self._closed:
                raise Closed("The full-text index is closed.")
            self.used_at = time.monotonic()
            with translated(self._path):
                if reader is None:
                    reader = self._connected()
                    reader.execute("PRAGMA query_only = ON")
                yield reader
        finally:
            self._readers.put(reader)

    def _count_of(self, reader: sqlite3.Connection, word: str) -> int:
        """In how many rows `word` is, or was a short while ago. Of one CJK character: an upper bound."""
        if abs(self._rows - self._frequent_rows) * 8 > self._frequent_rows or len(self._frequent) >= MAX_FREQUENT:
            self._frequent, self._frequent_rows = {}, self._rows
        kept = self._frequent
        if (count := kept.get(word)) is not None:
            return count
        if is_single(word):
            after = chr(ord(word) + 1)
            found = reader.execute("SELECT sum(doc) FROM vocab WHERE term >= ? AND term < ?", (word, after)).fetchone()
        else:
            found = reader.execute("SELECT doc FROM vocab WHERE term = ?", (word,)).fetchone()
        count = found[0] or 0 if found else 0
        if count >= FREQUENT:
            kept[word] = count
        return count


def deciding_words(counts: Mapping[str, int], rows: int) -> list[str]:
    """The words to search for, rarest first, out of those in `counts` (in how many of `rows` rows each is).

    A word of over a third of the rows decides nothing and is left out, unless all are like that or rows are few. Then
    the rarest words are taken whose rows are together at most MAX_QUERY_ROWS, and always the rarest.
    """
    found = sorted((word for word, count in counts.items() if count), key=lambda word: counts[word])
    if rows >= FEW_ROWS:
        found = [word for word in found if counts[word] * 3 <= rows] or found
    chosen: list[str] = []
    work = 0
    for word in found[:MAX_QUERY_WORDS]:
        work += counts[word]
        if chosen and work > MAX_QUERY_ROWS:
            break
        chosen.append(word)
    return chosen


def _best_allowed(reader: sqlite3.Connection, match: str, limit: int, allowed: Allowed) -> list[tuple[int, float]]:
    """First among the best few; when too few of those are allowed, among all, in chunks of which the best stay."""
    asked = max(64, 4 * limit)
    found = reader.execute(RANKED, (match, asked)).fetchall()
    numbers, costs = _allowed_of(found, allowed)
    if len(numbers) < limit and len(found) == asked:
        numbers, costs = _allowed_of([], allowed)
        cursor = reader.execute(ALL, (match,))
        while chunk := cursor.fetchmany(1024):
            more, their = _allowed_of(chunk, allowed)
            numbers, costs = np.concatenate((numbers, more)), np.concatenate((costs, their))
            best = np.lexsort((numbers, costs))[:limit]
            numbers, costs = numbers[best], costs[best]
    return list(zip(numbers[:limit].tolist(), (-costs[:limit]).tolist(), strict=True))


def _allowed_of(found: Sequence[tuple[int, float]], allowed: Allowed) -> tuple[Rows, NDArray[np.float64]]:
    numbers = np.fromiter((number for number, _ in found), np.int64, len(found))
    costs = np.fromiter((cost for _, cost in found), np.float64, len(found))
    mask = allowed(numbers) if len(found) else np.zeros(0, np.bool_)
    return numbers[mask], costs[mask]
