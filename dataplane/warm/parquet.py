"""Parquet files whose every byte is checked before it is believed: what vector shards and log shards are made of.

Any Parquet reader opens these files. What we add lies outside them, with whoever names them: the file's length, its
SHA-256, and a CRC32 of each range of bytes that is read by itself (of each row group, and of the footer). Parquet's own
page checksums would leave the footer unchecked, and a flipped bit there points the reader at the wrong bytes.

- `GroupWriter` writes one row group a call, so memory is bounded by a group. It writes no statistics and no Arrow schema:
  the footer is all that a reader must hold in memory, and it grows with groups x columns.
- `read_layout` tells where in the file each column of each row group lies.
- `CheckedFile` reads ranges by pread. A file that is mapped would count its cached pages as this process's memory.
- `GroupReader` decodes row groups of a CheckedFile, whose footer it has checked.

A file is immutable once it has its final name. A CheckedFile stays readable after its file was unlinked, and closing it
while others read is safe: the last of them closes the descriptor.

This is the one place that imports pyarrow. Its errors become Damaged (reading) or InvalidInput (values that do not fit);
a full disk is translated by `files.storage_errors`. Decoding and reading release the GIL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataplane.errors import ChecksumMismatch, Closed, Damaged, InvalidInput, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any] | list[Any]  # numbers and fixed-width bytes are arrays; strings and bytes are lists

REPAIR = "Run `acu data verify --repair`, or restore the file."
MAGIC = 4  # bytes before the first row group
PIECE = 1 << 20
ONE_PAGE = 1 << 30  # a column of a row group is one page, so that its values lie in one piece
ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Column:
    """A column that holds no nulls, except `nullable` integers, whose 0 is stored as null.

    `kind` "fixed" is `width` bytes a row: uint8 arrays (n, width). `plain` columns are neither compressed nor encoded.
    """

    name: str
    kind: Literal["uint64", "int64", "string", "binary", "fixed"]
    width: int = 0
    plain: bool = False
    repeats: bool = False  # few different values: stored as a dictionary
    nullable: bool = False

    @property
    def type(self) -> Any:
        """The Arrow type."""
        return pa.binary(self.width) if self.kind == "fixed" else getattr(pa, self.kind)()


class GroupWriter:
    """Writes a Parquet file, one row group a call. Used as a context; an error within leaves an unfinished file."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        """Begin to write `path`. Raises OSError, which `files.write_atomically` translates."""
        self._columns = columns
        self._schema = pa.schema([pa.field(column.name, column.type, column.nullable) for column in columns])
        self._writer = pq.ParquetWriter(
            str(path),
            self._schema,
            compression={column.name: "NONE" if column.plain else "ZSTD" for column in columns},
            compression_level={column.name: ZSTD_LEVEL for column in columns if not column.plain},
            use_dictionary=[column.name for column in columns if column.repeats],
            write_statistics=False,
            store_schema=False,
            data_page_size=ONE_PAGE,
            write_batch_size=ONE_PAGE,
            max_rows_per_page=ONE_PAGE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, values: Mapping[str, Values]) -> None:
        """Write one row group. All columns are as long as each other. Raises InvalidInput, and OSError."""
        try:
            arrays = [_to_arrow(column, values[column.name]) for column in self._columns]
            table = pa.Table.from_arrays(arrays, schema=self._schema)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError) as error:
            raise InvalidInput(
                f"A value cannot be stored: {error}. Texts are valid Unicode, numbers 64 bits."
            ) from error
        self._writer.write_table(table, row_group_size=max(1, len(table)))

    def annotate(self, metadata: Mapping[str, str]) -> None:
        """Add key-value metadata to the footer."""
        self._writer.add_key_value_metadata(dict(metadata))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a Parquet file lie, in bytes from its start."""

    rows: npt.NDArray[np.int64]  # (groups,)
    borders: npt.NDArray[np.int64]  # (groups, columns + 1): column c of group g is borders[g, c] to borders[g, c + 1]
    footer: int  # what follows the last group, up to the end of the file
    size: int


def read_layout(path: Path) -> Layout:
    """The layout of a file that GroupWriter wrote. Raises Damaged."""
    with reading(path):
        metadata = pq.read_metadata(str(path))
        size = path.stat().st_size
        groups, columns = metadata.num_row_groups, metadata.num_columns
        rows = np.zeros(groups, dtype=np.int64)
        borders = np.zeros((groups, columns + 1), dtype=np.int64)
        for number in range(groups):
            group = metadata.row_group(number)
            rows[number] = group.num_rows
            for index in range(columns):
                chunk = group.column(index)
                begin = chunk.data_page_offset
                if chunk.has_dictionary_page:
                    begin = min(begin, chunk.dictionary_page_offset)
                if index and begin != borders[number, index]:
                    raise Damaged(f"{path}: the columns of row group {number} do not follow each other. {REPAIR}")
                borders[number, index : index + 2] = begin, begin + chunk.total_compressed_size
    return Layout(rows, borders, int(borders[-1, -1]) if groups else MAGIC, size)


class CheckedFile:
    """An immutable file, open for reading ranges of bytes from any thread."""

    def __init__(self, path: Path, size: int) -> None:
        """Open `path`, which must be `size` bytes long. Raises Damaged if it is missing or of another length."""
        self.path = path
        self.size = size
        with reading(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._readers = 1  # this object is one, until it is closed
        self._closed = False
        found = os.fstat(self._descriptor).st_size
        if found != size:
            self.close()
            raise Damaged(f"{path} is {found} bytes long, and was written with {size}. {REPAIR}")

    def read(self, offset: int, length: int, aligned: int = 0) -> Bytes:
        """The bytes from `offset` on: uint8 (length,), in memory of its own. Byte `aligned` lies at a multiple of 64.

        Raises Damaged if the disk cannot deliver them, Closed.
        """
        buffer = np.empty(length + 64, dtype=np.uint8)
        shift = -(buffer.ctypes.data + aligned) % 64
        target = buffer[shift : shift + length]
        with self.held() as descriptor, reading(self.path):
            done = 0
            while done < length:
                count = os.preadv(descriptor, [target[done:].data], offset + done)
                if not count:
                    raise Damaged(f"{self.path} ends before byte {offset + length}. {REPAIR}")
                done += count
        return target

    def crc32(self, offset: int, length: int) -> int:
        """CRC32 of a range of bytes. Raises as `read` does."""
        crc = 0
        for start in range(offset, offset + length, PIECE):
            crc = zlib.crc32(self.read(start, min(PIECE, offset + length - start)).data, crc)
        return crc

    def check(self, offset: int, length: int, crc32: int, what: str) -> None:
        """Raise ChecksumMismatch, naming the file and `what`, if a range of bytes is not what was written."""
        if self.crc32(offset, length) != crc32:
            raise mismatch(self.path, what)

    def prewarm(self, offset: int, length: int, *, wait: bool = False) -> None:
        """Have the system read a range into its page cache; with `wait`, return when it is there."""
        with self.held() as descriptor:
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
        if wait:
            for start in range(offset, offset + length, PIECE):
                self.read(start, min(PIECE, offset + length - start))

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """The descriptor, which stays open within the context. Raises Closed."""
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path} is closed.")
            self._readers += 1
        try:
            yield self._descriptor
        finally:
            self._release()

    def close(self) -> None:
        """Refuse further reads; the descriptor goes when the last read ends. Closing twice is no error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._readers -= 1
            last = not self._readers
        if last:
            os.close(self._descriptor)


class GroupReader:
    """Decodes row groups, one at a time. Holds the decoded footer, and the file open, until nothing refers to it."""

    def __init__(self, file: CheckedFile, footer: int, crc32: int) -> None:
        """`footer` is where the footer begins. Raises ChecksumMismatch if it is not what was written, Damaged."""
        file.check(footer, file.size - footer, crc32, "its footer")
        self._path = file.path
        self._lock = threading.Lock()
        # Through the descriptor: the name may be gone by now. `pre_buffer` would start threads.
        with file.held() as descriptor, reading(file.path):
            self._file = pq.ParquetFile(pa.OSFile(f"/proc/self/fd/{descriptor}"), pre_buffer=False)
        self.metadata = {
            key.decode(): value.decode() for key, value in (self._file.metadata.metadata or {}).items()
        }  # what `annotate` added

    def read(self, group: int, columns: Sequence[Column]) -> DecodedGroup:
        """Decode some columns of one row group, whose bytes the caller has checked. Raises Damaged."""
        with self._lock, reading(self._path):
            names = [column.name for column in columns]
            return DecodedGroup(self._file.read_row_group(group, columns=names, use_threads=False))


class DecodedGroup:
    """The decoded columns of a row group."""

    def __init__(self, table: Any) -> None:
        self._arrays = {
            name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)
        }

    def of(self, column: Column, rows: slice | None = None) -> Values:
        """A column's values, or those of some rows. Making lists takes the GIL, so ask for what is needed."""
        array = self._arrays[column.name]
        return _from_arrow(column, array if rows is None else array[rows])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate the system's and pyarrow's errors about reading `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing. {REPAIR}") from error
    except MemoryError as error:
        raise Unavailable(f"There is no memory to read {path}.") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise Unavailable(f"{path} cannot be opened now: {error.strerror}.") from error
        raise Damaged(
            f"{path} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}. {REPAIR}"
        ) from error


def mismatch(path: Path, what: str) -> ChecksumMismatch:
    """The error for bytes that are not what was written."""
    return ChecksumMismatch(f"{path}: {what} is not what was written (its checksum differs). {REPAIR}")


def _to_arrow(column: Column, values: Values) -> Any:
    if column.kind == "fixed":
        rows = np.ascontiguousarray(values, dtype=np.uint8)
        return pa.FixedSizeBinaryArray.from_buffers(column.type, len(rows), [None, pa.py_buffer(rows)])
    if column.nullable:
        numbers = np.asarray(values)
        return pa.array(numbers, column.type, mask=numbers == 0)
    return pa.array(values, column.type)


def _from_arrow(column: Column, array: Any) -> Values:
    if column.kind == "fixed":
        size = len(array) * column.width
        content = np.frombuffer(array.buffers()[1], dtype=np.uint8, count=size, offset=array.offset * column.width)
        return content.reshape(len(array), column.width)
    if column.kind in {"string", "binary"}:
        texts: list[Any] = array.to_pylist()
        return texts
    numbers: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy()
    return numbers
