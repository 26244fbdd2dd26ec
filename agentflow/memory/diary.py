"""Diary: finished runs are written into memories, behind the answer. Stateful.

What is to be remembered is first a page: a record of the kind `remember`, under the run's tenant and id. Then one worker makes
rows of it, with vectors, and removes the page.

Order: a page is durable before the run is noted as over, and is removed after its rows are durable. A crash before the page
leaves an open run whose log has its end: whoever takes it up makes the page again. A crash before the rows leaves the page, which
`take_up` finds. One after them has the same rows written twice, under the same ids.

An embedding model that is away keeps pages waiting, not runs: only their names are in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agentflow.errors import AgentFlowError, EngineFailure, Refused
from agentflow.library.planeerrors import translated
from agentflow.memory.memories import Entry, Memories

if TYPE_CHECKING:
    from dataplane import StateStore

KIND: Final = "remember"
_RETRY_S: Final = 2.0
_LONGEST_RETRY_S: Final = 300.0
_SCAN: Final = 1000

_log = logging.getLogger(__name__)


class Page(Struct, frozen=True, kw_only=True):
    """What is to be written into the memory `name`."""

    name: str
    entries: tuple[Entry, ...]


class Diary:
    """Lives on the event loop. `state` opens the data plane if it is not, and raises Refused."""

    def __init__(
        self, memories: Memories, state: Callable[[], Awaitable[StateStore]], retry_s: float = _RETRY_S
    ) -> None:
        self._memories = memories
        self._state = state
        self._retry_s = retry_s
        self._due: dict[tuple[str, str], None] = {}  # tenant and run id, in the order in which they are written
        self._woken = asyncio.Event()

    @property
    def due(self) -> int:
        """Pages that are not written yet."""
        return len(self._due)

    async def put(self, tenant: str, run_id: str, page: Page) -> None:
        """Promise to remember: durable when it returns. Raises Refused, DataDamaged."""
        state = await self._state()
        with translated():
            await state.put(tenant, KIND, run_id, msgspec.json.encode(page))
        self._add(tenant, run_id)

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
            while self._due:
                key = next(iter(self._due))
                written = await self._write(*key)
                del self._due[key]
                if written:
                    pause_s = self._retry_s
                else:
                    self._due[key] = None  # behind the others
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    def _add(self, tenant: str, run_id: str) -> None:
        self._due[tenant, run_id] = None
        self._woken.set()

    async def _write(self, tenant: str, run_id: str) -> bool:
        """Whether nothing is left to do now for a page."""
        try:
            await self._make_rows(tenant, run_id)
        except (Refused, EngineFailure) as error:
            _log.info("a run is not remembered yet", extra={"run": run_id, "why": str(error)})
            return False
        except Exception:  # noqa: BLE001 - a defect with one page must not keep the others; the next start tries it again
            _log.exception("a run is not remembered, for a defect", extra={"run": run_id})
        return True

    async def _make_rows(self, tenant: str, run_id: str) -> None:
        state = await self._state()
        with translated():
            found = await state.get(tenant, KIND, run_id)
        if found is None:
            return
        try:
            page = msgspec.json.decode(found.value, type=Page)
            await self._memories.write(tenant, page.name, page.entries)
        except (Refused, EngineFailure):
            raise
        except (AgentFlowError, msgspec.MsgspecError) as error:  # it would be the same tomorrow
            _log.warning("a run cannot be remembered", extra={"run": run_id, "why": str(error)})
        with translated():
            await state.delete(tenant, KIND, run_id)
