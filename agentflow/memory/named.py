"""Named notes: values that an agent keeps under names, and reads back exactly. Records in the data plane's state store.

    kind         name              value
    named_note   <memory>/<name>   NamedNote, as JSON

The record is the truth: reading it takes neither an embedding nor a search, and writing it replaces what was there in one step.
The row that a search finds follows from it (memories.py). Names are Unicode of 1 to 100 characters in the form NFC; how spaces
stand between words does not matter. A memory has at most MOST_NAMES of them.
"""

from __future__ import annotations

import heapq
import json
import time
import unicodedata
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agentflow.errors import InvalidRequest
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged, QuotaExceeded

if TYPE_CHECKING:
    from dataplane import StateStore

KIND: Final = "named_note"
MOST_NAMES: Final = 1000
MOST_NAME: Final = 100  # characters
MOST_TOLD: Final = 20  # names that are told of where one is unknown


class NamedNote(Struct, frozen=True, kw_only=True):
    """What is kept under a name. Times are milliseconds since 1970. `until`: when it is gone; None: never."""

    text: str
    agent: str
    run_id: str
    at: int
    until: int | None = None


class NamedNotes:
    """All methods raise Refused and DataDamaged; what they have done is durable. `name`s are as `checked_name` gives them."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def put(self, tenant: str, memory: str, name: str, note: NamedNote) -> None:
        """Keep a note under a name, in place of what was there. Raises QuotaExceeded."""
        ttl_s = None if note.until is None else max(0.001, note.until / 1000 - time.time())
        with translated():
            if await self._state.get(tenant, KIND, _key(memory, name)) is None:
                await self._check_room(tenant, memory)
            await self._state.put(tenant, KIND, _key(memory, name), msgspec.json.encode(note), ttl_s=ttl_s)

    async def get(self, tenant: str, memory: str, name: str) -> tuple[NamedNote | None, int]:
        """The note of a name, or None, and the record's version, which differs after each change (0: there is none)."""
        with translated():
            found = await self._state.get(tenant, KIND, _key(memory, name))
        return (None, 0) if found is None else (_decoded(name, found.value), found.version)

    async def delete(self, tenant: str, memory: str, name: str) -> bool:
        """Remove the note of a name; False if there is none."""
        with translated():
            return await self._state.delete(tenant, KIND, _key(memory, name))

    async def names(self, tenant: str, memory: str) -> list[str]:
        """All names of a memory, in the order of UTF-8."""
        stem = _key(memory, "")
        found: list[str] = []
        after = None
        with translated():
            while page := await self._state.scan(tenant, KIND, prefix=stem, after=after):
                found += [key.removeprefix(stem) for key, _ in page]
                after = page[-1][0]
        return found

    async def _check_room(self, tenant: str, memory: str) -> None:
        if len(await self.names(tenant, memory)) >= MOST_NAMES:
            raise QuotaExceeded(
                f"this memory has {MOST_NAMES} names, which is the most: forget one, or use one again.", param="name"
            )


def checked_name(name: str) -> str:
    """A name in its one form. Raises InvalidRequest for what is none."""
    found = " ".join(unicodedata.normalize("NFC", name).split())
    if not 1 <= len(found) <= MOST_NAME or not found.isprintable():
        raise InvalidRequest(f"a name has 1 to {MOST_NAME} characters that can be printed.", param="name")
    return found


def told_names(names: list[str], wanted: str) -> str:
    """Which names there are, for who asked for one that is not: the likest first, and not more than MOST_TOLD."""
    if not names:
        return "Nothing is kept under a name yet."
    looked_for = _pairs(wanted)
    shown = heapq.nsmallest(MOST_TOLD, names, key=lambda name: -_likeness(looked_for, _pairs(name)))
    more = f", and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"The names are: {', '.join(json.dumps(name, ensure_ascii=False) for name in shown)}{more}."


def _key(memory: str, name: str) -> str:
    return f"{memory}/{name}"


def _pairs(name: str) -> set[str]:
    """All that stands side by side in a name, whatever its case."""
    folded = f" {name.casefold()} "
    return {folded[at : at + 2] for at in range(len(folded) - 1)}


def _likeness(one: set[str], other: set[str]) -> float:
    return len(one & other) / (len(one) + len(other))


def _decoded(name: str, stored: bytes) -> NamedNote:
    try:
        return msgspec.json.decode(stored, type=NamedNote)
    except msgspec.DecodeError as error:
        raise DataDamaged(f"the note {name!r} cannot be read: write it again.") from error
