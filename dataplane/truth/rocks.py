"""Rocks: RocksDB, the truth of everything that is on this box. The one place that knows rocksdict.

Column families (all in one database, so that one batch changes several of them at once):

    rows      scope + row number -> RowRecord         vectors   scope + row number -> float32, little-endian
    index     scope + id -> row number                dead      scope + seq -> row number that ended at seq
    meta      names and numbers of collections        state     records     events   event logs

Durability: `write` is atomic and survives the death of the process (it is in the kernel's hands when it returns); what
must survive the death of the machine needs `sync` after it, which the committer calls once for many writes.
After a crash RocksDB replays its log up to the last whole batch, so a batch is there whole or not at all. An end of the log
that was torn by a loss of power is cut off; damage before what was synced (synced.py) is not: then it does not open.
A database is made only where there is nothing. RocksDB would make an empty one wherever CURRENT is missing, and all that goes
by it would then remove what it does not name: so what is left of a lost one is told from a making that was cut short, which
has at most MANIFEST-000001 and no log, and is refused each time.
Once a write met a full disk, all are refused until RocksDB has seen space again, for which it looks every 5 seconds. Once it
met damage while it rewrote its files, all are refused until it is opened again, and soon after that again: reads go on.

Memory: block cache, index and filter blocks, and write buffers are charged to one cache of `memory_bytes`.

Threads: `write` holds the GIL (keep batches under 256 rows), `get`, `get_many` and `sync` release it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
)

from dataplane.errors import Closed, Damaged, DataPlaneError, Locked, StorageFull, Unavailable
from dataplane.files import storage_errors
from dataplane.truth import keys
from dataplane.truth.synced import SyncedMark

FAMILIES = ("rows", "vectors", "index", "dead", "meta", "state", "events")
SYNCED = "synced"
DEPENDENT = ("derived", "library/files", "history")  # beside the database; each is of what the database names
_BLOOM_BITS = 10
_BLOCK_BYTES = MappingProxyType({"vectors": 16 << 10})
_MIN_MEMORY = 8 << 20
MANIFEST_BYTES = 256 << 10
_CORRUPTION = re.compile(
    r"(?:^|: )Corruption\b"
)  # RocksDB's kind of an error, and not the name of a folder in its words
_FIRST_MANIFEST = "MANIFEST-000001"


class Batch:
    """Changes that happen together, in order. Made by `Rocks.batch`, written once."""

    def __init__(self, handles: dict[str, Any]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._handles = handles

    def __len__(self) -> int:
        return self.raw.len()

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.raw.put(key, value, self._handle(family))

    def delete(self, family: str, key: bytes) -> None:
        self.raw.delete(key, self._handle(family))

    def delete_prefix(self, family: str, prefix: bytes) -> None:
        """Delete every key that begins with `prefix`, which ends before the last possible key."""
        end = keys.after(prefix)
        assert end is not None
        self.raw.delete_range(prefix, end, self._handle(family))

    def _handle(self, family: str) -> Any:
        try:
            return self._handles[family]
        except KeyError as error:
            raise _closed() from error


class Rocks:
    """An open database. Thread-safe. After `close`, and while it closes, every call raises Closed."""

    def __init__(self, path: Path, db: Rdict, cache: Cache, buffers: WriteBufferManager, synced: SyncedMark) -> None:
        self._path = path
        self._db = db
        self._cache = cache
        self._buffers = buffers
        self._synced = synced
        self._families = {family: db.get_column_family(family) for family in FAMILIES}
        self._handles = {family: db.get_column_family_handle(family) for family in FAMILIES}

    @classmethod
    def open(cls, path: Path, *, memory_bytes: int) -> Rocks:
        """Open the database in `path`, or make it where nothing is. `memory_bytes`: for all caches and buffers together.

        Raises Locked, Damaged (also for one that is lost while its files are there), StorageFull, Unavailable, and
        DataPlaneError with RocksDB's words for anything else.
        """
        check_not_lost(path)
        memory = max(memory_bytes, _MIN_MEMORY)
        cache = Cache(memory)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(memory // 2, False, cache)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

        def opened(mode: DBRecoveryMode, access: AccessType) -> Rdict:
            options = {family: _options(family, cache, buffers, memory, mode) for family in ("default", *FAMILIES)}
            with _translated(path):
                return Rdict(str(path), options.pop("default"), column_families=options, access_type=access)

        synced = SyncedMark(path / SYNCED)
        return cls(path, _recovered(path, opened, synced.read()), cache, buffers, synced)

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self._handles)

    def write(self, batch: Batch) -> None:
        """All of `batch` or nothing. Raises StorageFull, with nothing written, and Damaged once no more writes are taken."""
        with _translated():
            self._db.write(batch.raw)

    def sync(self) -> None:
        """Everything written before this call survives the loss of power after it. Raises StorageFull."""
        with _translated():
            written = self._db.latest_sequence_number()
            self._db.flush_wal(True)
        self._synced.write(written)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        with _translated():
            value: bytes | None = self._families[family].get(key)
        return value

    def get_many(self, family: str, wanted: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, None for those that are not there."""
        if not wanted:
            return []
        with _translated():
            values: Any = self._families[family].get(list(wanted))
        return cast("list[bytes | None]", values)

    def scan(
        self, family: str, prefix: bytes, *, start: bytes = b"", backwards: bool = False
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Keys that begin with `prefix` and their values, in order, from `prefix + start` on.

        Backwards: from the last one down, or from the last at or before `prefix + start`. The view is that of the
        moment of the first step. End the iteration (or close the generator) before the database closes.
        """
        begin = prefix + start
        if backwards and not start:
            begin = keys.after(prefix) or b"\xff" * 300
        with _translated():
            found = self._families[family].iter()
            step = found.prev if backwards else found.next
            if backwards:
                found.seek_for_prev(begin)
                if not start and found.valid() and found.key() >= begin:
                    step()  # it lies just beyond
            else:
                found.seek(begin)
            while found.valid():
                key: bytes = found.key()
                if not key.startswith(prefix):
                    return
                yield key, found.value()
                step()
            found.status()  # damage ends an iteration as the last key does: only this tells them apart

    def last_key(self, family: str, prefix: bytes) -> bytes | None:
        """The last key that begins with `prefix`."""
        with contextlib.closing(self.scan(family, prefix, backwards=True)) as found:
            return next((key for key, _ in found), None)

    def first_key(self, family: str, prefix: bytes) -> bytes | None:
        """The first key that begins with `prefix`."""
        with contextlib.closing(self.scan(family, prefix)) as found:
            return next((key for key, _ in found), None)

    def checkpoint(self, folder: Path) -> None:
        """A copy of this moment in the new `folder`, hard-linked where the file system is the same."""
        with _translated(folder):
            Checkpoint(self._db).create_checkpoint(str(folder))

    def flush(self) -> None:
        """Write all buffers into table files."""
        with _translated():
            for family in FAMILIES:
                self._families[family].flush(True)

    def compact(self, family: str, prefix: bytes) -> None:
        """Rewrite what begins with `prefix`: what was deleted or replaced there is in no table file afterwards.

        Blocks for as long as the rewriting takes, without the GIL. Call `flush` before.
        """
        with _translated():
            self._families[family].compact_range(prefix, keys.after(prefix), _rewriting())

    def renew_manifest(self) -> None:
        """Have RocksDB begin its MANIFEST anew. In the old one, keys stand as the borders of table files that are gone.

        It does so by itself once the file has MANIFEST_BYTES, for which a key of this size is written and taken back.
        """
        with _translated():
            self._db.put(b"\x00" * MANIFEST_BYTES, b"")
            self._db.flush(True)
            self._db.delete(b"\x00" * MANIFEST_BYTES)
            self._db.flush(True)
            self._db.compact_range(None, None, _rewriting())
            self._db.put(b"renewed", b"")  # the next change after the long key is gone
            self._db.flush(True)

    def obsolete_files(self) -> list[str]:
        """Names of table files that no longer count, and are still there: somebody reads them, or they are being removed."""
        with _translated():
            live = {Path(file["name"].lstrip("/")).name for file in self._db.live_files()}
        return sorted(path.name for path in self._path.glob("*.sst") if path.name not in live)

    def writes(self) -> int:
        """How many keys were ever written or deleted: it changes with every write."""
        with _translated():
            return int(self._db.latest_sequence_number())

    def troubles(self) -> int:
        """How often what RocksDB does by itself (write out buffers, rewrite files) failed since it was opened. At once."""
        with _translated():
            return self._db.property_int_value("rocksdb.background-errors") or 0

    def key_count(self, family: str) -> int:
        """How many keys a family has, about. At once."""
        with _translated():
            return self._families[family].property_int_value("rocksdb.estimate-num-keys") or 0

    def memory_bytes(self) -> int:
        """What caches and buffers hold now."""
        return self._cache.get_usage()

    def disk_bytes(self, family: str) -> int:
        """Bytes of a family's live table files, about."""
        with _translated():
            return self._families[family].property_int_value("rocksdb.live-sst-files-size") or 0

    def close(self) -> None:
        """Give everything back, the lock included. Idempotent.

        Raises Unavailable if the log cannot be synced, and Damaged where no more writes were taken: it is closed all the same.
        """
        self._families.clear()
        self._handles.clear()
        self._synced.close()
        with contextlib.suppress(Closed), _translated():
            self._db.close()


def check_not_lost(path: Path) -> None:
    """Raise Damaged if there was a database in `path`, and there is none to open. Changes nothing."""
    with storage_errors(path):
        if (path / "CURRENT").exists():
            return
        left = [found.name for found in path.iterdir() if _of_rows(found.name)] if path.is_dir() else []
        beside = [name for name in DEPENDENT if (path.parent / name).is_dir() and any((path.parent / name).iterdir())]
    if left or beside:
        missing = (
            f"its file CURRENT is gone, and {min(left)} is there" if left else f"{beside[0]} beside it is not empty"
        )
        raise Damaged(
            f"the database in {path} is lost: {missing}. Nothing was changed. Move the folder {path.parent} away; then bring "
            "the data back with `acu data restore --from-bucket` or `acu data restore --from-backup DIR`, or begin anew."
        )


def _of_rows(name: str) -> bool:
    """Whether a file of this name is of a database that may have rows. The first MANIFEST lies there before CURRENT does."""
    return (
        name == SYNCED or name.endswith((".sst", ".log")) or (name.startswith("MANIFEST") and name != _FIRST_MANIFEST)
    )


def _rewriting() -> CompactOptions:
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    return options


def _recovered(path: Path, opened: Callable[[DBRecoveryMode, AccessType], Rdict], synced: int) -> Rdict:
    """The database with all that its log has, or up to the damage in it if nothing beyond was `synced`."""
    mode, cut = DBRecoveryMode.tolerate_corrupted_tail_records(), DBRecoveryMode.point_in_time()
    try:
        db = opened(mode, AccessType.read_write())
    except Damaged:
        looked_at = opened(cut, AccessType.read_only())  # which changes nothing on the disk
        reached = looked_at.latest_sequence_number()
        looked_at.close()
        if reached < synced:
            raise _log_damaged(path, synced - reached) from None
        db = opened(cut, AccessType.read_write())
    if (reached := db.latest_sequence_number()) < synced:
        db.close()
        raise _log_damaged(path, synced - reached)
    return db


def _log_damaged(path: Path, lost: int) -> Damaged:
    return Damaged(
        f"the log of RocksDB in {path} is damaged or was cut, and {lost} changes after that were acknowledged as durable. "
        f"Restore from a backup or the bucket; or remove {path / SYNCED} to go on without them."
    )


def _options(family: str, cache: Cache, buffers: WriteBufferManager, memory: int, recovery: DBRecoveryMode) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(max(memory // 8, 2 << 20))
    options.set_max_total_wal_size(max(memory, 64 << 20))
    options.set_max_open_files(256)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_manifest_file_size(MANIFEST_BYTES)
    options.set_max_log_file_size(4 << 20)
    options.set_wal_recovery_mode(recovery)
    options.set_compression_type(DBCompressionType.none() if family == "vectors" else DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_block_size(_BLOCK_BYTES.get(family, 4 << 10))
    options.set_block_based_table_factory(table)
    return options


def _closed() -> Closed:
    return Closed("the data plane is closed.")


@contextlib.contextmanager
def _translated(path: Path | None = None) -> Iterator[None]:
    """Turn rocksdict's exceptions, which tell kinds apart by their words only, into ours."""
    try:
        yield
    except (DbClosedError, KeyError) as error:
        raise _closed() from error
    except Exception as error:
        words = str(error)
        if "No space left on device" in words or "Disk quota exceeded" in words:
            if path is not None:  # to open or to copy it: there are no reads that could go on
                raise StorageFull(
                    f"the disk of {path} is full, and RocksDB must write a little to begin. Free some space on it, then try "
                    "again.",
                    retry_after_s=10,
                ) from error
            raise StorageFull(
                "the disk of the data plane is full: nothing was written. Free some space; reads go on.",
                retry_after_s=10,
            ) from error
        if "Writer has previous error" in words:
            raise Unavailable(
                "the log of the data plane failed earlier, most likely because the disk was full; it goes on a few seconds "
                "after there is space.",
                retry_after_s=10,
            ) from error
        if path is not None and ("lock file" in words or "LOCK" in words):
            raise Locked(f"{path} is open in another process: stop the daemon that uses it.") from error
        if _CORRUPTION.search(words):
            raise Damaged(f"RocksDB found damaged data: {words}. Restore it from a backup or the bucket.") from error
        if isinstance(error, DataPlaneError):
            raise
        raise DataPlaneError(f"RocksDB: {words}") from error
