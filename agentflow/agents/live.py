"""LiveRun: a run that is going on: its log so far, and who follows it.

What happens is told with `tell`: kept by the journal first, and only then known here and seen by followers. Whoever comes in
the middle, or comes back, reads from any number on, and gets the same events as somebody who never left.
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
        self._order = asyncio.Lock()
        self._told = asyncio.Event()
        self._left: AgentFlowError | None = None
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
        self._told.set()
        if self._watch is not None:
            self._watch.left()

    async def tell(self, *events: Event) -> list[Heard]:
        """Keep events, then let them be seen; returns what they mean. After the run's end nothing is told any more.

        Done whole, also if its caller is cancelled meanwhile.
        """
        return await asyncio.shield(asyncio.ensure_future(self._tell(events)))

    async def end(self, ended: Ended, *, unless: Callable[[], bool]) -> None:
        """Tell the end, unless something holds once all that was told before it is known here."""
        await asyncio.shield(asyncio.ensure_future(self._tell([ended], lambda: not unless())))

    async def _tell(self, events: Sequence[Event], holds: Callable[[], bool] = lambda: True) -> list[Heard]:
        async with self._order:
            if self.over or not holds():
                return []
            now = int(time.time() * 1000)
            stamped = [replace(event, at=now) for event in events]
            await self._journal.append(stamped)
            heard: list[Heard] = []
            for event in stamped:
                found = self.progress.apply(event)
                if self._watch is not None:
                    self._watch.see(event, found)
                heard += found
            self._events += stamped
            told, self._told = self._told, asyncio.Event()
            told.set()
        return heard

    def told(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """The events so far with numbers above `after` (the first of them has the next), at most `limit`."""
        return self._events[after : None if limit is None else after + limit]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something holds, or the run is over. `reached` looks at the progress. Raises what the run was left with."""
        while not reached() and not self.over:
            if self._left is not None:
                raise self._left
            await self._told.wait()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, Event], None]:
        """The events with numbers above `after`, as they come, until the run is over. Raises what the run was left with."""
        while True:
            told = self._told
            while after < len(self._events):
                after += 1
                yield after, self._events[after - 1]
            if self.over and after >= len(self._events):
                return
            if self._left is not None and told is self._told:
                raise self._left
            if told is self._told:
                await told.wait()
