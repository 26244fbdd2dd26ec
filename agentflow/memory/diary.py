"""Diary: finished runs are written into memories, behind the answer, and so are the rows of named notes. Stateful.

What is to be remembered is first a page: a record of the kind `remember`, under the run's tenant and id. Then one worker makes
rows of it, with vectors, and removes the page.

Order: a page is durable before the run is noted as over, and is removed after its rows are durable. A crash before the page
leaves an open run whose log has its end: whoever takes it up makes the page again. A crash before the rows leaves the page, which
`take_up` finds. One after them has the same rows written twice, under the same ids.

A named note (named.py) is first a page of its name, then its record, which is the note, then its row. A change of it that
returned is durable; its row is made at once where the embedding model answers soon, and else behind it. A page that was put
anew while its rows were written stays.

An embedding model that is away keeps pages waiting, not runs: only their names are in memory.

The worker also renews memories whose vectors are another model's (renewal.py), a part between one page and the next. Pages of
such a memory wait until it is done. That it has to be renewed is noted nowhere: whoever uses it notices again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agentflow.agents.archive import HOUSE
from agentflow.errors import AgentFlowError, EngineFailure, Refused
from agentflow.library.planeerrors import translated
from agentflow.memory.memories import Memories
from agentflow.memory.named import NamedNote
from agentflow.memory.places import MemoryStale
from agentflow.memory.rows import Entry
from dataplane.errors import VersionConflict

if TYPE_CHECKING:
    from dataplane import StateStore

KIND: Final = "remember"
_RETRY_S: Final = 2.0
_LONGEST_RETRY_S: Final = 300.0
_SCAN: Final = 1000
_AT_ONCE_S: Final = 3.0  # that who changes a named note waits for its row

_log = logging.getLogger(__name__)


class Page(Struct, frozen=True, kw_only=True):
    """What is to be written into the memory `name`. `notes`: names of notes whose rows are to be as their records are."""

    name: str
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


class Diary:
    """Lives on the event loop. `state` opens the data plane if it is not, and raises Refused."""

    def __init__(
        self, memories: Memories, state: Callable[[], Awaitable[StateStore]], retry_s: float = _RETRY_S
    ) -> None:
        self._memories = memories
        self._state = state
        self._retry_s = retry_s
        self._due: dict[tuple[str, str], None] = {}  # tenant and run id, in the order in which they are written
        self._stale: dict[tuple[str, str], set[str]] = {}  # tenant and memory to renew: the pages that wait for it
        self._woken = asyncio.Event()
        memories.watch(self._renew_soon)

    @property
    def due(self) -> int:
        """Pages that are not written yet, and memories that are not renewed."""
        return len(self._due) + len(self._stale) + sum(map(len, self._stale.values()))

    async def put(self, tenant: str, run_id: str, page: Page) -> None:
        """Promise to remember: durable when it returns. `run_id` is the page's own. Raises Refused, DataDamaged."""
        await self._promise(tenant, run_id, page)
        self._add(tenant, run_id)

    async def keep(self, tenant: str, memory: str, name: str, note: NamedNote) -> bool:
        """Keep a note under a name: durable when it returns. Whether a search finds it already; else it will.

        Raises Refused, DataDamaged, QuotaExceeded.
        """

        async def change() -> None:
            await (await self._memories.named()).put(tenant, memory, name, note)

        return await self._change(tenant, memory, name, change)

    async def drop(self, tenant: str, memory: str, name: str) -> bool:
        """Remove the note of a name: durable when it returns. False if there is none. Raises Refused, DataDamaged."""
        there = False

        async def change() -> None:
            nonlocal there
            there = await (await self._memories.named()).delete(tenant, memory, name)

        await self._change(tenant, memory, name, change)
        return there

    async def _change(self, tenant: str, memory: str, name: str, change: Callable[[], Awaitable[None]]) -> bool:
        """Change a named note's record, then its row. Whether that has been made; else the worker makes it."""
        page_id = f"{memory}/{name}"
        version = await self._promise(tenant, page_id, Page(name=memory, notes=(name,)))
        made = False
        try:
            await change()
            made = await self._indexed(tenant, memory, name) and await self._remove(tenant, page_id, version)
        finally:
            if not made:
                self._add(tenant, page_id)
        return made

    async def _indexed(self, tenant: str, memory: str, name: str) -> bool:
        """Whether the row of a named note could be made soon."""
        try:
            async with asyncio.timeout(_AT_ONCE_S):
                await self._memories.index(tenant, memory, name)
        except (AgentFlowError, TimeoutError) as error:
            _log.info("a note is not in its memory yet", extra={"memory": memory, "why": str(error)})
            return False
        return True

    async def take_up(self, tenants: Iterable[str]) -> int:
        """Find the pages that an earlier process left; returns how many. Raises Refused, DataDamaged."""
        state, found = await self._state(), 0
        for tenant in tenants:
            after = None
            while True:
                with translated():
                    page = await state.scan(tenant, KIND, after=after, limit=_SCAN)
                if not page:
                    break
                for run_id, _ in page:
                    self._add(tenant, run_id)
                found, after = found + len(page), page[-1][0]
        return found

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        pause_s = self._retry_s
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._due or self._stale:
                well = await self._renew_part()
                if self._due and await self._write_next() and well:
                    pause_s = self._retry_s
                elif self._due or not well:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    async def _write_next(self) -> bool:
        """Write a page; False if it has to be tried again."""
        key = next(iter(self._due))
        written = await self._write(*key)
        del self._due[key]
        if not written:
            self._due[key] = None  # behind the others
        return written

    async def _renew_part(self) -> bool:
        """Renew the next part of a memory that needs it; False if it has to be tried again."""
        for key in list(self._stale)[:1]:
            tenant, memory = key
            try:
                done = await self._memories.renew(tenant, memory)
            except (Refused, EngineFailure) as error:
                _log.info("a memory is not renewed yet", extra={"memory": memory, "why": str(error)})
                self._stale[key] = self._stale.pop(key)  # behind the others
                return False
            except Exception:  # noqa: BLE001 - a defect with one memory must not keep the others; who uses it tries again
                _log.exception("a memory is not renewed, for a defect", extra={"memory": memory})
                self._stale.pop(key)
            else:
                if done:
                    _log.info("a memory is renewed for the embedding model that is served", extra={"memory": memory})
                    for page_id in self._stale.pop(key):
                        self._due[tenant, page_id] = None
        return True

    def _renew_soon(self, tenant: str, memory: str) -> None:
        self._stale.setdefault((tenant, memory), set())
        self._woken.set()

    async def _promise(self, tenant: str, page_id: str, page: Page) -> int:
        """Make a page durable. Returns its version."""
        state = await self._state()
        with translated():
            await state.put(HOUSE, "tenant", tenant, b"", wait="visible")  # where pages are looked for: durable with it
            return await state.put(tenant, KIND, page_id, msgspec.json.encode(page))

    async def _remove(self, tenant: str, page_id: str, version: int) -> bool:
        """Remove a page that was kept; False if it was put anew meanwhile."""
        state = await self._state()
        with translated():
            try:
                await state.delete(tenant, KIND, page_id, expected=version)
            except VersionConflict as conflict:
                return conflict.version == 0
        return True

    def _add(self, tenant: str, run_id: str) -> None:
        self._due[tenant, run_id] = None
        self._woken.set()

    async def _write(self, tenant: str, run_id: str) -> bool:
        """Whether nothing is left to do now for a page."""
        try:
            return await self._make_rows(tenant, run_id)
        except (Refused, EngineFailure) as error:
            _log.info("a run is not remembered yet", extra={"run": run_id, "why": str(error)})
            return False
        except Exception:  # noqa: BLE001 - a defect with one page must not keep the others; the next start tries it again
            _log.exception("a run is not remembered, for a defect", extra={"run": run_id})
        return True

    async def _make_rows(self, tenant: str, run_id: str) -> bool:
        """False where the page was put anew meanwhile."""
        state = await self._state()
        with translated():
            found = await state.get(tenant, KIND, run_id)
        if found is None:
            return True
        try:
            page = msgspec.json.decode(found.value, type=Page)
            await self._write_page(tenant, page)
        except MemoryStale as stale:
            self._stale.setdefault((tenant, stale.memory), set()).add(run_id)
            return True
        except (Refused, EngineFailure):
            raise
        except (AgentFlowError, msgspec.MsgspecError) as error:  # it would be the same tomorrow
            _log.warning("a run cannot be remembered", extra={"run": run_id, "why": str(error)})
        return await self._remove(tenant, run_id, found.version)

    async def _write_page(self, tenant: str, page: Page) -> None:
        await self._memories.write(tenant, page.name, page.entries)
        for note in page.notes:
            await self._memories.index(tenant, page.name, note)
