"""Frames: examples with another name in the place of theirs.

An operator writes "billing 是谁负责的？" for all questions of that form. A turn with the same units at its beginning and its end
has the example's frame, and what stands between is what it asks about: "ledger 是谁负责的". Which frames count is said in
routing/lexical.py.

What stands between is shorter than the frame, and in the example it is nothing that speaks for the card: "Who is the owner of
ledger?" is another question than "Who is the author of ledger?". Pure.
"""

# ruff: noqa: RUF002 - Chinese has its own punctuation
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Example:
    """The units of a card's example, and which of them speak for the card, whatever else is said."""

    card: int
    units: Sequence[str]
    telling: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Frame:
    """What a turn shares with an example of a card: the first `head` units, and the last `tail`."""

    card: int
    head: int
    tail: int


class Frames:
    """Examples, by how they begin and end."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._beginning: dict[str, list[Example]] = defaultdict(list)
        self._ending: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            if example.units:
                self._beginning[example.units[0]].append(example)
                self._ending[example.units[-1]].append(example)

    def of(self, found: Sequence[str]) -> list[Frame]:
        """The frames that a turn's units have, the longest first."""
        if not found:
            return []
        frames = {
            Frame(example.card, head, tail)
            for example in (*self._beginning.get(found[0], ()), *self._ending.get(found[-1], ()))
            for head, tail in [_shared(found, example.units)]
            if max(len(found), len(example.units)) < 2 * (head + tail)
            and not any(example.telling[head : len(example.units) - tail])
        }
        return sorted(frames, key=lambda frame: (-frame.head - frame.tail, frame.card, frame.head))


def gaps(texts: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """The units in which texts differ from one another that have one frame: names, most likely."""
    for one, other in combinations(texts, 2):
        head, tail = _shared(one, other)
        if max(len(one), len(other)) < 2 * (head + tail):
            yield from (text[head : len(text) - tail] for text in (one, other))


def _shared(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """How many units two texts begin with alike, and how many of the others they end with."""
    most = min(len(one), len(other))
    head = next((at for at in range(most) if one[at] != other[at]), most)
    tail = next((at for at in range(most - head) if one[-1 - at] != other[-1 - at]), most - head)
    return head, tail
