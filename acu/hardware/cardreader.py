"""CardReader: asks a card for its memory without ever waiting for it: a card that has failed can keep NVML busy for good.

Each reading is asked for in a thread of its own, one at a time, that neither a stop nor the end of the process waits for. An
answer that does not come within `patience_s` is a failed reading, and so is each one that is asked for until it has come. After a
failed reading NVML is closed, and opened again for the next: a reset of the driver leaves the old one dead (UNINITIALIZED,
GPU_IS_LOST), and comes only when nobody holds the card. `close` lets go of it now, or when the thread comes back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from acu.errors import GpuUnreadable

PATIENCE_S = 10.0
LET_GO_S = 1.0  # for a reading that is on its way when the watch ends


class Card(Protocol):
    """What is read: CardMemory, or a recording."""

    def used_mb(self) -> int: ...

    def capacity_mb(self) -> int: ...

    def close(self) -> None: ...


class Reading(Struct, frozen=True):
    """MiB in use, and of all that processes can have as it was when NVML was opened."""

    used_mb: int
    capacity_mb: int


class CardReader:
    """Of one card, for the event loop. `open_card` runs in the thread; it returns None where NVML does not answer."""

    def __init__(self, open_card: Callable[[], Card | None], patience_s: float = PATIENCE_S) -> None:
        self._open_card = open_card
        self._patience_s = patience_s
        self._asked: asyncio.Future[Reading | Exception] | None = None  # there while a thread has the card
        self._card: Card | None = None
        self._capacity_mb = 0
        self._closed = False

    async def read(self) -> Reading:
        """The card's memory now. Raises GpuUnreadable, and whatever else the card raises."""
        if self._closed:
            raise GpuUnreadable("its memory is not watched any more")
        if self._asked is None:
            loop = asyncio.get_running_loop()
            asked: asyncio.Future[Reading | Exception] = loop.create_future()
            self._asked = asked
            try:
                threading.Thread(target=self._ask, args=(loop, asked), name="GPU memory", daemon=True).start()
            except RuntimeError as error:  # no more threads, for now
                self._asked = None
                raise GpuUnreadable(str(error)) from error
            await asyncio.wait({asked}, timeout=self._patience_s)
            if asked.done():
                answer = asked.result()
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise GpuUnreadable(f"NVML has not answered within {self._patience_s:g} s")

    def close(self) -> None:
        """Let go of the card; where a thread has it, when that is done with it."""
        self._closed = True
        if self._asked is None:
            self._drop()

    async def settled(self) -> None:
        """Return when no thread has the card any more, or after LET_GO_S."""
        if self._asked is not None:
            await asyncio.wait({self._asked}, timeout=LET_GO_S)

    def _ask(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Future[Reading | Exception]) -> None:
        """In the thread."""
        answer: Reading | Exception
        try:
            answer = self._read()
        except GpuUnreadable as error:
            answer = error
            self._drop()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            answer = error
        try:
            loop.call_soon_threadsafe(self._settle, asked, answer)
        except RuntimeError:  # the loop is over
            self._drop()

    def _read(self) -> Reading:
        if self._card is None:
            self._card = self._open_card()
            if self._card is None:
                raise GpuUnreadable("NVML does not answer")
            self._capacity_mb = 0
        self._capacity_mb = self._capacity_mb or self._card.capacity_mb()
        if self._capacity_mb <= 0:
            raise GpuUnreadable("the driver says that the card has no memory at all")
        return Reading(self._card.used_mb(), self._capacity_mb)

    def _settle(self, asked: asyncio.Future[Reading | Exception], answer: Reading | Exception) -> None:
        """On the loop, which has the card again."""
        self._asked = None
        asked.set_result(answer)
        if self._closed:
            self._drop()

    def _drop(self) -> None:
        card, self._card = self._card, None
        if card is not None:
            card.close()
