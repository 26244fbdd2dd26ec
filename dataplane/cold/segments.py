"""Segments: the Parquet objects that the archive is made of. Immutable, and named for the SHA-256 of their content.

    rows        number, id, text, attributes (msgpack), created_ms, expires_ms, vector (float32, little-endian)
    entries     key, value: RocksDB's own bytes, of the families meta, state and events
    deletions   seq, number: row `number` ended at `seq`

The same content gives the same bytes, so what is already in the bucket is not sent again. (Another release of pyarrow may
write other bytes for it; then a range that was written anew gets another name, and nothing else happens.)

A SegmentWriter takes a few hundred rows at a time and holds the encoded segment in memory, 64 MiB at most by the limits of
its users. Readers decode one row group at a time. Content is believed once its SHA-256 is that of the manifest: `fetch`.
Any Parquet reader opens these objects. pyarrow's errors become Damaged here. Encoding, decoding and hashing release the GIL.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dataplane.cold.attachments import Part
from dataplane.cold.bucket import Bucket
from dataplane.errors import ChecksumMismatch, Damaged, NotFound
from dataplane.threads import in_thread
from dataplane.truth.records import Attributes, RowRecord

FOLDER = "segments"
ZSTD_LEVEL = 3
REMEDY = "If the box is well, run `acu data archive --restart`; else restore the object from a copy of the bucket."

Kind = Literal["rows", "entries", "deletions"]
Entry = tuple[bytes, bytes]
Numbers = npt.NDArray[np.uint64]


class Row(NamedTuple):
    """A row as it is archived. `vector` is what RocksDB holds."""

    number: int
    record: RowRecord
    vector: bytes


class Sealed(Struct, frozen=True, kw_only=True):
    """A segment as a manifest names it. `size` in bytes; `count` of its rows, entries or deletions."""

    sha256: str
    size: int
    count: int

    @property
    def name(self) -> str:
        """The object's name."""
        return f"{FOLDER}/{self.sha256}.parquet"


class SegmentWriter:
    """A segment that is being written. Call it from one thread at a time."""

    def __init__(self, kind: Kind, *, width: int = 0) -> None:
        """`width`: bytes of a vector, for rows."""
        self._kind = kind
        self._schema = _schema(kind, width)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression={name: "NONE" if name == "vector" else "ZSTD" for name in self._schema.names},
            compression_level={name: ZSTD_LEVEL for name in self._schema.names if name != "vector"},
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
        )
        self.count = 0

    @property
    def size(self) -> int:
        """Bytes so far, about."""
        return int(self._sink.tell())

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Write a row group of rows, in the order of their numbers."""
        self._add(
            [
                [row.number for row in rows],
                [row.record.id for row in rows],
                [row.record.text for row in rows],
                [msgspec.msgpack.encode(row.record.attributes) for row in rows],
                [row.record.created_ms for row in rows],
                [row.record.expires_ms for row in rows],
                [row.vector for row in rows],
            ]
        )

    def add_entries(self, entries: Sequence[Entry]) -> None:
        """Write a row group of keys and values, in the order of their keys."""
        self._add([[key for key, _ in entries], [value for _, value in entries]])

    def add_deletions(self, seqs: Numbers, numbers: Numbers) -> None:
        """Write a row group of deletions, in the order of their sequence numbers."""
        self._add([seqs, numbers])

    def finish(self) -> tuple[Sealed, Any]:
        """Its name and its content, a flat buffer of bytes."""
        self._writer.close()
        content = memoryview(self._sink.getvalue()).cast("B")
        digest = hashlib.sha256(content).hexdigest()
        return Sealed(sha256=digest, size=len(content), count=self.count), content

    def _add(self, columns: list[Any]) -> None:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self.count += len(columns[0])


async def fetch(bucket: Bucket, segment: Sealed | Part) -> Any:
    """The content of a segment, or of a part of a file, checked.

    Raises Damaged and ChecksumMismatch, which name it, and BucketUnreachable.
    """
    try:
        content = memoryview(await bucket.get(segment.name))
    except NotFound as error:
        raise Damaged(f"{segment.name} is missing in {bucket.where}, and a manifest names it. {REMEDY}") from error
    digest = await in_thread(lambda: hashlib.sha256(content).hexdigest())
    if digest != segment.sha256:
        raise ChecksumMismatch(
            f"{segment.name} in {bucket.where} is not what was written (its SHA-256 differs). {REMEDY}"
        )
    return content


def read_rows(name: str, content: Any, width: int) -> Iterator[list[Row]]:
    """The rows of a segment, a row group at a time. `width`: bytes of a vector. Raises Damaged, which says `name`."""
    for columns in _groups(name, content, _schema("rows", width)):
        yield [
            Row(number, RowRecord(id_, text, _attributes(name, attributes), created, expires), vector)
            for number, id_, text, attributes, created, expires, vector in zip(*columns, strict=True)
        ]


def read_entries(name: str, content: Any) -> Iterator[list[Entry]]:
    """The keys and values of a segment, a row group at a time. Raises Damaged, which says `name`."""
    for columns in _groups(name, content, _schema("entries", 0)):
        yield list(zip(*columns, strict=True))


def read_deletions(name: str, content: Any) -> tuple[Numbers, Numbers]:
    """Sequence numbers and row numbers. Raises Damaged, which says `name`."""
    with _reading(name):
        table = pq.read_table(pa.BufferReader(content), use_threads=False)
        if not table.schema.equals(_schema("deletions", 0)):
            raise ValueError("it has other columns")
        return table["seq"].to_numpy(), table["number"].to_numpy()


def _schema(kind: Kind, width: int) -> Any:
    columns = {
        "rows": [
            ("number", pa.uint64(), False),
            ("id", pa.string(), False),
            ("text", pa.string(), True),
            ("attributes", pa.binary(), False),
            ("created_ms", pa.int64(), False),
            ("expires_ms", pa.int64(), True),
            ("vector", pa.binary(width), False),
        ],
        "entries": [("key", pa.binary(), False), ("value", pa.binary(), False)],
        "deletions": [("seq", pa.uint64(), False), ("number", pa.uint64(), False)],
    }[kind]
    return pa.schema([pa.field(name, type_, nullable) for name, type_, nullable in columns])


def _groups(name: str, content: Any, schema: Any) -> Iterator[list[list[Any]]]:
    """The columns of each row group, as Python values."""
    with _reading(name):
        file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
        if not file.schema_arrow.equals(schema):
            raise ValueError("it has other columns")
        groups = file.num_row_groups
    for group in range(groups):
        with _reading(name):
            columns = [column.to_pylist() for column in file.read_row_group(group, use_threads=False).columns]
        yield columns


def _attributes(name: str, stored: bytes) -> Attributes:
    with _reading(name):
        return msgspec.msgpack.decode(stored, type=Attributes)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, msgspec.MsgspecError, OSError, ValueError) as error:
        words = str(error).splitlines()[0] if str(error) else repr(error)
        raise Damaged(f"{name} cannot be read: {words}. {REMEDY}") from error
