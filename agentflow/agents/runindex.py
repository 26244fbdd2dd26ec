"""RunIndex: which closed runs are of an agent, and which ended how, without reading the runs. Records in the state store.

    kind        name                         value
    run_by      end/<end>/<run id>           empty
    run_by      agent/<agent>/<end>/<run id>  empty
    run_index   all                          Reach: how far the runs that were there before are indexed

An entry follows from a run's record, and is written before it: an entry without a record, or with one that says something else,
counts for nothing. Runs that are open have none: they are few, and listed by themselves.

Runs from before there was an index are indexed when somebody first asks (`complete`), a page at a time; what a crash leaves is
gone on with. A tenant that has none when its first run begins needs no such thing (`begin`).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, get_args

import msgspec
from msgspec import Struct

from agentflow.agents.record import RunEnd

if TYPE_CHECKING:
    from dataplane import StateStore

ENDS: Final[tuple[RunEnd, ...]] = get_args(RunEnd)
KIND: Final = "run_by"
_REACH: Final = "run_index"
_ALL: Final = "all"
_PAGE: Final = 500

_log = logging.getLogger(__name__)


class Indexed(Protocol):
    """What of a run its entries follow from (archive.RunRecord)."""

    @property
    def id(self) -> str:
        """Its id; those of later runs sort first."""

    @property
    def agent(self) -> str:
        """Whose it is."""

    @property
    def end(self) -> RunEnd | None:
        """How it ended; None: it goes on."""


class Reach(Struct, frozen=True, kw_only=True):
    """Runs up to the id `after` are indexed, and with `done` all of them."""

    after: str | None = None
    done: bool = False


Runs = Callable[[str | None, int], Awaitable[Sequence[Indexed]]]
"""The runs behind an id (None: the first ones), at most so many; none at the end."""


class RunIndex:
    """All methods raise the data plane's errors. What is written is durable with the next write that is."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._begun: set[str] = set()  # tenants whose reach is known to be stored, or not to be needed

    async def note(self, tenant: str, run: Indexed) -> None:
        """Index a run that is over. Before its record is written."""
        await asyncio.gather(*(self._state.put(tenant, KIND, name, b"", wait="visible") for name in _names(run)))

    async def forget(self, tenant: str, run: Indexed) -> None:
        """Remove a run's entries."""
        await asyncio.gather(*(self._state.delete(tenant, KIND, name, wait="visible") for name in _names(run)))

    async def forget_id(self, tenant: str, run_id: str) -> None:
        """As `forget`, of a run of which nothing else is known: all entries are looked at."""
        after = None
        while page := await self._state.scan(tenant, KIND, after=after, limit=_PAGE):
            names = [name for name, _ in page if name.endswith(f"/{run_id}")]
            await asyncio.gather(*(self._state.delete(tenant, KIND, name, wait="visible") for name in names))
            after = page[-1][0]

    async def begin(self, tenant: str) -> None:
        """Note of a tenant that has no runs that there is nothing to index. Looks once for each tenant."""
        if tenant in self._begun:
            return
        self._begun.add(tenant)
        if await self._state.get(tenant, _REACH, _ALL) is None and not await self._state.scan(tenant, "run", limit=1):
            await self._put_reach(tenant, Reach(done=True))

    async def complete(self, tenant: str, runs: Runs) -> None:
        """Index what was there before the index."""
        stored = await self._state.get(tenant, _REACH, _ALL)
        reach = Reach() if stored is None else _reach(stored.value)
        while not reach.done:
            page = await runs(reach.after, _PAGE)
            await asyncio.gather(*(self.note(tenant, run) for run in page))
            reach = Reach(after=page[-1].id) if page else Reach(done=True)
            await self._put_reach(tenant, reach)

    async def ids(self, tenant: str, agent: str | None, end: RunEnd | None, after: str, limit: int) -> list[str]:
        """The first ids behind `after` of runs of an agent, or that ended so, or both: at most `limit`, in order."""
        stems = [_stem(agent, each) for each in (ENDS if end is None else (end,))]
        found = await asyncio.gather(
            *(self._state.scan(tenant, KIND, prefix=stem, after=stem + after, limit=limit) for stem in stems)
        )
        parts = [[name.removeprefix(stem) for name, _ in page] for stem, page in zip(stems, found, strict=True)]
        return list(heapq.merge(*parts))[:limit]

    async def _put_reach(self, tenant: str, reach: Reach) -> None:
        await self._state.put(tenant, _REACH, _ALL, msgspec.json.encode(reach), wait="visible")


def _reach(stored: bytes) -> Reach:
    try:
        return msgspec.json.decode(stored, type=Reach)
    except msgspec.DecodeError as error:
        _log.warning("the index of the runs cannot be trusted, and is made anew", extra={"why": str(error)})
        return Reach()


def _names(run: Indexed) -> list[str]:
    return [] if run.end is None else [_stem(None, run.end) + run.id, _stem(run.agent, run.end) + run.id]


def _stem(agent: str | None, end: RunEnd) -> str:
    return f"end/{end}/" if agent is None else f"agent/{agent}/{end}/"
