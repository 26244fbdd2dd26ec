"""Old events: the history as the event logs see it. It is opened when there is something to open or to keep.

A history that cannot be opened (its manifest is damaged, its folder cannot be read) keeps nothing else from working: its
problem is told, reads that need it raise it, and nothing is moved into it. It is tried again now and then.

Calls read and write files: run them in a thread. Any thread may call, `open` and `store` from one at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from dataplane.errors import Closed, Damaged, DataPlaneError, NotFound
from dataplane.state.forgetting import Note
from dataplane.state.history import History
from dataplane.state.logshards import LARGEST_SEQ, LogEvent, LogShardEntry

SHARD_ROWS = 65_536  # up to which shards are merged

_log = logging.getLogger(__name__)


class HistoryStatus(Struct, frozen=True, kw_only=True):
    """The history: its events (`rows`), files, and what keeps some from being read or moved.

    `moved` into it and `forgotten` by it (dropped, trimmed or too old): since the start.
    """

    rows: int = 0
    bytes: int = 0
    shards: int = 0
    moved: int = 0
    forgotten: int = 0
    problems: tuple[str, ...] = ()


class OldEvents:
    """The history in `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: str | None = None  # why it is not open
        self._history: History | None = None
        self._closed = False

    def open(self) -> None:
        """Open it if it is there and not open. A problem is kept, not raised."""
        if self._history is not None or self._closed:
            return
        if not self.folder.exists():
            self.problem = None
            return
        try:
            self._history, self.problem = History.open(self.folder), None
        except DataPlaneError as error:
            if self.problem is None:
                _log.error("the history cannot be opened", extra={"why": str(error)})
            self.problem = str(error)

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._history is not None:
            self._history.close()

    @property
    def is_there(self) -> bool:
        """Whether there is any, well or not."""
        return self._history is not None or self.problem is not None

    def span(self, tenant: str, log: str, seqs: range, limit: int, max_bytes: int) -> list[LogEvent]:
        """As `History.span`. Raises Damaged also where the whole history is gone, or cannot be opened."""
        history = self._opened()
        if history is None:
            raise Damaged(f"{self.folder} is missing, which has older events. Restore it from a backup or the bucket.")
        return history.span(tenant, log, seqs, limit, max_bytes)

    def store(self, events: Sequence[LogEvent]) -> None:
        """Keep events of logs, durably. What is there in their place, and after it in its log, is not theirs and goes.

        That is so in a data plane that was restored: its database may be a little older than its history, and go on in
        another way. Raises Damaged if a place cannot be read, StorageFull, Unavailable, Closed.
        """
        history = self._opened()
        if history is None:
            history = self._history = History.open(self.folder)
        others: dict[tuple[str, str], int] = {}
        for event in history.conflicting(events):
            place = (event.tenant, event.stream)
            others[place] = min(event.seq, others.get(place, event.seq))
        if others:
            gone = history.forget({place: range(first, LARGEST_SEQ + 1) for place, first in others.items()})
            _log.warning("the history had other events than the database, and forgot them", extra={"events": gone})
        history.append_shard(events)

    def forget(self, notes: Sequence[Note]) -> int:
        """Do what notes ask for. Returns how many events there were. Raises Damaged if some of them cannot be read."""
        history = self._opened()
        if history is None:
            return 0
        gone = sum(history.erase(tenant) for tenant in sorted({note.tenant for note in notes if note.log is None}))
        logs = {(note.tenant, note.log): range(note.through + 1) for note in notes if note.log is not None}
        return gone + (history.forget(logs) if logs else 0)

    def tidy(self, before_ms: int | None) -> int:
        """Merge shards, and remove what is older than `before_ms`. Returns how many events that were. Raises as `retain`."""
        history = self._opened()
        if history is None:
            return 0
        history.compact(SHARD_ROWS)
        return 0 if before_ms is None else history.retain(before_ms)

    def count(self, tenant: str) -> tuple[int, int]:
        """How many events a tenant has, and among how many that was looked for. Raises Damaged."""
        history = self._opened()
        if history is None:
            return 0, 0
        return history.count(tenant), sum(entry.rows for entry in history.entries)

    def damaged(self) -> dict[str, list[str]]:
        """Read everything. What is wrong, by shard; under "" what is wrong with the whole."""
        try:
            history = self._opened()
        except Damaged as error:
            return {"": [str(error)]}
        if history is None:
            return {}
        whole = history.misnamed()
        return {**({"": whole} if whole else {}), **history.damaged()}

    def expected(self, names: Iterable[str]) -> list[LogShardEntry]:
        """What these shards must be, by the manifest."""
        wanted = set(names)
        return [entry for entry in (self._history.entries if self._history else ()) if entry.name in wanted]

    def reload(self, name: str) -> None:
        """Read a shard anew, whose file was brought back. Raises NotFound."""
        if self._history is not None:
            self._history.reload(name)

    def renew_manifest(self) -> None:
        """Write the manifest anew, where the history is open. Raises StorageFull."""
        if self._history is not None:
            self._history.renew_manifest()

    def discard(self, name: str) -> str:
        """Give up a damaged shard, but for what of it can be read. Returns what is lost."""
        history = self._opened()
        entries = {entry.name: entry for entry in history.entries} if history else {}
        if history is None or name not in entries:
            raise NotFound(f"there is no shard {name} in {self.folder}.")
        rows, lost = entries[name].rows, history.discard(name)
        _log.error("a damaged shard of the history was discarded", extra={"shard": name, "rows": rows, "lost": lost})
        what = f"its {rows} events are" if lost == rows else f"{lost or 'none'} of its {rows} events are"
        return f"{self.folder / name} was discarded: {what} lost."

    def link(self, link: Callable[[Path], None]) -> None:
        """Call `link` with every file as they are at one moment. None of them is changed in place."""
        if self._history is not None:
            self._history.link(link)
            return
        for path in _files(self.folder):
            link(path)

    def status(self, *, moved: int, forgotten: int, trouble: str | None) -> HistoryStatus:
        """At once. `trouble`: what the mover met last."""
        history = self._history
        entries = history.entries if history else ()
        problems = [] if self.problem is None else [self.problem]
        problems += history.problems.values() if history else ()
        return HistoryStatus(
            rows=sum(entry.rows for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            shards=len(entries),
            moved=moved,
            forgotten=forgotten,
            problems=(*problems, *([trouble] if trouble and trouble not in problems else [])),
        )

    def _opened(self) -> History | None:
        """None: there is none yet. Raises Damaged with its problem, Closed."""
        if self._closed:
            raise Closed("the data plane is closed.")
        if self.problem is not None:
            raise Damaged(self.problem)
        return self._history


def _files(folder: Path) -> Iterator[Path]:
    """What is there of a history that is not open."""
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in folder.iterdir() if path.is_file())
