"""History: events that have left the state store (session history, tool-call logs), in log shards that a manifest names.

Append-only, many streams of many tenants. The folder holds a manifest (`logmanifest`), the log shards that it names
(`logshards`), and after a crash perhaps files that it does not name, which `open` removes.

Every change is: write new shards, durably; replace the manifest, durably (the change happens here); remove the shards that
it no longer names. A crash before the middle step leaves the old state and a file too many, one after it the new state and
a file too many. So what `append_shard` returned is there once, whatever happens. An event that is already there is not
appended again: whoever moves events here may repeat a move of which it does not know whether it was done.

Within a shard, events are in order of time as far as they were appended together. Streams are read in order of their
sequence numbers. In memory: 24 bytes for each run of a stream's events in a row group, the entries of the manifest, and a
bounded number of open shards.

Any thread may read; changes wait for each other. Readers work on the tuple of shards that they began with, and begin
again if it was replaced under them.

Damage. A manifest that is damaged, or missing beside shards, fails `open`. A shard whose footer is damaged or that is
missing leaves the others usable: what they hold is still answered, but "there is no such event" can no longer be said, and
is a ChecksumMismatch (or Damaged) that names the shard, until it is restored or discarded.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from dataplane.errors import Closed, Damaged, DataPlaneError, NotFound
from dataplane.files import make_way, remove_files, remove_leftovers, storage_errors, write_bytes
from dataplane.state import historyreads
from dataplane.state.liveshards import Live, may_hold, may_hold_any, mergeable, refuse_unread, whereabouts
from dataplane.state.logmanifest import MANIFEST, Manifest, misnamed, remove_unnamed, shard_name, shard_names
from dataplane.state.logshards import (
    LARGEST_SEQ,
    LogEvent,
    LogShard,
    LogShardEntry,
    OpenShards,
    damage,
    stream_key,
    write_log_shard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from dataplane.state.liveshards import Place

T = TypeVar("T")

OPEN_SHARDS = 16


class History:
    """The folder, open. One History at a time."""

    def __init__(self, folder: Path, manifest: Manifest, *, handles: int = OPEN_SHARDS) -> None:
        """Use `History.open`."""
        self._folder = folder
        self._open = OpenShards(folder, handles)
        self._changing = threading.Lock()
        self._next_number = manifest.next_number
        self._closed = False
        self._shards = tuple(self._load(entry) for entry in manifest.shards)

    @classmethod
    def open(cls, folder: Path, *, handles: int = OPEN_SHARDS) -> Self:
        """Open or create the history in `folder` (made if it is missing, mode 0700), keeping at most `handles` shards open.

        Reads every shard's footer. Raises ChecksumMismatch or Damaged if the manifest is not whole, StorageFull.
        """
        with storage_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(folder)
        path = folder / MANIFEST
        if not path.exists():
            if any(shard_names(folder)):
                raise Damaged(f"{path} is missing, though there are shards. Restore it from a backup or the bucket.")
            write_bytes(path, Manifest().encode())
        manifest = Manifest.read(path)
        remove_unnamed(folder, manifest.shards)
        return cls(folder, manifest, handles=handles)

    def close(self) -> None:
        """Wait for a change that is under way, and refuse further calls. Closing twice is no error."""
        with self._changing:
            self._closed = True
            self._open.close()

    @property
    def entries(self) -> tuple[LogShardEntry, ...]:
        """The valid shards, in the order in which they came."""
        return tuple(live.entry for live in self._shards)

    @property
    def problems(self) -> dict[str, str]:
        """The shards that cannot be read, by name, and why."""
        return {live.entry.name: str(live.problem) for live in self._shards if live.problem}

    def append_shard(self, events: Iterable[LogEvent]) -> LogShardEntry | None:
        """Add events, durably, as one shard; None if all of them are there already. Raises InvalidInput, StorageFull.

        Of several events with one place in a stream, the first stays.
        """
        with self._changing:
            self._check_open()
            fresh = self._without_known(events)
            if not fresh:
                return None
            entry = self._write(fresh)
            self._commit((*self._shards, self._load(entry)))
            return entry

    def read(self, tenant: str, stream: str, seq: int) -> LogEvent | None:
        """One event, or None. Raises ChecksumMismatch or Damaged if it may be where nothing can be read, Closed."""
        return self._answer(lambda shards: historyreads.find(self._open, shards, (tenant, stream, seq)))

    def scan(self, tenant: str, stream: str, after: int = -1, limit: int = 100) -> list[LogEvent]:
        """A stream's next events after sequence number `after`, rising, at most `limit`. Raises as `read` does."""

        def ask(shards: tuple[Live, ...]) -> list[LogEvent]:
            refuse_unread(shards)
            return historyreads.scan(
                self._open, shards, (tenant, stream), range(max(after + 1, 0), LARGEST_SEQ + 1), limit
            )

        return self._answer(ask)

    def span(self, tenant: str, stream: str, seqs: range, limit: int, max_bytes: int) -> list[LogEvent]:
        """A stream's events with numbers in `seqs`, rising: at most `limit`, and no more once `max_bytes` of payload are read.

        Raises ChecksumMismatch or Damaged if one of them is missing and may be where nothing can be read, Closed.
        """

        def ask(shards: tuple[Live, ...]) -> list[LogEvent]:
            page = historyreads.scan(self._open, shards, (tenant, stream), seqs, limit, max_bytes)
            whole = len(page) == limit or sum(len(event.payload) for event in page) >= max_bytes
            end = page[-1].seq + 1 if whole and page else seqs.stop
            if len(page) < end - seqs.start:
                refuse_unread(shards)
            return page

        return self._answer(ask)

    def conflicting(self, events: Sequence[LogEvent]) -> list[LogEvent]:
        """Those of `events` in whose place another one is. Raises ChecksumMismatch or Damaged if a place cannot be read."""
        by_place = {_place(event): event for event in events}
        found: dict[Place, LogEvent] = {}

        def ask(shards: tuple[Live, ...]) -> list[LogEvent]:
            for live, group, _ in whereabouts(shards, list(by_place)):
                found.update((_place(event), event) for event in self._open.get(live.entry).events(group))
            return [event for place, event in by_place.items() if found.get(place, event) != event]

        return self._answer(ask)

    def count(self, tenant: str) -> int:
        """How many events of a tenant there are, by reading every shard that may hold one. Raises as `read` does."""

        def ask(shards: tuple[Live, ...]) -> int:
            held = [live.entry for live in shards if may_hold(live, tenant, None)]
            return sum(event.tenant == tenant for entry in held for event in self._events(entry))

        return self._answer(ask)

    def compact(self, max_rows: int) -> int:
        """Merge neighbouring shards into ones of at most `max_rows` rows. Returns how many shards fewer there are.

        A merge at least doubles its largest member, so that an event is rewritten a logarithmic number of times only.
        Shards that turn out to be damaged are left out: `verify` tells of them.
        """
        with self._changing:
            self._check_open()
            before = len(self._shards)
            skipped: set[str] = set()
            while group := mergeable(self._shards, max_rows, skipped):
                try:
                    self._replace(group, lambda _: True)
                except Damaged:
                    skipped |= {live.entry.name for live in group}
            return before - len(self._shards)

    def retain(self, before_ms: int) -> int:
        """Remove events older than `before_ms`. Returns how many.

        A damaged shard goes when all of it is older. Raises Damaged, when all else is done, if a part of one is.
        """
        with self._changing:
            self._check_open()
            rows = self._rows()
            if any(live.entry.newest_ms < before_ms for live in self._shards):
                self._commit(tuple(live for live in self._shards if live.entry.newest_ms >= before_ms))
            mixed = [live for live in self._shards if live.entry.oldest_ms < before_ms]
            self._filter(mixed, lambda _: True, lambda event: event.time_ms >= before_ms)
            return rows - self._rows()

    def erase(self, tenant: str, stream: str | None = None) -> int:
        """Remove a tenant's events, or one stream of them. Returns how many. Afterwards no file here holds any of them.

        Raises Damaged if a shard that may hold some cannot be read; those in the others are gone then. Restore or discard
        it, and erase again.
        """
        with self._changing:
            self._check_open()
            rows = self._rows()
            self._filter(
                self._shards,
                lambda live: may_hold(live, tenant, stream),
                lambda event: event.tenant != tenant or stream not in {None, event.stream},
            )
            return rows - self._rows()

    def forget(self, seqs: Mapping[tuple[str, str], range]) -> int:
        """Remove events by tenant and stream, and the range of their numbers. Returns how many. Raises as `erase` does."""
        with self._changing:
            self._check_open()
            rows = self._rows()
            keys = np.array([stream_key(*place) for place in seqs], dtype=np.uint64)
            self._filter(
                self._shards,
                lambda live: may_hold_any(live, keys),
                lambda event: event.seq not in seqs.get((event.tenant, event.stream), ()),
            )
            return rows - self._rows()

    def link(self, link: Callable[[Path], None]) -> None:
        """Call `link` with every file, manifest last, as they are at one moment. None of them is changed in place later."""
        with self._changing:
            self._check_open()
            for name in (*(entry.name for entry in self.entries), MANIFEST):
                link(self._folder / name)

    def discard(self, name: str) -> int:
        """Put what can be read of a damaged shard into a new one, if anything: the last resort. Returns how many events are lost.

        Raises NotFound, StorageFull.
        """
        with self._changing:
            at, live = self._named(name)
            kept: list[LogEvent] = []
            with contextlib.suppress(Damaged):
                kept = list(self._open.get(live.entry).whole_groups())
            new = [self._load(self._write(kept))] if kept else []
            self._commit((*self._shards[:at], *new, *self._shards[at + 1 :]))
            return live.entry.rows - len(kept)

    def reload(self, name: str) -> None:
        """Read a shard anew, whose file was brought back. Raises NotFound."""
        with self._changing:
            at, live = self._named(name)
            self._open.drop([name])
            self._shards = (*self._shards[:at], self._load(live.entry), *self._shards[at + 1 :])

    def renew_manifest(self) -> None:
        """Write a manifest that was damaged as it must be, and remove the shards that it does not name. Raises StorageFull."""
        with self._changing:
            self._check_open()
            self._commit(self._shards)
            remove_unnamed(self._folder, self.entries)

    def verify(self) -> list[str]:
        """Read everything, and say what is wrong: one sentence a problem. Changes go on meanwhile."""
        return self.misnamed() + [problem for found in self.damaged().values() for problem in found]

    def damaged(self) -> dict[str, list[str]]:
        """Read every shard, and say what is wrong with it: the damaged ones by name. Changes go on meanwhile."""
        damaged = {}
        for live in self._shards:
            self._check_open()
            found = damage(self._folder / live.entry.name, live.entry)
            if found and live.entry in self.entries:
                damaged[live.entry.name] = found
        return damaged

    def misnamed(self) -> list[str]:
        """What is wrong with the manifest, or not in it."""
        with self._changing:
            self._check_open()
            return misnamed(self._folder, self.entries)

    def _answer(self, ask: Callable[[tuple[Live, ...]], T]) -> T:
        """Ask the valid shards, once more if they were replaced or closed by others meanwhile."""
        while True:
            self._check_open()
            shards = self._shards
            try:
                return ask(shards)
            except Closed:
                continue
            except Damaged:
                if shards is self._shards:
                    raise

    def _without_known(self, events: Iterable[LogEvent]) -> list[LogEvent]:
        """The events that no shard holds, each once, in order of time."""
        fresh: dict[Place, LogEvent] = {}
        for event in events:
            fresh.setdefault(_place(event), event)

        def ask(shards: tuple[Live, ...]) -> set[Place]:
            known: set[Place] = set()
            for live, group, places in whereabouts(shards, list(fresh)):
                try:
                    known.update(_place(event) for event in self._open.get(live.entry).events(group))
                except Damaged:  # it leaves the index's word, which was checked
                    known.update(places)
            return known

        for place in self._answer(ask):
            fresh.pop(place, None)
        return sorted(fresh.values(), key=lambda event: (event.time_ms, event.tenant, event.stream, event.seq))

    def _filter(
        self, shards: Iterable[Live], concerns: Callable[[Live], bool], keep: Callable[[LogEvent], bool]
    ) -> None:
        """Rewrite those of `shards` that it concerns. What is damaged is raised when the others are done."""
        unread = None
        for live in shards:
            try:
                if concerns(live):
                    self._replace([live], keep)
            except Damaged as error:
                unread = error
        if unread:
            raise unread

    def _replace(self, group: Sequence[Live], keep: Callable[[LogEvent], bool]) -> None:
        """Put the events of neighbouring shards that are to be kept into one new shard, or none."""
        kept = (event for live in group for event in self._events(live.entry) if keep(event))
        first = next(kept, None)
        new = [] if first is None else [self._load(self._write(itertools.chain([first], kept)))]
        at = self._shards.index(group[0])
        self._commit((*self._shards[:at], *new, *self._shards[at + len(group) :]))

    def _events(self, entry: LogShardEntry) -> Iterator[LogEvent]:
        with contextlib.closing(LogShard(self._folder / entry.name, entry)) as shard:
            yield from shard.all_events()

    def _write(self, events: Iterable[LogEvent]) -> LogShardEntry:
        number = self._next_number
        self._next_number += 1
        return write_log_shard(self._folder, shard_name(number), events)

    def _load(self, entry: LogShardEntry) -> Live:
        try:
            return Live(entry, self._open.get(entry).index())
        except Damaged as error:
            return Live(entry, None, error)

    def _commit(self, shards: tuple[Live, ...]) -> None:
        """Make `shards` the valid ones, on disk and in memory, and remove the others."""
        path = self._folder / MANIFEST
        entries = tuple(live.entry for live in shards)
        names = {entry.name for entry in entries}
        make_way(path)
        try:
            write_bytes(path, Manifest(self._next_number, entries).encode())
        except DataPlaneError:
            # A full disk must not keep the new shard as well. Which manifest is there now is for the disk to say.
            with contextlib.suppress(DataPlaneError):
                remove_unnamed(self._folder, (*Manifest.read(path).shards, *self.entries))
            self._open.drop(names - {entry.name for entry in self.entries})
            raise
        removed = [entry.name for entry in self.entries if entry.name not in names]
        self._shards = shards
        self._open.drop(removed)
        if removed:
            remove_files(self._folder, removed)

    def _named(self, name: str) -> tuple[int, Live]:
        """A shard and its place. Raises NotFound, Closed."""
        self._check_open()
        found = next(((at, live) for at, live in enumerate(self._shards) if live.entry.name == name), None)
        if found is None:
            raise NotFound(f"There is no shard {name} in {self._folder}.")
        return found

    def _rows(self) -> int:
        return sum(live.entry.rows for live in self._shards)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"The history in {self._folder} is closed.")


def _place(event: LogEvent) -> Place:
    return event.tenant, event.stream, event.seq
