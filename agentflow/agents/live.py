"""LiveRun: a run that is going on: its log so far, and who follows it.

What happens is told with `tell`: it has its place in the log, and the run itself goes on with it at once. Followers see it when
it is **kept**: durable, so that no crash undoes it. So a run does not wait for the disk between its steps, and nothing that
somebody saw is ever contradicted; the log is written in order, and what the run did with an event that was lost is lost with
it. What acts on the world outside, and must not do so twice, waits until it is kept (`keep`).

Whoever comes in the middle, or comes back, reads from any number on, and gets the same events as somebody who never left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec.structs import replace

from agentflow.agents.archive import Archive
from agentflow.agents.journal import Journal
from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import Ended, Event
from agentflow.agents.watch import RunWatch, Watcher
from agentflow.errors import AgentFlowError


class LiveRun:
    """Made with the events that it has had, which its journal holds already. For one event loop."""

    def __init__(
        self,
        run_id: str,
        tenant: str,
        journal: Journal,
        events: Sequence[Event] = (),
        *,
        archive: Archive | None = None,
    ) -> None:
        self.id = run_id
        self.archive = archive  # where it is stored; None: nowhere
        self.tenant = tenant
        self.progress = Progress(run_id)
        self.failure: AgentFlowError | None = None  # with which the run failed in this process
        self._journal = journal
        self._events = list(events)
        self._kept = len(self._events)  # how many of them are durable
        self._order = asyncio.Lock()
        self._told = asyncio.Event()
        self._left: AgentFlowError | None = None
        self._lost: AgentFlowError | None = None  # for which nobody knows whether what was told is kept
        self._watch: RunWatch | None = None
        for event in events:
            self.progress.apply(event)

    @property
    def over(self) -> bool:
        """Whether nothing will follow."""
        return self.progress.ended is not None

    def watched(self, watcher: Watcher) -> None:
        """From here on `watcher` hears of the parts of the run that are over. Its log must have begun."""
        self._watch = RunWatch(self.progress, self._events, watcher)

    def leave(self, error: AgentFlowError) -> None:
        """Nobody goes on with it here: followers get `error` after what was told. Its log stays open."""
        self._left = error
        self._wake()
        if self._watch is not None:
            self._watch.left()

    async def tell(self, *events: Event) -> list[Heard]:
        """Put events into the log, and act on them; returns what they mean. After the run's end nothing is told any more.

        Done whole, also if its caller is cancelled meanwhile.
        """
        return await asyncio.shield(asyncio.ensure_future(self._tell(events))) or []

    async def keep(self, *events: Event) -> bool:
        """As `tell`, and wait as `kept` does; False if they were not told, since the run was over."""
        return await self.keep_while(lambda: True, *events)

    async def keep_while(
        self, holds: Callable[[], bool], *events: Event, then: Callable[[], None] = lambda: None
    ) -> bool:
        """As `keep`, if `holds` once all that was told before them is known here; False also if it does not.

        `then` is called once they are in the log, before anybody hears of them.
        """
        told = await asyncio.shield(asyncio.ensure_future(self._tell(events, holds, then))) is not None
        if told:
            await self.kept()
        return told

    async def kept(self) -> None:
        """Wait until all that was told so far is kept. Raises what the log was lost with."""
        count = len(self._events)
        while self._kept < count:
            if self._lost is not None:
                raise self._lost
            await self._told.wait()

    async def end(self, ended: Ended, *, unless: Callable[[], bool]) -> None:
        """Tell the end, unless something holds once all that was told before it is known here."""
        await asyncio.shield(asyncio.ensure_future(self._tell([ended], lambda: not unless())))

    async def _tell(
        self,
        events: Sequence[Event],
        holds: Callable[[], bool] = lambda: True,
        then: Callable[[], None] = lambda: None,
    ) -> list[Heard] | None:
        """None: nothing was told, since the run is over or `holds` does not."""
        async with self._order:
            if self.over or not holds():
                return None
            if self._lost is not None:
                raise self._lost
            now = int(time.time() * 1000)
            stamped = [replace(event, at=now) for event in events]
            await self._journal.append(stamped, self._keeper(len(self._events) + len(stamped)))
            heard: list[Heard] = []
            for event in stamped:
                found = self.progress.apply(event)
                if self._watch is not None:
                    self._watch.see(event, found)
                heard += found
            self._events += stamped
            then()
            self._wake()
        return heard

    def _keeper(self, count: int) -> Callable[[AgentFlowError | None], None]:
        """Called once the first `count` events are kept, or may be lost."""

        def kept(error: AgentFlowError | None) -> None:
            if error is not None:
                self._lost = self._lost or error
            elif self._lost is None:  # nothing is kept behind a gap
                self._kept = count
            self._wake()

        return kept

    def _wake(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()

    def told(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """The kept events so far with numbers above `after` (the first of them has the next), at most `limit`."""
        return self._events[after : self._kept if limit is None else min(self._kept, after + limit)]

    @property
    def count(self) -> int:
        """How many events the log has, kept or not."""
        return len(self._events)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something holds, or the run is over. `reached` looks at the progress. Raises what the run was left with."""
        while not reached() and not self.over:
            if self._left is not None:
                raise self._left
            await self._told.wait()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, Event], None]:
        """The events with numbers above `after`, as they are kept, until the run is over. Raises what it was left with."""
        while True:
            told = self._told
            while after < self._kept:
                after += 1
                yield after, self._events[after - 1]
            if told is not self._told:
                continue
            if self._lost is not None:
                raise self._lost
            if self._kept >= len(self._events):
                if self.over:
                    return
                if self._left is not None:
                    raise self._left
            await told.wait()
