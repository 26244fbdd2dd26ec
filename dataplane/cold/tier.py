"""ColdTier: the archive beside a running data plane. It runs by itself, waits while the bucket is away, and says how it is.

Every `every_s` seconds, if anything was written since the last run, or shards of the history were merged or removed, all that
is new goes to the bucket (archive.py has the order of steps, each of which may be the last). While the bucket does not answer,
or is full, nothing is lost: RocksDB keeps every row and what ended, the backlog grows, and the run is tried again after 5 s,
10 s, and so on up to a minute.

Before the first run an empty position is stored. From then on the box keeps the deletions that the archive does not know yet
(`archive_position.archived_seq`); where there is no position there is no archive, and none has to be kept.

Used on the event loop. Work on the disk and the bucket is done in threads, in steps of milliseconds; `stop` ends a run
between two of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dataplane import clock
from dataplane.cold import archive_position as positions
from dataplane.cold import attachments
from dataplane.cold import manifest as manifests
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_erasure import Receipt
from dataplane.cold.archive_export import ArchiveReport, Progress
from dataplane.cold.archive_position import Position
from dataplane.cold.archive_source import Source
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Manifest, Problem
from dataplane.cold.uploads import Listing, Upload, bring_back
from dataplane.cold_config import ColdConfig
from dataplane.collections.collection import Collection
from dataplane.errors import Closed, Conflict, Damaged, DataPlaneError
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks

RETRY_FIRST_S = 5.0
RETRY_MOST_S = 60.0
STOP_S = 10.0
T = TypeVar("T")

_log = logging.getLogger(__name__)


class ColdStatus(Struct, frozen=True, kw_only=True):
    """How the archive is. `every_s` None: it runs only when asked.

    `backlog_rows` and `backlog_bytes`: changes of rows that are not archived yet, and about their size there. `rows`,
    `objects` and `bytes`: what the archive has; None until a run of this process has looked. `damaged_files`: how many files,
    uploaded or of the history, the last run of this process found damaged and did not archive.
    """

    where: str
    every_s: float | None
    running: bool
    backlog_rows: int
    backlog_bytes: int
    manifest: int
    archived_ms: int | None
    rows: int | None
    objects: int | None
    bytes: int | None
    runs: int
    sent_bytes: int
    damaged_files: int
    failures: int
    last_error: str | None


class _Holdings(Struct, frozen=True):
    """What a manifest names."""

    rows: int
    objects: int
    bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> _Holdings:
        segments = {segment.name: segment.size for segment in manifest.segments()}
        rows = sum(rows.sealed.count - rows.dead for one in manifest.collections for rows in one.rows)
        files = manifest.files
        return cls(rows, len(segments) + files.parts + 1, sum(segments.values()) + files.bytes)


class ColdTier:
    """The archive of one open box, whose data plane lies in `folder`. `collections` are those that are open.

    `load` it before it is used.
    """

    def __init__(
        self,
        rocks: Rocks,
        config: ColdConfig,
        folder: Path,
        every_s: float | None,
        collections: Callable[[], Sequence[Collection]],
    ) -> None:
        self.uploads: Listing | None = None  # what uploaded files there must be: given by who has their records
        self._rocks = rocks
        self._config = config
        self._folder = folder
        self._default_folder = default_cold_folder(folder)
        self._every_s = every_s
        self._collections = collections
        self._position: Position | None = None
        self._opened: tuple[Bucket, Archiver] | None = None
        self._holdings: _Holdings | None = None
        self._archived_ms: int | None = None
        self._archived_at = -1  # the database's number of writes then
        self._archived_indexes: tuple[tuple[str, int, int], ...] = ()  # and which files counted
        self._timer: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[object]] = set()
        self._closing = False
        self._runs = self._sent_bytes = self._damaged_files = self._failures = self._failed_in_a_row = 0
        self._last_error: str | None = None

    def load(self) -> None:
        """Find out where the archive stands. Raises Damaged for a box whose restore has not ended."""
        positions.check_restored(self._rocks)
        self._position = positions.load(self._rocks)

    def start(self) -> None:
        """Begin to archive by itself, if it is configured to."""
        if self._every_s is not None:
            self._timer = asyncio.get_running_loop().create_task(self._archive_for_ever(self._every_s))

    async def stop(self) -> None:
        """End what runs, within seconds. What was not archived is in the next run. Idempotent."""
        self._closing = True
        tasks: set[asyncio.Task[object]] = {*self._running, *([self._timer] if self._timer else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def archive_now(self, progress: Progress | None = None, *, restart: bool = False) -> ArchiveReport:
        """Bring the archive up to the box. Raises as `Archiver.archive` does, and Closed."""
        return await self._counted(lambda archiver: archiver.archive(progress, restart=restart))

    async def erase(
        self, tenant: str, collection: str | None = None, ids: Iterable[str] | None = None
    ) -> Receipt | None:
        """Have the archive forget what the box has forgotten, as `Archiver.erase`; None: nothing was ever archived."""
        if self._position is None:
            return None
        return await self._counted(lambda archiver: archiver.erase(tenant, collection=collection, ids=ids))

    async def verify(self, *, deep: bool) -> list[Problem]:
        """What is wrong with the objects of the archive, as `manifest.verify`; nothing where there never was one."""
        if self._position is None or not self._position.number:
            return []
        bucket = (await self._open())[0]
        return await manifests.verify(bucket, deep=deep) + await self._misplaced(bucket)

    async def _misplaced(self, bucket: Bucket) -> list[Problem]:
        """Whether it is another archive than the one that this box has written, or an older one."""
        while (position := await in_thread(positions.load, self._rocks)) is not None:
            try:
                positions.base(position, await manifests.shelf(bucket), bucket.where)
            except (Conflict, Damaged) as error:
                if position == await in_thread(positions.load, self._rocks):  # else it was written to meanwhile
                    return [Problem("manifests", str(error))]
            else:
                break
        return []

    async def bring_back(self, damaged: Iterable[Upload]) -> dict[str, DataPlaneError]:
        """Fetch damaged files from the archive, where it has them. Returns and raises as `uploads.bring_back`."""
        if self._position is None or not self._position.number:
            return {}
        return await bring_back(self._rocks, (await self._open())[0], self._folder, damaged)

    async def look(self) -> None:
        """Find out what the archive has, where there is one. Raises BucketUnreachable, Damaged."""
        if self._position is not None and self._position.number:
            shelf = await manifests.shelf((await self._open())[0])
            if shelf.whole:
                self._take(shelf.whole[0].manifest)

    def _take(self, manifest: Manifest) -> None:
        self._holdings = _Holdings.of(manifest)
        self._archived_ms = max(self._archived_ms or 0, manifest.created_ms)

    def status(self) -> ColdStatus:
        """How it is. Reads memory only."""
        sources = [Source(one.tenant, one.record, one.seq) for one in self._collections()]
        backlog = positions.behind(self._position, sources)
        holdings = self._holdings
        return ColdStatus(
            where=self._where(),
            every_s=self._every_s,
            running=bool(self._running),
            backlog_rows=backlog.rows,
            backlog_bytes=backlog.bytes,
            manifest=self._position.number if self._position else 0,
            archived_ms=self._archived_ms,
            rows=holdings.rows if holdings else None,
            objects=holdings.objects if holdings else None,
            bytes=holdings.bytes if holdings else None,
            runs=self._runs,
            sent_bytes=self._sent_bytes,
            damaged_files=self._damaged_files,
            failures=self._failures,
            last_error=self._last_error,
        )

    def _where(self) -> str:
        config = self._config
        if config.bucket is not None:
            return f"bucket {config.bucket} at {config.endpoint or f'Amazon S3 in {config.region}'}, prefix {config.prefix}"
        return f"folder {cold_folder(config, self._default_folder)}"

    async def _open(self) -> tuple[Bucket, Archiver]:
        if self._opened is None:
            bucket = await in_thread(Bucket, self._config, self._default_folder)
            self._opened = bucket, Archiver(self._rocks, bucket, folder=self._folder)
        return self._opened

    async def _archive_for_ever(self, every_s: float) -> None:
        with contextlib.suppress(DataPlaneError):  # the first run tells
            await self.look()
        while True:
            await asyncio.sleep(self._pause_s(every_s))
            if await in_thread(self._has_news):
                try:
                    await self.archive_now()
                except DataPlaneError:
                    continue  # it is counted and told
                except Exception:  # noqa: BLE001 - a defect must not end the archive for good
                    _log.exception("archiving failed")
                    self._note("archiving failed: see the log")

    def _has_news(self) -> bool:
        """Whether the database or an index of files is another than when the last run began."""
        return (
            self._rocks.writes() != self._archived_at or attachments.index_times(self._folder) != self._archived_indexes
        )

    def _pause_s(self, every_s: float) -> float:
        """How long to wait for the next run."""
        if not self._failed_in_a_row:
            return every_s
        return float(min(RETRY_FIRST_S * 2 ** min(self._failed_in_a_row - 1, 10), RETRY_MOST_S))

    async def _counted(self, work: Callable[[Archiver], Awaitable[T]]) -> T:
        """Do something with the archive, in a task that `stop` can end."""
        if self._closing:
            raise _closed()
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(self._done(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise _closed() from None

    async def _done(self, work: Callable[[Archiver], Awaitable[T]]) -> T:
        try:
            bucket, archiver = await self._open()
            if self._position is None:
                self._position = positions.new()
                await in_thread(positions.save, self._rocks, self._position)
            archiver.uploads = self.uploads
            before, written = self._position.number, self._rocks.writes()
            indexes = await in_thread(attachments.index_times, self._folder)
            result = await work(archiver)
            self._position = await in_thread(positions.load, self._rocks)
            self._take((await manifests.shelf(bucket)).whole[0].manifest)
        except DataPlaneError as error:
            self._note(str(error))
            raise
        # A run that found nothing new has written its position, once. After any other there is one more, to be sure.
        self._archived_at = written + (self._position is not None and self._position.number == before)
        self._archived_indexes = indexes
        self._archived_ms = clock.now_ms()
        self._runs += 1
        self._failed_in_a_row = 0
        self._last_error = None
        if isinstance(result, ArchiveReport):
            self._sent_bytes += result.bytes
            self._damaged_files = len(result.damaged)
            if result.damaged:  # said again by each run, until they are repaired or deleted
                _log.error("files are damaged", extra={"count": len(result.damaged), "first": result.damaged[0]})
                self._last_error = result.damaged[0]
        return result

    def _note(self, why: str) -> None:
        """A run failed."""
        if why != self._last_error:  # not again with each attempt
            _log.warning("the archive waits", extra={"why": why})
        self._failures += 1
        self._failed_in_a_row += 1
        self._last_error = why


def cold_folder(config: ColdConfig, default_folder: Path) -> Path:
    """Where the archive lies while no bucket is configured."""
    return default_folder if config.folder == "auto" else Path(config.folder)


def default_cold_folder(data: Path) -> Path:
    """The archive's folder for a data plane in `data`, where none is configured."""
    data = data.absolute()
    return data.with_name(f"{data.name}-cold")


def _closed() -> Closed:
    return Closed("the data plane is closing: what is not archived yet is in the next run.")
