"""Rows: what is remembered as the data plane's rows, and back. Pure.

id          of 18 characters, which follows from what is remembered: what is written twice is there once. That of a named
            note follows from its name
text        as the model reads it
attributes  kind (turn, note, result), agent, run, at (milliseconds since 1970); said (see `fingerprint`) of a turn; name of a
            named note
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from agentflow.memory.named import NamedNote
from agentflow.memory.recollection import Memory
from dataplane import Hit, Row

Kind = Literal["turn", "note", "result"]


class Entry(Struct, frozen=True, kw_only=True):
    """Something to remember. Times are milliseconds since 1970. `until`: when it is gone; None: never."""

    id: str
    kind: Kind
    text: str
    agent: str
    run_id: str
    at: int
    said: str = ""
    until: int | None = None
    name: str = ""


def fingerprint(text: str) -> str:
    """Stands for what a user said, so that a conversation is not reminded of itself."""
    return hashlib.sha256(text.strip().encode(errors="replace")).hexdigest()[:16]


def memory_id(run_id: str, kind: Kind, text: str) -> str:
    """The id of what a run remembers: the same for the same text."""
    digest = hashlib.sha256(f"{run_id}\n{kind}\n{text}".encode(errors="replace"))
    return f"m_{digest.hexdigest()[:16]}"


def named_id(name: str) -> str:
    """The id of the row of a named note: the same for the same name."""
    return f"m_{hashlib.sha256(f'name: {name}'.encode()).hexdigest()[:16]}"


def entry_of(name: str, note: NamedNote) -> Entry:
    """A named note, as something to remember."""
    return Entry(
        id=named_id(name),
        kind="note",
        text=note.text,
        agent=note.agent,
        run_id=note.run_id,
        at=note.at,
        until=note.until,
        name=name,
    )


def row_of(entry: Entry, vector: Any, now: int) -> Row:
    """Its row. `now`: milliseconds since 1970."""
    attributes: dict[str, str | float | bool] = {
        "kind": entry.kind,
        "agent": entry.agent,
        "run": entry.run_id,
        "at": entry.at,
    }
    if entry.said:
        attributes["said"] = entry.said
    if entry.name:
        attributes["name"] = entry.name
    ttl_s = None if entry.until is None else max(0.001, (entry.until - now) / 1000)
    return Row(id=entry.id, vector=vector, text=entry.text, attributes=attributes, ttl_s=ttl_s)


def memory_of(hit: Hit) -> Memory:
    """What was found, as its row says."""
    at = hit.attributes.get("at", 0)
    return Memory(
        id=hit.id,
        kind=str(hit.attributes.get("kind", "")),
        text=hit.text or "",
        at=int(at) if isinstance(at, int | float) else 0,
        name=name_of(hit.attributes),
    )


def name_of(attributes: Mapping[str, Any]) -> str:
    """The name of a note's row; empty for one that has none."""
    return str(attributes.get("name", ""))
