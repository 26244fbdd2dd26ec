"""Keeper: the thread that moves rows between the tiers, in small steps, while everything else goes on.

It takes the collections in turn, and does for each the first step that is due (steps.py); what a step moves is in moves.py,
for what there is memory in room.py, and when things were last done in due.py.

A crash in any step leaves what was before it: places are in memory only, and shards and snapshots are written atomically.
A step that fails is logged and tried again after a pause; a full disk pauses demotion, and rows then stay LOOSE.

One move goes on at a time. Who moves rows from another thread, or needs files to stay as they are, holds the keeper meanwhile
(`held`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from dataplane import allocator
from dataplane.collections.collection import Collection
from dataplane.errors import DataPlaneError
from dataplane.memory import Memory
from dataplane.threads import compute_apart
from dataplane.tiering.due import Dues, KeeperCounts
from dataplane.tiering.moves import Moves
from dataplane.tiering.room import Room
from dataplane.tiering.steps import Steps
from dataplane.truth.writer import Command

PAUSE_S = 5.0
GIVE_BACK_EVERY_S = 10.0
IDLE_S = 0.05

_log = logging.getLogger(__name__)


class Keeper:
    """Owns the thread. `collections` are those that are open; `submit` hands a command to the writer from any thread.

    `moves` are for whoever holds the keeper.
    """

    def __init__(
        self, collections: Callable[[], Sequence[Collection]], submit: Callable[[Command], None], memory_bytes: int
    ) -> None:
        self._collections = collections
        self.memory = Memory(memory_bytes)
        self.counts = KeeperCounts()
        self.due = Dues()
        self._room = Room(collections, self.memory)
        self.moves = Moves(self._room, self.due, self.counts)
        self.steps = Steps(self.moves, self._room, self.due, self.counts, submit)
        self._given_back_at = 0.0
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._stepping = threading.Lock()  # while a step goes on
        self._thread = threading.Thread(target=self._run, name="dataplane-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that goes on."""
        self._stopping.set()
        self._poked.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hurry(self, collection: Collection, *, on: bool) -> None:
        """Do what is due for a collection now, whatever its age; for those who wait for it."""
        self.due.hurry(collection, on=on)
        self._poked.set()

    def settled(self, collection: Collection) -> bool:
        """Whether nothing is left to be moved, and the snapshot is of now."""
        return self.steps.settled(collection)

    def forget(self, collection: Collection) -> None:
        """The collection is gone, or is to be looked at as after a start."""
        self.due.forget(collection)

    @property
    def last_error(self) -> str | None:
        """Why some collection's last step failed; it is tried again."""
        return self.due.error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The thread does nothing meanwhile, and its work may be done by whoever holds it."""
        with self._stepping:
            yield

    @property
    def memory_bytes(self) -> int:
        """What all collections together may take."""
        return self.memory.cap

    @memory_bytes.setter
    def memory_bytes(self, cap: int) -> None:
        self.memory.cap = cap

    def used_bytes(self) -> int:
        """Memory of all collections."""
        return sum(collection.nbytes for collection in self._collections())

    # The thread

    def _run(self) -> None:
        compute_apart()
        while not self._stopping.is_set():
            self._room.free_bytes()  # what the steps gave back may be taken again
            worked = False
            for collection in self._collections():
                if self._stopping.is_set():
                    return
                worked |= self.step(collection)
            self._give_back(worked)
            if not worked:
                self._poked.wait(IDLE_S)
                self._poked.clear()

    def _give_back(self, worked: bool) -> None:
        """Now and then, while there is work: what was freed goes back to the system."""
        now = time.monotonic()
        if worked and now - self._given_back_at > GIVE_BACK_EVERY_S:
            self._given_back_at = now
            allocator.give_back()

    def step(self, collection: Collection) -> bool:
        """One step of what is due for a collection. False if nothing is, or it failed: then the next one waits for a while."""
        with self._stepping:
            if collection.dropped:
                return False
            due = self.due.of(collection)
            if time.monotonic() < due.paused_until:
                return False
            try:
                worked = self.steps.take_one(collection)
            except DataPlaneError as error:
                _log.warning("the keeper pauses", extra={"collection": collection.name, "why": str(error)})
                due.error = str(error)
            except Exception:  # noqa: BLE001 - a defect in one step must not end the thread
                _log.exception("the keeper failed", extra={"collection": collection.name})
                due.error = "a step of the keeper failed: see the log"
            else:
                due.error = None
                return worked
        self.counts.failures += 1
        due.paused_until = time.monotonic() + PAUSE_S
        return False
