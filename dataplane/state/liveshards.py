"""Live shards: the valid log shards of a history, each with its index or what keeps it from being read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dataplane.state.logshards import LARGEST_SEQ, stream_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from dataplane.errors import Damaged
    from dataplane.state.logshards import LogIndex, LogShardEntry


Place: TypeAlias = tuple[str, str, int]  # tenant, stream, sequence number


@dataclass(frozen=True, slots=True)
class Live:
    """A valid shard: its index, or what keeps it from being read."""

    entry: LogShardEntry
    index: LogIndex | None
    problem: Damaged | None = None


def refuse_unread(shards: tuple[Live, ...]) -> None:
    """Raise what keeps a shard from being read, if there is one: what it holds is not known."""
    for live in shards:
        if live.problem:
            raise type(live.problem)(str(live.problem)) from live.problem


def may_hold(live: Live, tenant: str, stream: str | None) -> bool:
    """Whether events of a tenant, or of one stream of it, may be there. Raises what keeps the shard from being read."""
    refuse_unread((live,))
    if live.index is None or not live.index.holds_tenant(tenant):
        return False
    return stream is None or live.index.holds_stream(stream_key(tenant, stream))


def may_hold_any(live: Live, keys: npt.NDArray[np.uint64]) -> bool:
    """Whether events of streams with these hashes may be there. Raises what keeps the shard from being read."""
    refuse_unread((live,))
    return live.index is not None and bool(np.isin(keys, live.index.keys).any())


def mergeable(shards: tuple[Live, ...], max_rows: int, skipped: set[str]) -> list[Live]:
    """Neighbours to merge into one shard of at most `max_rows` rows; none if no merge is worth while."""
    group: list[Live] = []
    for live in (*shards, None):
        rows = [member.entry.rows for member in group]
        fits = live and not live.problem and live.entry.name not in skipped and sum(rows) + live.entry.rows <= max_rows
        if live and fits:
            group.append(live)
            continue
        while len(group) > 1 and 2 * max(rows) > sum(rows):
            del group[0], rows[0]
        if len(group) > 1:
            return group
        group = [live] if live and not live.problem and live.entry.name not in skipped else []
    return []


def whereabouts(shards: Sequence[Live], places: Sequence[Place]) -> Iterator[tuple[Live, int, list[Place]]]:
    """The row groups that hold some of these places, by the indexes: shard, group, and which."""
    keys = np.array([stream_key(tenant, stream) for tenant, stream, _ in places], dtype=np.uint64)
    seqs = np.array([min(max(seq, 0), LARGEST_SEQ) for _, _, seq in places], dtype=np.uint64)
    for live in shards:
        groups = live.index.find_all(keys, seqs) if live.index else np.full(len(places), -1)
        for group in np.unique(groups[groups >= 0]).tolist():
            yield live, group, [places[position] for position in np.flatnonzero(groups == group)]
