"""Full text, built behind the writer: one thread for all collections, so that no write waits for an index of words.

A `TextFeed` takes what each written change adds and removes, in order; the `Indexer`'s thread brings it into the collection's
`TextIndex`, many rows in a transaction. A search for words waits until the index has what was written before it began.

The feed is bounded: when the thread is far behind, or the index could not be written (a full disk), the feed is thrown away
and the index is brought up to RocksDB instead, from the sequence number that it has reached: rows above it, and `dead` entries
with the text of rows that ended. To add a row twice, or to remove one that is not there, changes nothing.

An index that cannot be opened at the start is tried again every few seconds, and used as it is when that succeeds: it is
removed only if what is there cannot be used. Meanwhile searches for words find nothing and say that this is not all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dataplane.errors import Closed, Damaged, DataPlaneError
from dataplane.files import storage_errors
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from dataplane.truth.rocks import Rocks
from dataplane.words.text import Allowed, TextIndex

Texts = Sequence[tuple[int, str]]  # row number, text

FEED_ROWS = 8192
FEED_CHARACTERS = 8 << 20
TRANSACTION_ROWS = 512
TRANSACTION_CHARACTERS = 4 << 20
RETRY_S = 5.0
LOOK_S = 1.0
GATHER_S = 0.05
AWAKE = 64  # indexes whose files are open: each takes three descriptors, and one for each search in it

_log = logging.getLogger(__name__)


class TextFeed:
    """The full text of one collection, and what is on its way there.

    `wake()` tells the thread that there is work, `wake(True)` that somebody waits for it.
    """

    def __init__(self, rocks: Rocks, scope: bytes, path: Path, wake: Callable[[bool], None]) -> None:
        self._rocks = rocks
        self._scope = scope
        self._path = path
        self._wake = wake
        self._changed = threading.Condition()
        self._pending: deque[tuple[Texts, Texts, int]] = deque()
        self._pending_rows = self._pending_characters = 0
        self._written = 0  # the last change that the index should have
        self._began = 0  # the last change when the collection was opened
        self._closed = False
        self._retry_at = 0.0
        self.behind = False  # the feed was thrown away
        self._unusable = False  # the index is damaged, and has to be made anew
        self.problem: str | None = None  # why
        self.unopened: DataPlaneError | None = None  # why there is no index since the start
        try:
            self.index = _opened(path)
        except DataPlaneError as error:  # what is derived keeps nothing else from opening: it is tried again
            _log.error("the full text cannot be opened", extra={"why": str(error), "file": str(path)})
            self.index = TextIndex(path, closed=True)
            self.unopened, self.problem = error, str(error)

    def open(self, seq: int) -> None:
        """The collection's last change, before there are others."""
        self._written = self._began = seq
        # A loss of power may have taken the newest rows: their numbers are given out again.
        self._unusable = self.unopened is not None or self.index.seq > seq
        self.behind = self._unusable or self.index.seq != seq

    def add(self, added: Texts, removed: Texts, seq: int) -> None:
        """A change was written. Never fails, never waits for the disk."""
        with self._changed:
            self._written = seq
            if not self.behind:
                self._pending.append((added, removed, seq))
                self._pending_rows += len(added) + len(removed)
                self._pending_characters += _characters(added, removed)
                if self._pending_rows > FEED_ROWS or self._pending_characters > FEED_CHARACTERS:
                    self._throw_away()
        self._wake(False)

    def _throw_away(self) -> None:
        self._pending.clear()
        self._pending_rows = self._pending_characters = 0
        self.behind = True

    @property
    def is_usable(self) -> bool:
        """Whether there is an index: it may be behind, but need not be opened or made anew first."""
        return not self._unusable

    @property
    def up_to_date(self) -> bool:
        """Whether the index has all that was written."""
        return not self._unusable and not self.behind and self.index.seq >= self._written

    @property
    def has_work(self) -> bool:
        """Whether the index lacks something that it could have now."""
        return not self._closed and (bool(self._pending) or (self.behind and time.monotonic() >= self._retry_at))

    def work(self) -> None:
        """Bring the index on, by one transaction or so. In the indexer's thread."""
        try:
            if self._unusable:
                self._make_anew()
            if self.behind:
                self._catch_up()
            else:
                self._take_in()
            self.problem = None
        except DataPlaneError as error:
            if self._closed:
                return
            _log.warning("the full text is behind", extra={"why": str(error), "file": str(self._path)})
            self.problem = str(error)
            again = isinstance(error, Damaged) and not self._unusable  # at once, the first time
            self._retry_at = 0.0 if again else time.monotonic() + RETRY_S
            with self._changed:
                self._throw_away()
                # Closed: a new one could not be opened the last time.
                self._unusable = self._unusable or isinstance(error, (Damaged, Closed))
        except BaseException:  # a defect: what was taken out of the feed comes from RocksDB
            self.problem = "the full text failed: see the log"
            self._retry_at = time.monotonic() + RETRY_S
            with self._changed:
                self._throw_away()
                self._changed.notify_all()
            raise
        with self._changed:
            self._changed.notify_all()

    def _take_in(self) -> None:
        added: list[tuple[int, str]] = []
        removed: list[tuple[int, str]] = []
        seq = 0
        with self._changed:
            while self._pending and len(added) + len(removed) < TRANSACTION_ROWS:
                more, less, seq = self._pending.popleft()
                added.extend(more)
                removed.extend(less)
                self._pending_rows -= len(more) + len(less)
                self._pending_characters -= _characters(more, less)
        if seq:
            self.index.add(added, removed, seq)

    def _catch_up(self) -> None:
        """From RocksDB. Changes that are written meanwhile come in again, by the feed, and change nothing twice."""
        with self._changed:
            self._pending.clear()
            self._pending_rows = self._pending_characters = 0
            self.behind = False
            target = self._written
        built = self.index.seq
        # A catching up that was broken off may have left rows above `built`: what ended of these goes as well.
        for removed in _parts(_ended(self._rocks, self._scope, built + 1)):
            self.index.add([], removed, built)
        for added in _parts(_live(self._rocks, self._scope, built + 1)):
            self.index.add(added, [], built)
        self.index.add([], [], target)

    def renew(self) -> None:
        """Have the index thrown away and built again from RocksDB. From any thread."""
        with self._changed:
            self._throw_away()
            self._unusable, self.unopened = True, None
            self._retry_at = 0.0
            self.problem = None
        self._wake(False)

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the index has all that was written, or has failed (`problem`), or is closed; False: not yet."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or self.problem is not None or self.up_to_date, timeout_s
            )

    def _make_anew(self) -> None:
        """Begin with an empty index; or with the one that is there, if it could not be opened before and now can."""
        self.index.close()
        if self.unopened is None:
            TextIndex.remove(self._path)
        made = _opened(self._path)
        if made.seq > self._began and self.unopened is not None:  # as in `open`: it knows rows that are others now
            made.close()
            TextIndex.remove(self._path)
            made = _opened(self._path)
        with self._changed:
            if not self._closed:
                self.index, self._unusable, self.unopened = made, False, None
                return
        made.close()  # the collection was closed meanwhile, or dropped
        raise Closed("the full text is closed.")

    def search(self, text: str, limit: int, allowed: Allowed, deadline: float) -> tuple[list[tuple[int, float]], bool]:
        """The rows that have words of `text`, as `TextIndex.search`; and whether all that was written before is in it.

        Waits for that until `deadline` (of time.monotonic()). An index that turns out to be damaged is made anew meanwhile.
        """
        wanted = self._written
        while True:
            complete = self._wait(wanted, deadline)
            if self._unusable and not self._closed:
                return [], False
            try:
                return self.index.search(text, limit, allowed), complete
            except Damaged as error:
                _log.warning("the full text is made anew", extra={"why": str(error), "file": str(self._path)})
                self.renew()
            except Closed:  # it was exchanged for a new one
                if self._closed:
                    raise

    def _wait(self, wanted: int, deadline: float) -> bool:
        with self._changed:

            def ended() -> bool:
                return self._closed or self._stuck or (self.index.seq >= wanted and not self._unusable)

            if not ended():
                self._wake(True)
            return self._changed.wait_for(ended, max(deadline - time.monotonic(), 0)) and not self._stuck

    @property
    def _stuck(self) -> bool:
        """Whether the index will not catch up soon: a full disk, for example. To wait for it would help nobody."""
        return self.behind and self.problem is not None

    def close(self) -> None:
        """Close the file; what is still on its way comes from RocksDB at the next start."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.index.close()


def _opened(path: Path) -> TextIndex:
    with storage_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return TextIndex.open(path)


def _characters(added: Texts, removed: Texts) -> int:
    return sum(len(text) for texts in (added, removed) for _, text in texts)


def _ended(rocks: Rocks, scope: bytes, first: int) -> Iterator[tuple[int, str]]:
    """Rows that had a text and ended at change `first` or later."""
    with contextlib.closing(rocks.scan("dead", scope, start=keys.number(first))) as found:
        for _, value in found:
            if len(value) > 8:
                yield int.from_bytes(value[:8], "big"), value[8:].decode()


def _live(rocks: Rocks, scope: bytes, first: int) -> Iterator[tuple[int, str]]:
    """Rows with a text, from number `first` on."""
    with contextlib.closing(rocks.scan("rows", scope, start=keys.number(first))) as found:
        for key, value in found:
            if text := records.decode(RowRecord, value).text:
                yield int.from_bytes(key[-8:], "big"), text


def _parts(texts: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """In lists of what one transaction takes."""
    part: list[tuple[int, str]] = []
    size = 0
    for row, text in texts:
        part.append((row, text))
        size += len(text)
        if len(part) == TRANSACTION_ROWS or size > TRANSACTION_CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _rest(feeds: Sequence[TextFeed]) -> None:
    """Close the indexes that were not used for longest, where more than AWAKE are open."""
    awake = [feed.index for feed in feeds if feed.index.is_open]
    for index in sorted(awake, key=lambda index: index.used_at)[: max(0, len(awake) - AWAKE)]:
        with contextlib.suppress(DataPlaneError):  # it is closed the next time
            index.rest()


class Indexer:
    """Owns the thread. `feeds` are those of the open collections."""

    def __init__(self, feeds: Callable[[], Sequence[TextFeed]]) -> None:
        self._feeds = feeds
        self._woken = threading.Event()
        self._hurried = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="dataplane-text", daemon=True)

    def wake(self, hurry: bool = False) -> None:
        """There is work; `hurry`: somebody waits for it."""
        if hurry:
            self._hurried.set()
        if not self._woken.is_set():
            self._woken.set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction that goes on."""
        self._stopping = True
        self.wake(hurry=True)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._woken.wait(LOOK_S)
            self._hurried.wait(GATHER_S)  # more changes come, which share a transaction
            self._hurried.clear()
            self._woken.clear()
            for feed in (feeds := self._feeds()):
                worked = feed.has_work
                while feed.has_work and not self._stopping:
                    try:
                        feed.work()
                    except Exception:  # noqa: BLE001 - a defect in one must not end the thread for all
                        _log.exception("the full text failed")
                        break
                if worked:
                    _rest(feeds)
            _rest(feeds)
