"""Lexical likeness of a text to cards: BM25F over the terms of their names, aliases, examples, descriptions and parameters.

A term's weight for a card is idf * tf / (tf + K1), where tf is the sum of the weights of the fields that have it: terms in many
cards say little, and a term that a field repeats says not much more than once. There is no length normalisation: cards are
short, and a long polite question wants its tool no less. idf is divided by that of a term in one card alone, so that evidence
has the same scale for two tools as for two hundred.

An alias of several units counts as a whole, wherever it stands, and what is within it does not count again, for any card: an
"exchange rate" is one thing, "pounds sterling" weigh nothing. A word that no card has and that is one edit away from one (a
letter more, fewer or other, or two swapped) counts as that, if both begin alike: first letters are seldom mistyped (Pollock and
Zamora, 1984). A letter more at the end is another form of the word, and no slip.

A term's cards are all those whose examples have it, be it once: a city in the examples of three tools says little, also where
only one of them has it twice. Nor does it say more where it opens a turn (北京现在几点).

A turn may have the frame of an example (routing/frames.py), with another name in its place: it counts as an alias does, and what
stands in the place speaks for no card, unless one is called so. "How is host beta doing?" has the frame of "How is host alpha
doing?", and is not taken for the tool whose examples reboot beta. Not every frame counts: "Is it safe in Paris?" has that of "Is
it wet in Paris?". One does that asks as people ask anything, that has a word or an alias of its card, or whose place has a name
that an example has beside the same term (host beta). And what varies among a card's own examples
(Reboot host beta, Reboot host gamma) speaks for it no more than what one of them says.

A card with openers says how people ask for anything (routing/direct.py). What of it stands in another card's examples speaks for
that card too; and for that card alone where the turn has more of it, or the frame of an example: a tool whose example is "Who is
the owner of search?" is not beaten by "who is".

What opens the turn, behind courtesies, is what is asked for ("remember that I have 900 euros", "write a poem about rain"): it
counts more than what stands behind it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec import structs

from agentflow.routing.cards import ToolCard
from agentflow.routing.frames import Example, Frames, gaps
from agentflow.routing.terms import (
    STOP_PHRASES,
    SUM,
    has_sum,
    is_character,
    opening_of,
    spoken,
    term_at,
    terms,
    units,
)

K1 = 1.2  # BM25's usual saturation (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009)
# A whole name and an alias are chosen to say what the tool is. An example also has places, days and people in it, so that what
# only one example says is not counted at all.
ALIAS = 3.0
DESCRIPTION = 1.0
PARAMETER = 0.5
EXAMPLE = 0.5
TYPO_LENGTH = 5  # shorter words have too many others at one edit from them; and one of the two is longer than this
TYPO_WEIGHT = 0.8
OPENING = 1.5  # this, the weights above and that of a typo were set by hand and kept, as the tuning turns hardly told them apart


@dataclass(frozen=True, slots=True)
class Match:
    """What speaks for one card: the sum, in which a term that is an alias of this card alone counts about 0.7; and why.

    `framed`: the text is one of the card's examples, with another name in it.
    """

    evidence: float = 0.0
    terms: tuple[str, ...] = ()
    framed: bool = False


@dataclass(slots=True)
class _Tally:
    evidence: float = 0.0
    terms: list[tuple[float, str]] = field(default_factory=list)
    framed: bool = False


class LexicalIndex:
    """Cards by the terms that speak for them."""

    def __init__(self, cards: Sequence[ToolCard]) -> None:
        self._phrases: set[tuple[str, ...]] = set()
        self._openers: set[tuple[str, ...]] = set()
        frequencies: dict[str, dict[int, float]] = defaultdict(dict)
        exemplified: dict[str, set[int]] = defaultdict(set)
        own = [self._frequencies(structs.replace(card, examples=())).keys() for card in cards]
        self._chosen = set[str]().union(*own)
        for number, card in enumerate(cards):
            for term, frequency in self._frequencies(card).items():
                frequencies[term][number] = frequency
            for term in {term for example in card.examples for term in terms(example)}:
                exemplified[term].add(number)
        self._longest = max(map(len, self._phrases | self._openers), default=0)
        self._general = {number for number, card in enumerate(cards) if card.openers}
        self._asking = set[str]().union(*(own[number] for number in self._general))
        self._asking_phrases = {tuple(units(alias)) for number in self._general for alias in cards[number].aliases}
        framed: list[Example] = []
        for number, card in enumerate(cards):
            shared: dict[str, float] = defaultdict(float)
            for said in map(units, card.examples):
                for term in self._ways_of_asking(said):
                    shared[term] += EXAMPLE
                if number not in self._general:
                    framed.append(Example(number, said, self._telling(said, own[number])))
            for term, frequency in shared.items():
                frequencies[term].setdefault(number, frequency)
        self._frames = Frames(framed)
        self._own = own
        self._beside = {
            edge for each in framed for at in range(len(each.units)) for edge in _edges(each.units, at, at + 1)
        }
        rarest = _idf(1, len(cards))
        self._postings = {
            term: [
                (number, _idf(len(found.keys() | exemplified[term]), len(cards)) / rarest * tf / (tf + K1))
                for number, tf in found.items()
            ]
            for term, found in frequencies.items()
        }
        self._misspelt: dict[str, str] = {}
        for term, found in frequencies.items():
            if max(found.values()) >= DESCRIPTION:  # what only an example has is too much by chance
                for form in _deletions(term):
                    self._misspelt.setdefault(form, term)

    def match(self, text: str) -> dict[int, Match]:
        """The cards, by number, that something in the text speaks for."""
        tallies: dict[int, _Tally] = defaultdict(_Tally)
        known = self._known(text)
        taken, names = self._framed(units(text), tallies)
        for name in names:
            known.pop(name, None)
        taken |= self._shared_in(known)
        for term, trust in known.items():
            for number, weight in self._postings[term]:
                if number in self._general and term in taken:
                    continue
                tallies[number].evidence += weight * trust
                tallies[number].terms.append((weight, term))
        return {
            number: Match(tally.evidence, tuple(term for _, term in sorted(tally.terms, reverse=True)), tally.framed)
            for number, tally in tallies.items()
        }

    def _frequencies(self, card: ToolCard) -> dict[str, float]:
        """The card's terms and whole aliases, and the sums of the fields' weights."""
        result: dict[str, float] = defaultdict(float)
        fields = [(DESCRIPTION, text) for text in (spoken(card.name), card.description)]
        fields += [(PARAMETER, spoken(text)) for text in card.fields()]
        for weight, text in fields:
            for term in terms(text):
                result[term] += weight
        said = Counter(term for example in card.examples for term in terms(example))
        names = {term for gap in gaps([*map(units, card.examples)]) for term in _terms_of(gap)}
        for term, examples in said.items():
            if term in result or (examples > 1 and term not in names):
                result[term] += EXAMPLE * examples
        for alias in (spoken(card.name), *card.aliases):
            if phrase := tuple(units(alias)):
                self._phrases.add(phrase)
                result[_whole(phrase)] += ALIAS
        for opener in card.openers:
            if phrase := tuple(units(opener)):
                self._openers.add(phrase)
                result[_opening(phrase)] += ALIAS
        return result

    def _ways_of_asking(self, said: list[str]) -> set[str]:
        """The opener with which an example begins, and the asking phrases in it, as terms: they speak for its card as well."""
        opening = opening_of(said)
        phrases = [
            (at, tuple(said[at : at + size]))
            for size in range(min(self._longest, len(said)), 0, -1)
            for at in range(len(said) - size + 1)
        ]
        opener = next((phrase for at, phrase in phrases if at <= opening and phrase in self._openers), None)
        asking = {_whole(phrase) for _, phrase in phrases if phrase in self._asking_phrases}
        return asking if opener is None else asking | {_opening(opener)}

    def _telling(self, said: list[str], own: AbstractSet[str]) -> list[bool]:
        """Which of an example's units are of the terms and aliases that were chosen for its card."""
        telling = [False] * len(said)
        for size in range(1, min(max(self._longest, 2), len(said)) + 1):
            for at in range(len(said) - size + 1):
                if _whole(tuple(said[at : at + size])) in own:
                    telling[at : at + size] = [True] * size
        return telling

    def _framed(self, found: list[str], tallies: dict[int, _Tally]) -> tuple[set[str], set[str]]:
        """The ways of asking within frames (routing/frames.py), and the names in their places, which say nothing.

        The longest frame of each card counts for it as an alias does.
        """
        taken: set[str] = set()
        names: set[str] = set()
        opening = opening_of(found)
        for frame in self._frames.of(found):
            end = len(found) - frame.tail
            left = [at < frame.head or at >= end for at in range(len(found))]
            phrases = self._phrases_in(found, opening, left).keys()
            asked = phrases & self._asking
            words = (term_at(found, at) for at in range(len(found)) if all(left[at : at + 1 + is_character(found[at])]))
            others = (phrases - asked).union(word for word in words if word is not None)
            telling = asked or others & self._own[frame.card] or self._has_name(found, frame.head, end)
            if others and telling and not tallies[frame.card].framed:
                tallies[frame.card].framed = True
                taken |= asked
                names |= _terms_of(found[frame.head : end])
                shown = f"{_whole(tuple(found[: frame.head]))} ... {_whole(tuple(found[end:]))}".strip()
                tallies[frame.card].evidence += ALIAS / (ALIAS + K1)
                tallies[frame.card].terms.append((ALIAS / (ALIAS + K1), shown))
        return taken, names - self._chosen

    def _has_name(self, found: Sequence[str], head: int, end: int) -> bool:
        """Whether what stands in a place begins or ends as in an example, beside the same term."""
        return head < end and any(edge in self._beside for edge in _edges(found, head, end))

    def _shared_in(self, known: dict[str, float]) -> set[str]:
        """The ways of asking in a text that a card's examples have too, where the text has more of that card's."""
        asked = known.keys() & self._asking
        cards = {number for term in known.keys() - asked for number, _ in self._postings[term]} - self._general
        return {term for term in asked if any(number in cards for number, _ in self._postings[term])}

    def _known(self, text: str) -> dict[str, float]:
        """The text's terms that cards have, each with how much it counts."""
        found = units(text)
        opening = opening_of(found)
        free = [True] * len(found)
        known = self._phrases_in(found, opening, free)
        for at in range(len(found)):
            if free[at] and (term := term_at(found, at)) is not None:
                weight = OPENING if at <= opening and term in self._chosen else 1.0
                if term in self._postings:
                    _raise_to(known, term, weight)
                elif (meant := self._meant(term)) is not None:
                    _raise_to(known, meant, TYPO_WEIGHT * weight)
        if SUM in self._postings and has_sum(text):
            known[SUM] = 1.0
        return known

    def _phrases_in(self, found: list[str], opening: int, free: list[bool]) -> dict[str, float]:
        """The aliases and openers among the units, the longest first; what they take is no longer `free`."""
        known: dict[str, float] = defaultdict(float)
        for size in range(min(self._longest, len(found)), 0, -1):
            for at in range(len(found) - size + 1):
                phrase = tuple(found[at : at + size])
                opens = at <= opening and phrase in self._openers
                said = opens or phrase in self._phrases
                if (said or phrase in STOP_PHRASES) and all(free[at : at + size]):
                    free[at : at + size] = [False] * size
                    if said:
                        term = _opening(phrase) if opens else _whole(phrase)
                        _raise_to(known, term, OPENING if at <= opening else 1.0)
        return known

    def _meant(self, word: str) -> str | None:
        """The term of a card that a misspelt word was to be."""
        found = (self._misspelt[form] for form in _deletions(word) if form in self._misspelt)
        return next((term for term in found if _one_edit(word, term)), None)


def _whole(phrase: tuple[str, ...]) -> str:
    """An alias as a term. One word, and two characters, are the same term that any text with them has."""
    if all(map(is_character, phrase)):
        return "".join(phrase)
    return " ".join(phrase)


def _opening(phrase: tuple[str, ...]) -> str:
    """An opener as a term, which no text has elsewhere."""
    return f"{_whole(phrase)} ..."


def _edges(found: Sequence[str], head: int, end: int) -> Iterator[tuple[str, ...]]:
    """The term right before a place of a text with the first unit there, and the last with the term right behind."""
    start = head - 2 if head > 1 and is_character(found[head - 1]) else head - 1
    if start >= 0 and (term := term_at(found[:head], start)) is not None:
        yield term, found[head], ""
    if end < len(found) and (term := term_at(found, end)) is not None:
        yield "", found[end - 1], term


def _terms_of(found: Sequence[str]) -> set[str]:
    return {term for at in range(len(found)) if (term := term_at(found, at)) is not None}


def _raise_to(known: dict[str, float], term: str, weight: float) -> None:
    known[term] = max(known[term], weight)


def _idf(cards_with: int, cards: int) -> float:
    return math.log(1 + (cards - cards_with + 0.5) / (cards_with + 0.5))


def _deletions(word: str) -> list[str]:
    """The word and what is left of it without one of its letters after the first.

    Two words at one edit from each other have one of these in common (Garbe's symmetric deletes). Nothing for a short one.
    """
    if len(word) < TYPO_LENGTH or not word.isalpha() or is_character(word[0]):
        return []
    return [word, *(word[:at] + word[at + 1 :] for at in range(1, len(word)))]


def _one_edit(word: str, term: str) -> bool:
    """Whether one slip makes the word of the term."""
    if word[:-1] == term or max(len(word), len(term)) <= TYPO_LENGTH:
        return False
    while word and term and word[0] == term[0]:
        word, term = word[1:], term[1:]
    while word and term and word[-1] == term[-1]:
        word, term = word[:-1], term[:-1]
    return max(len(word), len(term)) <= 1 or (len(word) == 2 and word == term[::-1])
