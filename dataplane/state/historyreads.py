"""Reads of a history's live shards: one event, and a page of a log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dataplane.state.liveshards import refuse_unread
from dataplane.state.logshards import LARGEST_SEQ, LogEvent, OpenShards, stream_key

if TYPE_CHECKING:
    from dataplane.state.liveshards import Live, Place


def find(opened: OpenShards, shards: tuple[Live, ...], place: Place) -> LogEvent | None:
    """One event, or None; the latest shard that has it counts.

    Raises ChecksumMismatch or Damaged if it may be where nothing can be read, Closed.
    """
    tenant, stream, seq = place
    if not 0 <= seq <= LARGEST_SEQ:
        return None
    key = stream_key(tenant, stream)
    for live in reversed(shards):
        group = live.index.find(key, seq) if live.index else None
        if group is not None and (event := opened.get(live.entry).find(group, tenant, stream, seq)):
            return event
    refuse_unread(shards)
    return None


def scan(
    opened: OpenShards,
    shards: tuple[Live, ...],
    log: tuple[str, str],
    seqs: range,
    limit: int,
    max_bytes: float = math.inf,
) -> list[LogEvent]:
    """The events of a tenant's `log` with numbers in `seqs`, rising: at most `limit`, and no more once `max_bytes` are read.

    Shards that cannot be read are passed over. Raises ChecksumMismatch or Damaged for a group that cannot be read, Closed.
    """
    key = stream_key(*log)
    runs = sorted(
        (first, count, number, group)
        for number, live in enumerate(shards)
        if live.index
        for first, count, group in live.index.after(key, seqs.start - 1)
        if first < seqs.stop
    )
    decoded: dict[tuple[int, int], dict[int, LogEvent]] = {}
    found: dict[int, LogEvent] = {}
    size = 0
    for first, count, number, group in runs:
        if len(found) >= limit or size >= max_bytes:
            break
        if (number, group) not in decoded:
            events = opened.get(shards[number].entry).events(group)
            decoded[number, group] = {event.seq: event for event in events if (event.tenant, event.stream) == log}
        for seq in range(max(first, seqs.start), min(first + count, seqs.stop)):
            if seq not in found and (event := decoded[number, group].get(seq)):
                found[seq] = event
                size += len(event.payload)
    return [found[seq] for seq in sorted(found)[:limit]]
