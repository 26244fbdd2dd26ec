"""Vector shards: the demoted rows of a collection in one Parquet file, similar rows in one row group.

A shard is an accelerator. Which of its rows are still live, and what they are now, is for RocksDB to say; a shard only
tells what they were at its sequence number. It never changes: rows leave by being ignored, then by a new shard.

Format. One row group per cluster (about 64 rows), columns in this order:

    row         uint64                    PLAIN, uncompressed: the row number
    vector      fixed_len_byte_array      PLAIN, uncompressed: float32, little-endian (zstd gains nothing on vectors)
    id          string                    zstd
    text        string                    zstd
    attributes  binary                    zstd: JSON
    expires_at  int64, null: never        zstd: milliseconds since 1970

The first two are the group's *head*, the others its *tail*. The footer's key-value metadata repeat what ShardMeta says.
What makes a file valid is its ShardEntry, which the caller stores: length, SHA-256, and for each group where it lies and
the CRC32 of head and tail. Without its entry a shard is not opened.

Reading. A head is fetched by one pread and used where it lies, without pyarrow: its columns are uncompressed and one page
each, so the vectors are its last bytes. (The writer reads them back and compares before the file gets its name.) The first
read of a head or a tail since the file was opened checks its CRC32: a flipped byte is a ChecksumMismatch that names file
and group. The footer is decoded at the first `read_rows`, so a shard that serves searches holds no more than its entry.

Crash behaviour: `write_shard` is `files.write_atomically`. A crash leaves a temporary file, or a whole shard that no entry
names; the folder's owner removes both.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import numpy as np
import numpy.typing as npt

from dataplane import clock
from dataplane.errors import DataPlaneError, DimensionMismatch, InvalidInput, UnsupportedFormat
from dataplane.files import sha256_file, write_atomically
from dataplane.warm.parquet import CheckedFile, Column, GroupReader, GroupWriter, Layout, mismatch, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dataplane.warm.parquet import Bytes

Floats = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int64]

FORMAT = 1
HEAD_CHECKED, TAIL_CHECKED = 1, 2
HEAD_COLUMNS = 2


class ShardMeta(msgspec.Struct, frozen=True):
    """Whose rows a shard holds. `seq` is the collection's sequence number up to which it is built."""

    collection: str
    seq: int
    dimensions: int
    metric: str


class ShardGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a row group lies (bytes), and the CRC32 of its parts. Its rows are `rows_at` bytes after its beginning."""

    offset: int
    head: int  # length of the columns row and vector
    length: int
    rows: int
    rows_at: int
    head_crc32: int
    tail_crc32: int


class ShardEntry(msgspec.Struct, frozen=True):
    """What a manifest says of a shard; without it the file is not valid. `created_at` is milliseconds since 1970."""

    name: str
    meta: ShardMeta
    rows: int
    bytes: int
    sha256: str
    footer_crc32: int
    groups: tuple[ShardGroup, ...]
    created_at: int
    format: int = FORMAT

    @property
    def seq(self) -> int:
        """The collection's sequence number up to which the shard is built."""
        return self.meta.seq


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Rows of a collection, each at one position of every field."""

    rownums: RowNumbers  # (n,)
    vectors: Floats  # (n, d)
    ids: Sequence[str]
    texts: Sequence[str]
    attributes: Sequence[bytes]  # JSON
    expires_at: npt.NDArray[np.int64]  # (n,), milliseconds since 1970; 0: never

    def __len__(self) -> int:
        return len(self.rownums)


def write_shard(folder: Path, name: str, rows: ShardRows, groups: Sequence[Slots], meta: ShardMeta) -> ShardEntry:
    """Write `rows` as the shard `folder/name`, one row group for each of `groups` (positions in `rows`). Durable.

    Every row is in exactly one group. Memory: one group at a time, besides `rows`. Raises InvalidInput, StorageFull,
    Unavailable; nothing is left then.
    """
    _check_rows(rows, groups, meta)
    return write_atomically(folder / name, lambda path: _write(path, name, rows, groups, meta))


class Shard:
    """An open shard. Any thread may read; `close` may come at any time, and later reads raise Closed."""

    def __init__(self, file: CheckedFile, entry: ShardEntry) -> None:
        """Use `Shard.open`."""
        self.entry = entry
        self._file = file
        self._checked = bytearray(len(entry.groups))
        self._lock = threading.Lock()
        self._reader: GroupReader | None = None
        self._footer = _end(entry)

    @classmethod
    def open(cls, path: Path, entry: ShardEntry) -> Self:
        """Open a shard by its entry: one system call, nothing is read. Raises Damaged if it is missing or truncated."""
        if entry.format > FORMAT:
            raise UnsupportedFormat(f"{path} was written by a newer release. Use that release, or remove the shard.")
        return cls(CheckedFile(path, entry.bytes), entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """Where the file was when it was opened."""
        return self._file.path

    def read_vectors(self, group: int) -> tuple[RowNumbers, Floats]:
        """Row numbers (n,) and vectors (n, d) of one group. Raises ChecksumMismatch, Damaged, Closed."""
        at = self.entry.groups[group]
        dimensions = self.entry.meta.dimensions
        vectors_at = at.head - 4 * dimensions * at.rows
        head = self._file.read(at.offset, at.head, vectors_at)
        if not self._checked[group] & HEAD_CHECKED:
            if zlib.crc32(head.data) != at.head_crc32:
                raise mismatch(self.path, f"row group {group}")
            self._mark(group, HEAD_CHECKED)
        rownums = head[at.rows_at : at.rows_at + 8 * at.rows].copy().view("<u8")
        return rownums, head[vectors_at:].view("<f4").reshape(at.rows, dimensions)

    def read_rows(self, group: int) -> ShardRows:
        """Everything of one group. Raises ChecksumMismatch, Damaged, Closed."""
        rownums, vectors = self.read_vectors(group)
        at = self.entry.groups[group]
        if not self._checked[group] & TAIL_CHECKED:
            self._file.check(at.offset + at.head, at.length - at.head, at.tail_crc32, f"row group {group}")
            self._mark(group, TAIL_CHECKED)
        _, _, *columns = _columns(self.entry.meta.dimensions)
        tail = self._decoder().read(group, columns)
        ids, texts, attributes, expires_at = (cast("Any", tail.of(column)) for column in columns)
        return ShardRows(rownums, vectors, ids, texts, attributes, expires_at)

    def prewarm(self, groups: Iterable[int], *, wait: bool = False) -> int:
        """Have the heads of `groups` read into the page cache; with `wait`, return when they are there. Returns bytes.

        Groups whose heads lie within 64 KiB of each other are fetched as one range. Raises Closed, Damaged.
        """
        ranges: list[list[int]] = []
        for group in sorted(set(groups)):
            at = self.entry.groups[group]
            if ranges and at.offset <= ranges[-1][1] + (64 << 10):
                ranges[-1][1] = at.offset + at.head
            else:
                ranges.append([at.offset, at.offset + at.head])
        for begin, end in ranges:
            self._file.prewarm(begin, end - begin)
        if wait:
            for begin, end in ranges:
                self._file.prewarm(begin, end - begin, wait=True)
        return sum(end - begin for begin, end in ranges)

    def verify(self) -> list[str]:
        """Read the whole file, and say what is wrong with it: one sentence a problem. Raises Closed."""
        problems = []
        for group, at in enumerate(self.entry.groups):
            for offset, length, crc32 in (
                (at.offset, at.head, at.head_crc32),
                (at.offset + at.head, at.length - at.head, at.tail_crc32),
            ):
                try:
                    self._file.check(offset, length, crc32, f"row group {group}")
                except DataPlaneError as error:
                    problems.append(str(error))
        try:
            if self._decoder().metadata != _metadata(self.entry.meta, self.entry.rows):
                problems.append(f"{self.path}: its footer tells of another shard than its entry.")
            if not problems and sha256_file(self.path) != self.entry.sha256:
                problems.append(str(mismatch(self.path, "the file")))
        except DataPlaneError as error:
            problems.append(str(error))
        return problems

    def release(self) -> None:
        """Let go of the decoded footer; the next `read_rows` decodes it again."""
        self._reader = None  # a read that is under way keeps it until it ends

    def close(self) -> None:
        """Close the file. Reads that have begun end well. Closing twice is no error."""
        self.release()
        self._file.close()

    def _decoder(self) -> GroupReader:
        with self._lock:
            if self._reader is None:
                self._reader = GroupReader(self._file, self._footer, self.entry.footer_crc32)
            return self._reader

    def _mark(self, group: int, part: int) -> None:
        with self._lock:
            self._checked[group] |= part


def _columns(dimensions: int) -> tuple[Column, ...]:
    return (
        Column("row", "uint64", plain=True),
        Column("vector", "fixed", width=4 * dimensions, plain=True),
        Column("id", "string"),
        Column("text", "string"),
        Column("attributes", "binary"),
        Column("expires_at", "int64", nullable=True),
    )


def _metadata(meta: ShardMeta, rows: int) -> dict[str, str]:
    return {
        "dataplane.format": str(FORMAT),
        "dataplane.collection": meta.collection,
        "dataplane.seq": str(meta.seq),
        "dataplane.dimensions": str(meta.dimensions),
        "dataplane.metric": meta.metric,
        "dataplane.rows": str(rows),
    }


def _end(entry: ShardEntry) -> int:
    """Where the footer begins."""
    return entry.groups[-1].offset + entry.groups[-1].length


def _check_rows(rows: ShardRows, groups: Sequence[Slots], meta: ShardMeta) -> None:
    count = len(rows)
    if not count:
        raise InvalidInput("A shard holds at least one row.", param="rows")
    if rows.vectors.ndim != 2 or rows.vectors.dtype != np.float32:
        raise InvalidInput("Vectors are a float32 array of shape (rows, dimensions).", param="rows.vectors")
    found = rows.vectors.shape[1]
    if found != meta.dimensions:
        message = f"The vectors have {found} dimensions, and the shard's have {meta.dimensions}."
        raise DimensionMismatch(message, param="rows.vectors")
    if {len(rows.vectors), len(rows.ids), len(rows.texts), len(rows.attributes), len(rows.expires_at)} != {count}:
        raise InvalidInput("Every field of the rows is as long as their row numbers.", param="rows")
    members = np.concatenate(groups) if len(groups) else np.empty(0, dtype=np.int64)
    if len(members) != count or not np.array_equal(np.sort(members), np.arange(count)) or not all(map(len, groups)):
        raise InvalidInput("Groups are not empty, and every row is in exactly one.", param="groups")


def _write(path: Path, name: str, rows: ShardRows, groups: Sequence[Slots], meta: ShardMeta) -> ShardEntry:
    with GroupWriter(path, _columns(meta.dimensions)) as writer:
        for group in groups:
            writer.write(
                {
                    "row": rows.rownums[group],
                    "vector": rows.vectors[group].astype("<f4", copy=False).view(np.uint8),
                    "id": [rows.ids[position] for position in group],
                    "text": [rows.texts[position] for position in group],
                    "attributes": [rows.attributes[position] for position in group],
                    "expires_at": rows.expires_at[group],
                }
            )
        writer.annotate(_metadata(meta, len(rows)))
    layout = read_layout(path)
    file = CheckedFile(path, layout.size)
    try:
        return ShardEntry(
            name=name,
            meta=meta,
            rows=len(rows),
            bytes=layout.size,
            sha256=sha256_file(path),
            footer_crc32=file.crc32(layout.footer, layout.size - layout.footer),
            groups=tuple(_sealed(file, layout, number, rows, group) for number, group in enumerate(groups)),
            created_at=clock.now_ms(),
        )
    finally:
        file.close()


def _sealed(file: CheckedFile, layout: Layout, number: int, rows: ShardRows, group: Slots) -> ShardGroup:
    """The entry of a group that was just written. Raises ChecksumMismatch if its head is not laid out as reading expects."""
    borders = [int(border) for border in layout.borders[number]]
    begin, middle, end = borders[0], borders[HEAD_COLUMNS], borders[-1]
    head: Bytes = file.read(begin, middle - begin)
    rows_at = borders[1] - begin - 8 * len(group)
    rownums = head[rows_at : rows_at + 8 * len(group)].tobytes()
    vectors = head[len(head) - rows.vectors.shape[1] * 4 * len(group) :].tobytes()
    if rownums != rows.rownums[group].astype("<u8").tobytes() or vectors != rows.vectors[group].astype("<f4").tobytes():
        raise mismatch(file.path, f"row group {number}, read back,")
    return ShardGroup(
        offset=begin,
        head=middle - begin,
        length=end - begin,
        rows=len(group),
        rows_at=rows_at,
        head_crc32=zlib.crc32(head.data),
        tail_crc32=file.crc32(middle, end - middle),
    )
