"""Commands for a writer, and ways to have several of them share a batch."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from dataplane.errors import InvalidInput
from dataplane.truth.writer import Command, Draft, Wait, Writer


class Put(Command):
    """Sets a key, and tells of it."""

    def __init__(self, key: bytes, value: bytes = b"v", *, published: list[bytes] | None = None) -> None:
        self.weight = 1 + len(value) // 2048
        self._key = key
        self._value = value
        self._published = published

    def draft(self, draft: Draft) -> bytes:
        draft.put("state", self._key, self._value)
        return self._key

    def publish(self, others: Sequence[Command] = ()) -> None:
        if self._published is not None:
            self._published.append(self._key)


class Count(Command):
    """Adds one to a counter, and gives the new number."""

    def draft(self, draft: Draft) -> int:
        number = int.from_bytes(draft.get("state", b"count") or b"", "big") + 1
        draft.put("state", b"count", number.to_bytes(8, "big"))
        return number


class Refused(Command):
    """A command that cannot be done."""

    def draft(self, draft: Draft) -> None:
        raise InvalidInput("no.", param="x")


class Held(Command):
    """Keeps the writer's thread busy until it is let go."""

    alone = True

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()

    def draft(self, draft: Draft) -> None:
        self.began.set()
        assert self.go.wait(30)


class Broken(Command):
    """A command with a defect, in its draft or in what follows the write."""

    def __init__(self, *, in_draft: bool) -> None:
        self._in_draft = in_draft

    def draft(self, draft: Draft) -> None:
        if self._in_draft:
            raise ZeroDivisionError
        draft.put("state", b"broken", b"")

    def publish(self, others: Sequence[Command] = ()) -> None:
        raise ZeroDivisionError


class Look(Command):
    """Does whatever the test wants with a draft."""

    def __init__(self, look: Callable[[Draft], Any], *, alone: bool = False) -> None:
        self.alone = alone
        self._look = look

    def draft(self, draft: Draft) -> Any:
        return self._look(draft)


@contextlib.asynccontextmanager
async def busy(writer: Writer) -> AsyncIterator[None]:
    """The writer's thread does nothing meanwhile, so that all that is put shares the next batches."""
    held = Held()
    waiting = asyncio.create_task(writer.submit(held))
    await asyncio.to_thread(held.began.wait)
    try:
        yield
    finally:
        held.go.set()
        await waiting


async def started(*commands: tuple[Writer, Command, Wait]) -> list[asyncio.Task[Any]]:
    """Submit these in order, and let each get into the ring."""
    tasks = [asyncio.create_task(writer.submit(command, wait)) for writer, command, wait in commands]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks
