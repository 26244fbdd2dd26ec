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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import numpy as np

from dataplane.errors import Closed, Damaged, DataPlaneError, NotFound
from dataplane.files import remove_files, remove_leftovers, storage_errors, write_bytes
from dataplane.logmanifest import MANIFEST, Manifest, remove_unnamed, shard_name, shard_names
from dataplane.logshards import (
    LARGEST_SEQ,
    LogEvent,
    LogIndex,
    LogShard,
    LogShardEntry,
    OpenShards,
    stream_key,
    write_log_shard,
)
from dataplane.parquet import REPAIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

T = TypeVar("T")
_Place: TypeAlias = tuple[str, str, int]

OPEN_SHARDS = 16


@dataclass(frozen=True, slots=True)
class _Live:
    """A valid shard: its index, or what keeps it from being read."""

    entry: LogShardEntry
    index: LogIndex | None
    problem: Damaged | None = None


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
        return self._answer(lambda shards: self._find(shards, tenant, stream, seq))

    def scan(self, tenant: str, stream: str, after: int = -1, limit: int = 100) -> list[LogEvent]:
        """A stream's next events after sequence number `after`, rising, at most `limit`. Raises as `read` does."""
        return self._answer(lambda shards: self._scan(shards, (tenant, stream), after, limit))

    def compact(self, max_rows: int) -> int:
        """Merge neighbouring shards into ones of at most `max_rows` rows. Returns how many shards fewer there are.

        A merge at least doubles its largest member, so that an event is rewritten a logarithmic number of times only.
        Shards that turn out to be damaged are left out: `verify` tells of them.
        """
        with self._changing:
            self._check_open()
            before = len(self._shards)
            skipped: set[str] = set()
            while group := _mergeable(self._shards, max_rows, skipped):
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
                lambda live: _may_hold(live, tenant, stream),
                lambda event: event.tenant != tenant or stream not in {None, event.stream},
            )
            return rows - self._rows()

    def discard(self, name: str) -> None:
        """Remove a shard with all that it holds: the last resort for a damaged one. Raises NotFound."""
        with self._changing:
            self._check_open()
            if name not in {entry.name for entry in self.entries}:
                raise NotFound(f"There is no shard {name} in {self._folder}.")
            self._commit(tuple(live for live in self._shards if live.entry.name != name))

    def verify(self) -> list[str]:
        """Read everything, and say what is wrong: one sentence a problem. Changes go on meanwhile."""
        with self._changing:
            self._check_open()
            shards = self._shards
            problems = self._verify_names()
        for live in shards:
            try:
                with contextlib.closing(LogShard(self._folder / live.entry.name, live.entry)) as shard:
                    found = shard.verify()
            except Damaged as error:
                found = [str(error)]
            if found and live.entry in self.entries:
                problems += found
        return problems

    def _verify_names(self) -> list[str]:
        path = self._folder / MANIFEST
        problems = []
        try:
            if Manifest.read(path).shards != self.entries:
                problems.append(f"{path} does not name the shards that are in use. {REPAIR}")
        except Damaged as error:
            problems.append(str(error))
        named = {entry.name for entry in self.entries}
        unnamed = (name for name in shard_names(self._folder) if name not in named)
        return problems + [f"{self._folder / name} is in no manifest. {REPAIR}" for name in unnamed]

    def _answer(self, ask: Callable[[tuple[_Live, ...]], T]) -> T:
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

    def _find(self, shards: tuple[_Live, ...], tenant: str, stream: str, seq: int) -> LogEvent | None:
        if not 0 <= seq <= LARGEST_SEQ:
            return None
        key = stream_key(tenant, stream)
        for live in reversed(shards):
            group = live.index.find(key, seq) if live.index else None
            if group is not None and (event := self._open.get(live.entry).find(group, tenant, stream, seq)):
                return event
        _refuse_unread(shards)
        return None

    def _scan(self, shards: tuple[_Live, ...], place: tuple[str, str], after: int, limit: int) -> list[LogEvent]:
        _refuse_unread(shards)
        key = stream_key(*place)
        runs = sorted(
            (first, count, number, group)
            for number, live in enumerate(shards)
            if live.index
            for first, count, group in live.index.after(key, after)
        )
        decoded: dict[tuple[int, int], dict[int, LogEvent]] = {}
        found: dict[int, LogEvent] = {}
        for first, count, number, group in runs:
            if len(found) >= limit:
                break
            if (number, group) not in decoded:
                events = self._open.get(shards[number].entry).events(group)
                decoded[number, group] = {event.seq: event for event in events if (event.tenant, event.stream) == place}
            for seq in range(max(first, after + 1), first + count):
                if event := decoded[number, group].get(seq):
                    found.setdefault(seq, event)
        return [found[seq] for seq in sorted(found)[:limit]]

    def _without_known(self, events: Iterable[LogEvent]) -> list[LogEvent]:
        """The events that no shard holds, each once, in order of time."""
        fresh: dict[_Place, LogEvent] = {}
        for event in events:
            fresh.setdefault(_place(event), event)
        places = list(fresh)
        keys = np.array([stream_key(tenant, stream) for tenant, stream, _ in places], dtype=np.uint64)
        seqs = np.array([min(max(seq, 0), LARGEST_SEQ) for _, _, seq in places], dtype=np.uint64)
        for live in self._shards:
            groups = live.index.find_all(keys, seqs) if live.index else np.full(len(places), -1)
            for group in np.unique(groups[groups >= 0]).tolist():
                known: Iterable[_Place] = [places[position] for position in np.flatnonzero(groups == group)]
                # A row group that cannot be read leaves the index's word, which was checked.
                with contextlib.suppress(Damaged):
                    known = {_place(event) for event in self._open.get(live.entry).events(group)}
                for place in known:
                    fresh.pop(place, None)
        return sorted(fresh.values(), key=lambda event: (event.time_ms, event.tenant, event.stream, event.seq))

    def _filter(
        self, shards: Iterable[_Live], concerns: Callable[[_Live], bool], keep: Callable[[LogEvent], bool]
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

    def _replace(self, group: Sequence[_Live], keep: Callable[[LogEvent], bool]) -> None:
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

    def _load(self, entry: LogShardEntry) -> _Live:
        try:
            return _Live(entry, self._open.get(entry).index())
        except Damaged as error:
            return _Live(entry, None, error)

    def _commit(self, shards: tuple[_Live, ...]) -> None:
        """Make `shards` the valid ones, on disk and in memory, and remove the others."""
        path = self._folder / MANIFEST
        entries = tuple(live.entry for live in shards)
        names = {entry.name for entry in entries}
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

    def _rows(self) -> int:
        return sum(live.entry.rows for live in self._shards)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"The history in {self._folder} is closed.")


def _place(event: LogEvent) -> _Place:
    return event.tenant, event.stream, event.seq


def _refuse_unread(shards: tuple[_Live, ...]) -> None:
    """Raise what keeps a shard from being read, if there is one: what it holds is not known."""
    for live in shards:
        if live.problem:
            raise type(live.problem)(str(live.problem)) from live.problem


def _may_hold(live: _Live, tenant: str, stream: str | None) -> bool:
    _refuse_unread((live,))
    if live.index is None or not live.index.holds_tenant(tenant):
        return False
    return stream is None or live.index.holds_stream(stream_key(tenant, stream))


def _mergeable(shards: tuple[_Live, ...], max_rows: int, skipped: set[str]) -> list[_Live]:
    """Neighbours to merge into one shard of at most `max_rows` rows; none if no merge is worth while."""
    group: list[_Live] = []
    for live in (*shards, None):
        rows = [member.entry.rows for member in group]
        fits = live and not live.problem and live.entry.name not in skipped and sum(rows) + live.entry.rows <= max_rows
        if live and fits:
            group.append(live)
            continue
        while len(group) > 1 and 2 * max(rows) > sum(rows):
            del group[0], rows[0]
        if len(group) > 1:
            return group
        group = [live] if live and not live.problem and live.entry.name not in skipped else []
    return []
