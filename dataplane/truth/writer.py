"""Writer: the one thread that changes the data, and the committer that makes changes durable.

A command goes through three stages, in the order of the ring:

    draft     reads what it needs and adds its changes to the batch (sees what commands before it in the batch drafted)
    written   the whole batch is in RocksDB, atomically: it survives the death of this process
    publish   memory is brought up to the batch; the caller's `visible` is told

and `durable` is told after the next sync of RocksDB's log that began after the batch was written. The committer is a second
thread, so that the next batch does not wait for the disk; all that was written while it synced shares the next sync.

A command whose draft raises a DataPlaneError changes nothing and fails alone. A batch that cannot be written (a full disk)
fails whole, and the next is tried again. A sync that fails fails those who wait for it; what they wrote may or may not
survive the loss of power. Once RocksDB has met damage in its files it takes no batch any more, and the writer takes no command:
`look` finds that out before somebody writes. Any other exception is a defect: memory and table may differ, so the writer takes
nothing more, and every later command fails with its reason until the data plane is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from dataplane.errors import Damaged, DataPlaneError, Unavailable
from dataplane.threads import share_cores
from dataplane.truth.ring import Ring
from dataplane.truth.rocks import Batch, Rocks

Wait = Literal["nothing", "visible", "durable"]
BATCH_ROWS = 128  # RocksDB's write holds the GIL: about half a millisecond for so many rows
DEFECT_RETRY_S = 30.0
REMEDY = (
    "Stop the daemon, move the data plane's folder away, and bring the data back with `acu data restore --from-backup DIR` or "
    "`acu data restore --from-bucket`."
)

_log = logging.getLogger(__name__)


class Draft:
    """The batch that is being put together, over what is stored."""

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._pending: dict[tuple[str, bytes], bytes | None] = {}
        self._looked_up: dict[bytes, bytes | None] = {}
        self.batch = rocks.batch()

    def look_up(self, wanted: Sequence[bytes]) -> None:
        """Read keys of the family index at once: each reading gives the interpreter's lock away, and waits to get it back."""
        with contextlib.suppress(DataPlaneError):  # the draft whose key it is meets it again, and fails alone
            self._looked_up = dict(zip(wanted, self._rocks.get_many("index", wanted), strict=True))

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value as it will be once the batch is written."""
        try:
            return self._pending[family, key]
        except KeyError:
            return self._rocks.get(family, key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, as `get` gives them."""
        stored = self._looked_up if family == "index" else {}
        missing = [key for key in keys if (family, key) not in self._pending and key not in stored]
        if missing:
            stored = stored | dict(zip(missing, self._rocks.get_many(family, missing), strict=True))
        return [self._pending[family, key] if (family, key) in self._pending else stored[key] for key in keys]

    def has_prefix(self, family: str, prefix: bytes) -> bool:
        """Whether a stored key begins with `prefix`. What the batch changes is not seen: put it in alone."""
        return self._rocks.last_key(family, prefix) is not None

    def put(self, family: str, key: bytes, value: bytes, *, read_again: bool = True) -> None:
        """Set a value. `read_again=False`: no later draft of the batch reads this key."""
        if read_again:
            self._pending[family, key] = value
        self.batch.put(family, key, value)

    def delete(self, family: str, key: bytes) -> None:
        """Remove a key."""
        self._pending[family, key] = None
        self.batch.delete(family, key)

    def delete_prefix(self, family: str, prefix: bytes) -> None:
        """Remove every key that begins with `prefix`. No later draft of the batch may read there: put it in alone."""
        self.batch.delete_prefix(family, prefix)


class Command(ABC):
    """A change. `weight`: about how many rows it writes."""

    weight: int = 1
    alone: bool = False  # whether no other command may share its batch
    looked_up: Sequence[bytes] = ()  # keys of the family index that its draft gets: read together for a whole batch

    @property
    def target(self) -> object:
        """Commands of a batch that follow each other and have the same are published together; None: alone."""
        return None

    @abstractmethod
    def draft(self, draft: Draft) -> Any:
        """Add the changes to the batch; what it returns is the caller's result. Raises before it adds anything."""

    def publish(self, others: Sequence[Command] = ()) -> None:  # noqa: B027 - most records live in RocksDB alone
        """Bring memory up to the written batch, with `others` of the same `target` after it. Must not fail."""


class Entry:
    """A command in the ring, and who waits for it."""

    def __init__(self, command: Command, wait: Wait, told: asyncio.Future[Any] | None) -> None:
        self.command = command
        self.wait = wait
        self.told = told
        self.result: Any = None
        self.error: DataPlaneError | None = None

    def tell(self) -> None:
        """On the loop: the caller goes on."""
        if self.told is None or self.told.done():
            return
        if self.error is None:
            self.told.set_result(self.result)
        else:
            self.told.set_exception(self.error)


class Writer:
    """Owns the ring, the writing thread and the committing one. Made on the event loop; `close` writes all that was put."""

    def __init__(self, rocks: Rocks, ring_rows: int) -> None:
        self._rocks = rocks
        self._loop = asyncio.get_running_loop()
        self._ring: Ring[Entry] = Ring(ring_rows)
        self._committer = Committer(rocks, self._tell)
        self._thread = threading.Thread(target=self._run, name="dataplane-writer", daemon=True)
        self.failed: str | None = None  # why nothing more is taken
        self._ask_again_s = math.inf  # what those are told who are refused for it
        self._stopping = threading.Lock()
        self._troubles = 0  # of RocksDB, that were looked at
        self._taken_in = 0  # commands, counted on the loop
        self._handled = 0  # commands, counted by the writer's thread
        self.written = 0  # commands that changed something, for metrics
        self.last_error: DataPlaneError | None = None  # of the last batch: None once one is written again

    def start(self) -> None:
        """Begin to drain the ring."""
        self._committer.start()
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Rows in the ring."""
        return self._ring.weight

    @property
    def syncs(self) -> int:
        """Times that RocksDB's log was synced."""
        return self._committer.syncs

    def look(self) -> None:
        """Find out whether RocksDB still takes writes, if it had troubles since the last look; else at once. From any thread."""
        with contextlib.suppress(DataPlaneError):  # a full disk, which goes by: it is looked at again
            if self.failed is None and (troubles := self._rocks.troubles()) != self._troubles:
                try:
                    self._rocks.write(self._rocks.batch())  # an empty one changes nothing, and is refused as any other
                except Damaged as error:
                    self.damaged(error)
                self._troubles = troubles

    def damaged(self, error: Damaged) -> None:
        """Take nothing more, for RocksDB does not. Told in the log, once. From any thread."""
        file = re.search(r"[^\s/]+\.sst\b", str(error))
        what = f"its file {file[0]} is damaged" if file else "a part of it is damaged"
        if self._stop(f"the data plane takes no writes: {what}. Reads go on. {REMEDY}", math.inf):
            _log.error("the data plane takes no writes", extra={"why": str(error), "remedy": REMEDY})

    def _stop(self, why: str, ask_again_s: float) -> bool:
        """Take nothing more; False if that was so already."""
        with self._stopping:
            if self.failed is not None:
                return False
            self._ask_again_s, self.failed = ask_again_s, why
        return True

    def _check_going(self) -> None:
        if self.failed is not None:
            raise Unavailable(self.failed, retry_after_s=self._ask_again_s)

    async def submit(self, command: Command, wait: Wait = "visible") -> Any:
        """Put a command in, and wait for as much as is asked. Returns what its draft returned (None for "nothing").

        Raises what the draft raises, StorageFull, Closed, Unavailable. A caller that is cancelled while it waits for room
        has changed nothing; later, the change happens.
        """
        self._check_going()
        told = None if wait == "nothing" else self._loop.create_future()
        await self._ring.put(Entry(command, wait, told), command.weight)
        self._taken_in += 1
        return None if told is None else await told

    async def submit_ahead(self, command: Command) -> asyncio.Future[Any]:
        """As `submit`, once the command has its place in the ring: what is done once it is durable, or raises what it raises.

        Nobody has to wait for that: the future's error is then lost in silence.
        """
        self._check_going()
        durable = self._loop.create_future()
        durable.add_done_callback(_look)
        await self._ring.put(Entry(command, "durable", durable), command.weight)
        self._taken_in += 1
        return durable

    def submit_now(self, command: Command) -> bool:
        """Put a command in if there is room; nobody waits for it."""
        if self.failed is not None or not self._ring.put_now(Entry(command, "nothing", None), command.weight):
            return False
        self._taken_in += 1
        return True

    async def barrier(self) -> None:
        """Wait until everything that was put before is visible. Costs nothing while nothing is on its way.

        After a defect nothing more becomes visible, and reads go on.
        """
        if self._handled < self._taken_in and self.failed is None:
            with contextlib.suppress(Unavailable):  # the defect strikes now
                await self.submit(_Barrier(), "visible")

    async def close(self) -> None:
        """Write what is in the ring, make it durable, and end the threads. Idempotent."""
        self._ring.close()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
            await asyncio.to_thread(self._committer.close)

    def _run(self) -> None:
        share_cores()
        while entries := self._ring.take(BATCH_ROWS):
            for batch in _batches(entries):
                self._handle(batch)
                self._handled += len(batch)

    def _handle(self, entries: list[Entry]) -> None:
        """One batch through its stages."""
        try:
            drafted = self._draft_and_write(entries)
            _publish([entry.command for entry in drafted])
            self.written += len(drafted)
        except Exception as error:  # noqa: BLE001 - a defect, whatever it is
            _log.exception("the writer failed")
            why = f"the data plane failed and takes no writes until the daemon is restarted: {error!r}"
            self._stop(why, DEFECT_RETRY_S)
            for entry in entries:
                entry.error = Unavailable(why, retry_after_s=DEFECT_RETRY_S)
            drafted = []
        durable = [entry for entry in drafted if entry.error is None and entry.wait == "durable"]
        waits = {id(entry) for entry in durable}
        self._tell([entry for entry in entries if entry.told is not None and id(entry) not in waits])
        if durable:
            self._committer.add(durable)

    def _draft_and_write(self, entries: list[Entry]) -> list[Entry]:
        """Those that are now in RocksDB; the others have their error."""
        draft = Draft(self._rocks)
        draft.look_up([key for entry in entries for key in entry.command.looked_up])
        drafted = []
        for entry in entries:
            try:
                self._check_going()
                entry.result = entry.command.draft(draft)
            except DataPlaneError as error:
                entry.error = error
            else:
                drafted.append(entry)
        if len(draft.batch):
            try:
                self._write(draft.batch)
            except DataPlaneError as error:
                self.last_error = error if self.failed is None else None  # that is told as such
                for entry in drafted:
                    if not isinstance(entry.command, _Barrier):  # who reads does not pay for what was not written
                        entry.error = error
                return []
            self.last_error = None
        return drafted

    def _write(self, batch: Batch) -> None:
        try:
            self._rocks.write(batch)
        except Damaged as error:
            self.damaged(error)
            self._check_going()

    def _tell(self, entries: list[Entry]) -> None:
        """From any thread: wake those who wait."""
        if entries:
            try:
                self._loop.call_soon_threadsafe(_tell_all, entries)
            except RuntimeError:  # the loop has ended, and with it everybody who could be told
                _log.debug("nobody is left to tell of %d writes", len(entries))


class Committer:
    """Group commit: one sync for all batches that were written before it began."""

    def __init__(self, rocks: Rocks, tell: Any) -> None:
        self._rocks = rocks
        self._tell = tell
        self._waiting: list[Entry] = []
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="dataplane-commit", daemon=True)
        self.syncs = 0

    def start(self) -> None:
        """Begin to sync."""
        self._thread.start()

    def add(self, entries: list[Entry]) -> None:
        """Tell these once what they wrote (it is written) is durable."""
        with self._changed:
            self._waiting.extend(entries)
            self._changed.notify()

    def close(self) -> None:
        """Sync a last time and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        share_cores()
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                entries, self._waiting = self._waiting, []
                closed = self._closed
            try:
                self._rocks.sync()
                self.syncs += 1
            except DataPlaneError as error:
                for entry in entries:
                    entry.error = error
            self._tell(entries)
            if closed:
                return


class _Barrier(Command):
    weight = 0

    def draft(self, draft: Draft) -> None:
        pass


def _batches(entries: list[Entry]) -> list[list[Entry]]:
    """Cut so that a command that must be alone is."""
    batches: list[list[Entry]] = [[]]
    for entry in entries:
        if entry.command.alone:
            batches += [[entry], []]
        else:
            batches[-1].append(entry)
    return [batch for batch in batches if batch]


def _publish(commands: list[Command]) -> None:
    """In their order; those of one target that follow each other at once."""
    start = 0
    for end in range(1, len(commands) + 1):
        target = commands[start].target
        if end == len(commands) or target is None or commands[end].target is not target:
            commands[start].publish(commands[start + 1 : end])
            start = end


def _tell_all(entries: list[Entry]) -> None:
    for entry in entries:
        entry.tell()


def _look(future: asyncio.Future[Any]) -> None:
    """An error that nobody waits for is no defect."""
    if not future.cancelled():
        future.exception()
