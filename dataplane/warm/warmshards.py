"""WarmShards: a collection's demoted rows on the disk, as Parquet shards named by one manifest.

    shards.json           the manifest: the entries of all valid shards, and a SHA-256 of them
    shard-<number>.parquet

A shard is written whole before the manifest names it, and removed after the manifest no longer does; a file that the manifest
does not name is a leftover and is removed. RocksDB has every row of them: a shard that is missing or damaged is dropped from
the manifest, and its rows are read from RocksDB until they are demoted again.

Row groups have numbers over all shards of the process's life: rising, never used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.errors import Closed, Damaged, DataPlaneError, StorageFull, UnsupportedFormat
from dataplane.files import make_way, remove_files, remove_leftovers, write_bytes
from dataplane.warm.clusters import cluster
from dataplane.warm.shards import Shard, ShardEntry, ShardMeta, ShardRows, write_shard

GROUP_ROWS = 64
GROUP_BYTES = 350  # of memory: where a row group lies, and its checksums
MANIFEST = "shards.json"
FORMAT = 1
Rows = NDArray[np.uint64]
Floats = NDArray[np.float32]

_log = logging.getLogger(__name__)


class Manifest(Struct, frozen=True):
    """What `shards.json` holds. `sha256` is that of the entries, encoded."""

    shards: tuple[ShardEntry, ...]
    next_number: int
    sha256: str = ""
    format: int = FORMAT


class WarmShards:
    """The shards in `folder`. One thread changes them; any thread reads groups."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_number = 1
        self._lock = threading.Lock()
        self._shards: dict[str, Shard] = {}
        self._groups: dict[int, tuple[Shard, int]] = {}
        self._next_group = 0
        self._first: dict[str, int] = {}
        self.problems: list[str] = []  # what was found damaged, and dropped

    def open(self, seq: int) -> None:
        """Take up the shards that the manifest names; a damaged manifest or shard is dropped, and named in `problems`.

        So is a shard that was built beyond `seq`, the last change that RocksDB has: numbers of rows that a loss of power took
        are given out again.
        """
        if not self._folder.is_dir():
            return
        remove_leftovers(self._folder)
        try:
            manifest = read_manifest(self._folder / MANIFEST)
        except Damaged as error:
            self._note(f"{error} Its rows are read from RocksDB.")
            manifest = Manifest(
                (), 1 + max((_number(path) for path in self._folder.glob("shard-*.parquet")), default=0)
            )
        self._next_number = manifest.next_number
        for entry in manifest.shards:
            if entry.seq > seq:
                self._note(f"{self._folder / entry.name} knows rows that a loss of power took.")
                continue
            try:
                self._add(Shard.open(self._folder / entry.name, entry))
            except DataPlaneError as error:
                self._note(f"{error} Its rows are read from RocksDB.")
        named = set(self._shards)
        stray = [path.name for path in self._folder.glob("shard-*.parquet") if path.name not in named]
        if stray or self.problems:
            self.write_manifest()
            remove_files(self._folder, stray)

    def _note(self, problem: str) -> None:
        _log.error("a warm shard was dropped", extra={"why": problem})
        self.problems.append(problem)

    def _add(self, shard: Shard) -> int:
        first, count = self._next_group, len(shard.entry.groups)
        self._next_group += count
        self._groups.update((first + number, (shard, number)) for number in range(count))
        self._first[shard.entry.name] = first
        self._shards[shard.entry.name] = shard
        return first

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """The valid shards."""
        return tuple(shard.entry for shard in list(self._shards.values()))

    @property
    def paths(self) -> list[Path]:
        """Every file that a backup must have: the manifest is the first."""
        return [self._folder / MANIFEST, *(self._folder / entry.name for entry in self.entries)] if self._shards else []

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken, about: what is known of each row group."""
        return GROUP_BYTES * len(self._groups)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(entry.bytes for entry in self.entries)

    def demote(self, rows: ShardRows, meta: ShardMeta) -> NDArray[np.int64]:
        """Write rows as a new shard. Returns the row group of each, shape [n]. Raises StorageFull, Unavailable."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"shard-{self._next_number:08d}.parquet"
        self._next_number += 1
        found = cluster(rows.vectors, GROUP_ROWS)
        entry = write_shard(self._folder, name, rows, found.groups, meta)
        shard = Shard.open(self._folder / name, entry)
        with self._lock:
            first = self._add(shard)
        self.write_manifest()
        groups = np.empty(len(rows), np.int64)
        for number, members in enumerate(found.groups):
            groups[members] = first + number
        return groups

    def group_vectors(self, group: int) -> tuple[Rows, Floats]:
        """The row numbers, shape [n], and vectors, shape [n, dimensions], of a row group.

        Raises ChecksumMismatch, Damaged, and Closed for a group that is gone.
        """
        shard, number = self._group(group)
        return shard.read_vectors(number)

    def prewarm(self, groups: list[int]) -> None:
        """Have row groups read ahead into the page cache."""
        wanted: dict[str, tuple[Shard, list[int]]] = {}
        for group in groups:
            shard, number = self._group(group)
            wanted.setdefault(shard.entry.name, (shard, []))[1].append(number)
        for shard, numbers in wanted.values():
            shard.prewarm(numbers)

    def head_bytes(self, groups: list[int]) -> int:
        """Bytes of the row numbers and vectors of row groups."""
        return sum(shard.entry.groups[number].head for shard, number in map(self._group, groups))

    def _group(self, group: int) -> tuple[Shard, int]:
        found = self._groups.get(group)
        if found is None:
            raise Closed("that shard has been removed.")
        return found

    def groups(self, name: str) -> Iterator[tuple[int, Rows]]:
        """Each row group of a shard, and the rows in it. Raises as `group_vectors`."""
        for group in self.numbers_of(name):
            yield group, self.group_vectors(group)[0]

    def numbers_of(self, name: str) -> range:
        """The numbers of a shard's row groups."""
        first = self._first[name]
        return range(first, first + len(self._shards[name].entry.groups))

    def drop(self, name: str, why: str = "") -> None:
        """Take a shard away. No row may be WARM in it any more, and no search that saw one of them go on."""
        if why:
            self._note(why)
        shard = self._shards.pop(name)
        first = self._first.pop(name)
        for group in range(first, first + len(shard.entry.groups)):
            del self._groups[group]
        shard.close()
        try:
            self.write_manifest()
        except (
            StorageFull
        ):  # the file goes first: a manifest that names one that is missing is no harm, and this gives space
            remove_files(self._folder, [name])
            self.write_manifest()
        remove_files(self._folder, [name])

    def holding(self, ids: Collection[str]) -> list[str]:
        """The names of the shards that hold rows with any of these ids, live or not, or that cannot be read.

        Reads the ids of all shards. While nobody changes them.
        """
        return [name for name, shard in list(self._shards.items()) if _holds(shard, ids)]

    def shard_of(self, group: int) -> str:
        """The name of the shard that a row group is in."""
        return self._group(group)[0].entry.name

    def damaged(self) -> dict[str, list[str]]:
        """Read every shard; of those that are damaged what is wrong, one sentence a problem."""
        found: dict[str, list[str]] = {}
        for name, shard in list(self._shards.items()):
            with contextlib.suppress(Closed):  # it was taken away meanwhile
                if problems := shard.verify():
                    found[name] = problems
        return found

    def verify(self) -> list[str]:
        """Read everything; what is wrong, one sentence a problem."""
        problems = [problem for found in self.damaged().values() for problem in found]
        if self._shards:
            try:
                read_manifest(self._folder / MANIFEST)
            except DataPlaneError as error:
                problems.append(str(error))
        return problems

    def write_manifest(self) -> None:
        """Name the valid shards on the disk. Raises StorageFull, Unavailable."""
        entries = self.entries
        make_way(self._folder / MANIFEST)
        write_bytes(
            self._folder / MANIFEST,
            msgspec.json.encode(Manifest(entries, self._next_number, _sum(entries, self._next_number))),
        )

    def close(self) -> None:
        """Close all files."""
        for shard in self._shards.values():
            shard.close()


def _holds(shard: Shard, ids: Collection[str]) -> bool:
    try:
        return any(id_ in ids for group in range(len(shard.entry.groups)) for id_ in shard.read_rows(group).ids)
    except Damaged:
        return True
    finally:
        shard.release()


def read_manifest(path: Path) -> Manifest:
    """The manifest in `path`; an empty one if there is none. Raises Damaged."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest((), 1)
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"the manifest {path} cannot be read: {error}.") from error
    if manifest.format != FORMAT:
        raise UnsupportedFormat(f"the manifest {path} has format {manifest.format}; this release reads {FORMAT}.")
    if manifest.sha256 != _sum(manifest.shards, manifest.next_number):
        raise Damaged(f"the manifest {path} does not have its own checksum.")
    return manifest


def _sum(entries: tuple[ShardEntry, ...], next_number: int) -> str:
    return hashlib.sha256(msgspec.json.encode((entries, next_number))).hexdigest()


def _number(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
