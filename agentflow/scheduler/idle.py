"""IdlePrefixes: which prompts of runs the engines may still know while nobody reads them, and which are to be forgotten. Pure.

An engine keeps the blocks of a prompt after its sequence has ended, until it needs the room: for ever, on a box that is quiet.
That is what makes the next step of a run quick, for its prompt begins with all of the last one; and it is what a run
holds of the engine while it waits (for its tools, for a person) or is over. Here it is bounded: at most `limit` such prompts
are kept, none for longer than `seconds`, and where a bound is passed, the one that was left the longest ago goes first.

**By what they say, not by whose they are.** A prompt (with what was said behind it) is idle from the moment in which its sequence
ends, until a sequence begins whose prompt begins with all of it; one that comes to nothing (it was refused, or cancelled while it
waited) leaves it as idle as it was, and for as long. So it makes no difference whether the same run goes on, or a
later turn of its conversation, which is another run; nor whether a run's next prompt grew out of its last, or is a new one.
Where a turn is written in another way when it comes again, the two have a beginning in common, and each has its own time.

**None goes at once.** A run that is over and stored nowhere has next turns too: its client keeps the conversation, and sends it
again. Nobody can tell whether he will, so such a run is as idle as any other.

**What is shared stays.** Runs of one agent begin alike (its instructions, its tools), and so do turns of a conversation. Of a
prompt that goes, the engine is to keep as much as any other has in common with it, of the same model and tenant, idle or in
use. Those prompts are kept in order, as words in a dictionary are: no other has more in common with one than its neighbours.

Time is the caller's, in seconds that do not go back. Prompts are kept as four bytes a token.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

WIDTH = array("I").itemsize  # bytes of a token


class Place(NamedTuple):
    """Where prompts are found again: in the engines of one model, by one tenant (whose salt it is)."""

    model: str
    tenant: str


class Forgotten(NamedTuple):
    """What is to go: of `token_ids` (four bytes each) all but the first `keep`."""

    place: Place
    token_ids: array[int]
    keep: int


class Idle(NamedTuple):
    """What idle runs hold of a model's engines, at a moment. `tokens` counts whole blocks that nobody else names."""

    prompts: int
    tokens: int


class Reading(NamedTuple):
    """A prompt that is in use, and the idle ones that it goes on from, with the time since which they were."""

    place: Place
    prompt: bytes
    taken: tuple[tuple[bytes, float], ...]


class Order(NamedTuple):
    """The prompts of one place, sorted; those in `idle` are, once each, and the others are in use."""

    prompts: tuple[bytes, ...]
    idle: frozenset[bytes]


class IdlePrefixes:
    """At most `limit` of them, for at most `seconds` each, once `next_over` has been asked until it has no more."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._orders: dict[Place, list[bytes]] = {}  # idle and in use, sorted; the same one as often as it is used
        self._idle: dict[tuple[Place, bytes], float] = {}  # since when; the oldest first

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def too_many(self) -> bool:
        """Whether one must go, whatever the time is."""
        return len(self._idle) > self._limit

    @property
    def next_at(self) -> float | None:
        """When the oldest has to go; None while nothing is idle."""
        return next((since + self._seconds for since in self._idle.values()), None)

    def begin(self, place: Place, token_ids: Sequence[int]) -> Reading:
        """A prompt is about to be read, or waits for it: what it goes on from is idle no more. Give it back to `end`."""
        prompt = _packed(token_ids)
        found = [each for each in self._beginnings(place, prompt) if (place, each) in self._idle]
        taken = tuple((each, self._idle.pop((place, each))) for each in found)
        for each in found:
            self._remove(place, each)
        self._add(place, prompt)
        return Reading(place, prompt, taken)

    def end(self, reading: Reading, said: Sequence[int] | None, now: float) -> None:
        """Nobody reads it any more; `said` came behind it. None: no engine ever saw it, and all is as it was before."""
        place = reading.place
        self._remove(place, reading.prompt)
        left = reading.taken if said is None else ((reading.prompt + _packed(said), now),)
        for each, since in left:
            known = self._idle.pop((place, each), None)
            if known is None:
                self._add(place, each)
            self._idle[place, each] = since if known is None else max(since, known)  # left again by another meanwhile
        if said is None and left:
            self._idle = dict(sorted(self._idle.items(), key=itemgetter(1)))

    def expire(self, tenant: str) -> None:
        """The time of all that a tenant left is over."""
        theirs = {key: -math.inf for key in self._idle if key[0].tenant == tenant}
        self._idle = theirs | {key: since for key, since in self._idle.items() if key not in theirs}

    def expire_oldest(self, model: str, count: int) -> int:
        """The time of those `count` of a model's prompts is over that were left the longest ago. Returns how many there were."""
        oldest = [key for key in self._idle if key[0].model == model][:count]
        theirs = dict.fromkeys(oldest, -math.inf)
        self._idle = theirs | {key: since for key, since in self._idle.items() if key not in theirs}
        return len(oldest)

    def orders(self, model: str) -> list[Order]:
        """All prompts of a model as they are now, for `held`."""
        idle: dict[Place, set[bytes]] = {}
        for place, prompt in self._idle:
            idle.setdefault(place, set()).add(prompt)
        return [
            Order(tuple(order), frozenset(idle.get(place, ())))
            for place, order in self._orders.items()
            if place.model == model
        ]

    def next_over(self, now: float) -> Forgotten | None:
        """The next that has to go, which is forgotten here; None if none has to."""
        while self._idle:
            (place, oldest), since = next(iter(self._idle.items()))
            if not self.too_many and now < since + self._seconds:
                break
            del self._idle[place, oldest]
            self._remove(place, oldest)
            keep = self._shared(place, oldest)
            if keep * WIDTH < len(oldest):
                return Forgotten(place, array("I", oldest), keep)
        return None

    def _add(self, place: Place, prompt: bytes) -> None:
        insort(self._orders.setdefault(place, []), prompt)

    def _remove(self, place: Place, prompt: bytes) -> None:
        order = self._orders[place]
        del order[bisect_left(order, prompt)]
        if not order:
            del self._orders[place]

    def _shared(self, place: Place, prompt: bytes) -> int:
        """How many tokens `prompt` has in common with the beginning of any other."""
        order = self._orders.get(place, [])
        at = bisect_left(order, prompt)
        return max((_common(prompt, other) for other in order[max(0, at - 1) : at + 1]), default=0)

    def _beginnings(self, place: Place, prompt: bytes) -> list[bytes]:
        """Those that `prompt` begins with, the longest first."""
        order, found = self._orders.get(place, []), []
        while prompt and (at := bisect_right(order, prompt)):
            # No beginning of the prompt is longer than what its left neighbour has in common with it.
            other = order[at - 1]
            shared = _common(prompt, other) * WIDTH
            if other and shared == len(other):
                found.append(other)
                prompt = other[:-WIDTH]
            else:
                prompt = prompt[:shared]
        return found


def held(orders: Sequence[Order], block: int) -> Idle:
    """What the idle ones of these hold, in blocks of so many tokens. Takes microseconds a prompt: many are for a thread."""
    idle = sum(len(order.idle) for order in orders)
    blocks = sum(_blocks(order.prompts, block) - _blocks(_used(order), block) for order in orders)
    return Idle(idle, blocks * block)


def _used(order: Order) -> list[bytes]:
    """The prompts that are in use: of one that is idle too, all but one of the equal ones."""
    used, before = [], None
    for prompt in order.prompts:
        if prompt == before or prompt not in order.idle:
            used.append(prompt)
        before = prompt
    return used


def _blocks(prompts: Sequence[bytes], block: int) -> int:
    """How many blocks sorted prompts have, where those in a common beginning are the same."""
    count, before = 0, b""
    for prompt in prompts:
        count += len(prompt) // WIDTH // block - _common(before, prompt) // block
        before = prompt
    return count


def _packed(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()


def _common(one: bytes, other: bytes) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * WIDTH : middle * WIDTH] == other[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low
