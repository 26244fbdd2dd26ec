"""Pace: what a model says, in pieces of some milliseconds, so that a fast model's run costs no append to its log for each token.

The first words go through at once, as does whatever may end a call: its tool is to start in that moment. What follows within
INTERVAL_S of the piece before it waits for the rest of that time, as one piece. A model that is slower than that is not held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from agentflow.agents.going import to_its_end
from agentflow.engine.protocol import Delta

INTERVAL_S = 0.01
"""Nobody reads faster than that; a GPU's model says one token in about as long."""
_ENDS = frozenset("}])>")
"""The characters that calls end with, in all formats."""


async def paced(deltas: AsyncGenerator[Delta, None], interval_s: float = INTERVAL_S) -> AsyncGenerator[Delta, None]:
    """All of `deltas`, joined to pieces; a joined one has no log probabilities.

    Closing it closes `deltas`, and waits for that. Raises as they do, after what came before.
    """
    pieces = _Pieces(interval_s)
    reader = asyncio.create_task(pieces.fill(deltas))
    try:
        while (piece := await pieces.next()) is not None:
            yield piece
        await reader
    finally:
        if not pieces.closing:
            reader.cancel()
        await to_its_end(_closed(reader))


async def _closed(reader: asyncio.Task[None]) -> None:
    await asyncio.wait({reader})
    if not reader.cancelled():
        reader.exception()  # marked as seen: whoever read may have left


class _Pieces:
    """What came, and has not gone on yet."""

    def __init__(self, interval_s: float) -> None:
        self.closing = False  # all was said, and the engine's side closes by itself
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._came: list[Delta] = []
        self._next_at = 0.0  # of the loop's clock
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def fill(self, deltas: AsyncGenerator[Delta, None]) -> None:
        """Until they end, or the engine says that they do. Raises as they do."""
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    self._came.append(delta)
                    if delta.finish_reason is not None:
                        self.closing = True
                        self._due.set()
                        return
                    if not _ENDS.isdisjoint(delta.text) or self._loop.time() >= self._next_at:
                        self._due.set()
                    elif self._timer is None:
                        self._timer = self._loop.call_at(self._next_at, self._due.set)
        finally:
            self._over = True
            self._due.set()

    async def next(self) -> Delta | None:
        """The next piece, when it is due; None: nothing follows."""
        await self._due.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._over:
            self._due.clear()
        self._next_at = self._loop.time() + self._interval_s
        came, self._came = self._came, []
        if len(came) < 2:
            return came[0] if came else None
        text, ids = "".join(each.text for each in came), [token for each in came for token in each.token_ids]
        return replace(came[-1], text=text, token_ids=ids, logprobs=None)
