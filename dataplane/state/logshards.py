"""Log shards: events that nobody changes any more, in one Parquet file, with a map from an event to its row group.

Format. GROUP_ROWS events a row group (fewer if they are large), in the order in which they were given; columns tenant,
stream, seq, kind, time_ms, payload, all zstd. The footer's key-value metadata hold the index, so that it is there without
decoding a row group. What makes a file valid is its LogShardEntry: length, SHA-256, and where each row group lies with its
CRC32.

The index is a list of *runs*: events of one stream in one row group whose sequence numbers follow each other. A run is 24
bytes: a 64-bit hash of tenant and stream, first sequence number, count, row group; sorted by hash and number. It finds
candidates; the row group's own columns decide, so two streams with one hash cost a read, and no wrong answer.

Readers check the footer's CRC32 at open and a row group's at its first read: a flipped byte is a ChecksumMismatch that
names file and group.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import numpy as np
import numpy.typing as npt

from dataplane import clock
from dataplane.errors import Damaged, InvalidInput, UnsupportedFormat
from dataplane.files import sha256_file, write_atomically
from dataplane.warm.parquet import REPAIR, CheckedFile, Column, GroupReader, GroupWriter, read_layout, reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from dataplane.warm.parquet import DecodedGroup

FORMAT = 1
GROUP_ROWS = 256
GROUP_BYTES = 128 << 10  # of payload: what reading one event decodes at most, unless a single one is larger
LARGEST_SEQ = (1 << 63) - 1
COLUMNS = (
    Column("tenant", "string", repeats=True),
    Column("stream", "string", repeats=True),
    Column("seq", "uint64"),
    Column("kind", "string", repeats=True),
    Column("time_ms", "int64"),
    Column("payload", "binary"),
)
RUN = np.dtype([("key", "<u8"), ("first", "<u8"), ("count", "<u4"), ("group", "<u4")])


class LogEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream. `seq` (0 to 2**63 - 1) is its place, once in a stream; `time_ms` is since 1970."""

    tenant: str
    stream: str
    seq: int
    kind: str
    time_ms: int
    payload: bytes


class LogGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a row group lies (bytes), and its CRC32."""

    offset: int
    length: int
    rows: int
    crc32: int


class LogShardEntry(msgspec.Struct, frozen=True):
    """What a manifest says of a log shard. Times are milliseconds since 1970, `oldest_ms` and `newest_ms` the events'."""

    name: str
    rows: int
    bytes: int
    sha256: str
    footer_crc32: int
    groups: tuple[LogGroup, ...]
    oldest_ms: int
    newest_ms: int
    created_at: int
    format: int = FORMAT


def stream_key(tenant: str, stream: str) -> int:
    """The hash that stands for a stream in indexes: 64 bits."""
    name = tenant.encode(errors="surrogatepass")
    content = len(name).to_bytes(8, "little") + name + stream.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class LogIndex:
    """The runs of a log shard, sorted by key and first sequence number; and the hashes of its tenants, sorted."""

    keys: npt.NDArray[np.uint64]
    firsts: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    groups: npt.NDArray[np.uint32]
    tenants: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, runs: npt.NDArray[Any], tenants: Iterable[int]) -> Self:
        """From runs (dtype RUN) in any order."""
        runs = runs[np.lexsort((runs["first"], runs["key"]))]
        keys, firsts, counts, groups = (np.ascontiguousarray(runs[name]) for name in ("key", "first", "count", "group"))
        return cls(keys, firsts, counts, groups, np.array(sorted(tenants), dtype=np.uint64))

    def find(self, key: int, seq: int) -> int | None:
        """The row group that holds an event, or None."""
        begin, end = self._range(key)
        run = begin + int(np.searchsorted(self.firsts[begin:end], np.uint64(seq), side="right")) - 1
        if run < begin or seq >= int(self.firsts[run]) + int(self.counts[run]):
            return None
        return int(self.groups[run])

    def find_all(self, keys: npt.NDArray[np.uint64], seqs: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """`find` for many events at once: the row group of each, or -1."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        begin = np.searchsorted(self.keys, keys)
        low, high = begin.copy(), np.searchsorted(self.keys, keys, side="right")
        while (open_ := low < high).any():  # the first run of the stream that begins after the event, by halving
            middle = np.where(open_, (low + high) // 2, 0)
            before = open_ & (self.firsts[middle] <= seqs)
            low = np.where(before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
        run = np.maximum(low - 1, 0)
        held = (low > begin) & (seqs - self.firsts[run] < self.counts[run])
        return np.where(held, self.groups[run].astype(np.int64), -1)

    def after(self, key: int, seq: int) -> list[tuple[int, int, int]]:
        """Runs of a stream that hold an event after `seq`: (first sequence number, count, row group), rising."""
        begin, end = self._range(key)
        ends = self.firsts[begin:end].astype(np.int64) + self.counts[begin:end]
        wanted = begin + np.flatnonzero(ends - 1 > seq)
        columns = (self.firsts, self.counts, self.groups)
        return list(zip(*(column[wanted].tolist() for column in columns), strict=True))

    def holds_stream(self, key: int) -> bool:
        """Whether an event of the stream may be here."""
        begin, end = self._range(key)
        return begin < end

    def holds_tenant(self, tenant: str) -> bool:
        """Whether an event of the tenant may be here."""
        return bool(np.isin(np.uint64(stream_key(tenant, "")), self.tenants))

    def encode(self) -> dict[str, str]:
        """As key-value metadata of a Parquet file."""
        runs = np.empty(len(self.keys), dtype=RUN)
        runs["key"], runs["first"], runs["count"], runs["group"] = self.keys, self.firsts, self.counts, self.groups
        packed = {"dataplane.runs": runs.tobytes(), "dataplane.tenants": self.tenants.astype("<u8").tobytes()}
        return {name: base64.b64encode(zlib.compress(content, 1)).decode() for name, content in packed.items()}

    @classmethod
    def decode(cls, metadata: dict[str, str]) -> Self:
        """The inverse of `encode`. Raises KeyError, ValueError or zlib.error if it is none."""
        runs, tenants = (
            zlib.decompress(base64.b64decode(metadata[name])) for name in ("dataplane.runs", "dataplane.tenants")
        )
        return cls.of(np.frombuffer(runs, dtype=RUN), np.frombuffer(tenants, dtype="<u8").tolist())

    def _range(self, key: int) -> tuple[int, int]:
        wanted = np.uint64(key)
        return int(np.searchsorted(self.keys, wanted)), int(np.searchsorted(self.keys, wanted, side="right"))


def write_log_shard(folder: Path, name: str, events: Iterable[LogEvent]) -> LogShardEntry:
    """Write events (at least one, each once) as the shard `folder/name`, in the given order. Durable.

    Memory: one row group. Raises InvalidInput, StorageFull, Unavailable; nothing is left then.
    """
    return write_atomically(folder / name, lambda path: _write(path, name, events))


class LogShard:
    """An open log shard. Any thread may read."""

    def __init__(self, path: Path, entry: LogShardEntry) -> None:
        """Open `path` by its entry, and check its footer. Raises Damaged and its kinds."""
        if entry.format > FORMAT:
            raise UnsupportedFormat(f"{path} was written by a newer release. Use that release.")
        self.entry = entry
        self._file = CheckedFile(path, entry.bytes)
        footer = entry.groups[-1].offset + entry.groups[-1].length
        try:
            self._reader = GroupReader(self._file, footer, entry.footer_crc32)
        except BaseException:
            self._file.close()
            raise
        self._checked = bytearray(len(entry.groups))

    def index(self) -> LogIndex:
        """The index that the footer holds. Raises Damaged."""
        with reading(self._file.path):
            try:
                return LogIndex.decode(self._reader.metadata)
            except (KeyError, zlib.error) as error:
                raise Damaged(f"{self._file.path} has no index of its events. {REPAIR}") from error

    def find(self, group: int, tenant: str, stream: str, seq: int) -> LogEvent | None:
        """The event of that place, if row group `group` holds it. Raises ChecksumMismatch, Damaged, Closed."""
        values = self._decoded(group)
        tenants, streams, seqs, kinds, times, payloads = COLUMNS
        for row in np.flatnonzero(np.asarray(values.of(seqs)) == np.uint64(seq)).tolist():
            place = slice(row, row + 1)
            if (values.of(tenants, place)[0], values.of(streams, place)[0]) == (tenant, stream):
                kind, time_ms, payload = (values.of(column, place)[0] for column in (kinds, times, payloads))
                return LogEvent(tenant, stream, seq, kind, int(time_ms), payload)
        return None

    def events(self, group: int) -> list[LogEvent]:
        """The events of a row group, in their order. Raises ChecksumMismatch, Damaged, Closed."""
        values = self._decoded(group)
        columns = [cast("Any", values.of(column)) for column in COLUMNS]
        return list(
            map(LogEvent, *(column.tolist() if isinstance(column, np.ndarray) else column for column in columns))
        )

    def all_events(self) -> Iterator[LogEvent]:
        """Every event, in order, decoding a row group at a time."""
        for group in range(len(self.entry.groups)):
            yield from self.events(group)

    def whole_groups(self) -> Iterator[LogEvent]:
        """Every event of the row groups that are what was written, read anew."""
        for group in range(len(self.entry.groups)):
            self._checked[group] = 0
            with contextlib.suppress(Damaged):
                yield from self.events(group)

    def verify(self) -> list[str]:
        """Read the whole file, and say what is wrong with it: one sentence a problem."""
        problems = []
        builder = _IndexBuilder()
        for group in range(len(self.entry.groups)):
            self._checked[group] = 0
            try:
                builder.add(self.events(group))
            except Damaged as error:
                problems.append(str(error))
        path = self._file.path
        if not problems and sha256_file(path) != self.entry.sha256:
            problems.append(f"{path}: the file is not what was written (its checksum differs). {REPAIR}")
        if not problems and builder.build().encode() != self.index().encode():
            problems.append(f"{path}: its index does not tell of its events. {REPAIR}")
        return problems

    def close(self) -> None:
        """Refuse further reads."""
        self._file.close()

    def _decoded(self, group: int) -> DecodedGroup:
        at = self.entry.groups[group]
        if not self._checked[group]:
            self._file.check(at.offset, at.length, at.crc32, f"row group {group}")
            self._checked[group] = 1
        with self._file.held():
            return self._reader.read(group, COLUMNS)


def damage(path: Path, entry: LogShardEntry) -> list[str]:
    """What is wrong with the log shard `path`, a sentence a problem, by reading all of it."""
    try:
        with contextlib.closing(LogShard(path, entry)) as shard:
            return shard.verify()
    except Damaged as error:
        return [str(error)]


class OpenShards:
    """The log shards of a folder that are open: the most recently used, at most `most`. Any thread may call."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[str, LogShard] = OrderedDict()

    def get(self, entry: LogShardEntry) -> LogShard:
        """The open shard. Another call may close it, when it is the one not used for longest. Raises Damaged."""
        with self._lock:
            shard = self._open.get(entry.name)
            if shard is not None:
                self._open.move_to_end(entry.name)
                return shard
        shard = LogShard(self._folder / entry.name, entry)
        with self._lock:
            replaced = self._open.pop(entry.name, None)
            self._open[entry.name] = shard
            surplus = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - self._most)]
        for other in [*surplus, *([replaced] if replaced else [])]:
            other.close()
        return shard

    def drop(self, names: Iterable[str]) -> None:
        """Close the named ones."""
        with self._lock:
            dropped = [self._open.pop(name, None) for name in names]
        for shard in dropped:
            if shard:
                shard.close()

    def close(self) -> None:
        """Close all."""
        self.drop(list(self._open))


class _IndexBuilder:
    """Collects the runs of row groups, one after the other."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], int] = {}
        self._tenants: set[str] = set()
        self._runs: list[npt.NDArray[Any]] = []

    def add(self, events: list[LogEvent]) -> None:
        """The next row group's events."""
        keys = np.array([self._key(event) for event in events], dtype=np.uint64)
        seqs = np.array([event.seq for event in events], dtype=np.uint64)
        order = np.lexsort((seqs, keys))
        keys, seqs = keys[order], seqs[order]
        starts = np.flatnonzero(np.r_[True, (np.diff(keys) != 0) | (np.diff(seqs) != 1)])
        runs = np.empty(len(starts), dtype=RUN)
        runs["key"], runs["first"], runs["group"] = keys[starts], seqs[starts], len(self._runs)
        runs["count"] = np.diff(np.r_[starts, len(events)])
        self._runs.append(runs)

    def build(self) -> LogIndex:
        """The index of what was added."""
        return LogIndex.of(np.concatenate(self._runs), {stream_key(tenant, "") for tenant in self._tenants})

    def _key(self, event: LogEvent) -> int:
        name = (event.tenant, event.stream)
        if name not in self._keys:
            self._keys[name] = stream_key(*name)
            self._tenants.add(event.tenant)
        return self._keys[name]


def _groups(events: Iterable[LogEvent]) -> Iterator[list[LogEvent]]:
    group: list[LogEvent] = []
    size = 0
    for event in events:
        if group and (len(group) == GROUP_ROWS or size + len(event.payload) > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(event)
        size += len(event.payload)
    if group:
        yield group


def _write(path: Path, name: str, events: Iterable[LogEvent]) -> LogShardEntry:
    builder = _IndexBuilder()
    oldest, newest = LARGEST_SEQ, -LARGEST_SEQ
    with GroupWriter(path, COLUMNS) as writer:
        for group in _groups(events):
            if not all(0 <= event.seq <= LARGEST_SEQ for event in group):
                raise InvalidInput("An event's sequence number is 0 to 2**63 - 1.", param="seq")
            writer.write({column.name: [getattr(event, column.name) for event in group] for column in COLUMNS})
            builder.add(group)
            times = [event.time_ms for event in group]
            oldest, newest = min(oldest, *times), max(newest, *times)
        if oldest > newest:
            raise InvalidInput("A log shard holds at least one event.", param="events")
        writer.annotate({"dataplane.format": str(FORMAT), **builder.build().encode()})
    layout = read_layout(path)
    file = CheckedFile(path, layout.size)
    try:
        groups = []
        for rows, borders in zip(layout.rows.tolist(), layout.borders.tolist(), strict=True):
            length = borders[-1] - borders[0]
            groups.append(LogGroup(borders[0], length, rows, file.crc32(borders[0], length)))
        return LogShardEntry(
            name=name,
            rows=sum(group.rows for group in groups),
            bytes=layout.size,
            sha256=sha256_file(path),
            footer_crc32=file.crc32(layout.footer, layout.size - layout.footer),
            groups=tuple(groups),
            oldest_ms=oldest,
            newest_ms=newest,
            created_at=clock.now_ms(),
        )
    finally:
        file.close()
