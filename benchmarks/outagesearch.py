"""Searches of every kind, whether an answer is right while rows change beside it, and whether two answers are the same.

An answer given under load is checked with what stayed as it was meanwhile (outagemodel.py): a hit of a row that was still is
that row with its own score; an exact answer lacks none that is better than its last; a word that only one version of a row has
finds that row, and nothing once it has ended. The graph may miss a few: those are counted (`Tally`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.outagemodel import CLOSE, MARKS, NOTES, TENANTS, Book, Mask, Model, Place
from benchmarks.soaking import Maker
from dataplane.filters import parse_filter
from dataplane.rows import SearchQuery, SearchResult

K = 10
BUCKETS = 20  # as the maker gives them: a row's number modulo this
LEAST_RECALL = 0.97


@dataclass
class Tally:
    """Searches that were checked, and how many of the best rows the approximate ones were to find and missed."""

    checked: int = 0
    incomplete: int = 0
    short: int = 0  # of hits, for their rows were deleted or replaced while the search went on
    wanted: int = 0
    missed: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Of the approximate searches."""
        return 1 - self.missed / self.wanted if self.wanted else 1.0


class Question(NamedTuple):
    """A search; `bucket`: that of its filter. `only`: the number of the one row that it must find, -1: none at all."""

    kind: str
    place: Place
    query: SearchQuery
    bucket: int | None = None
    only: int | None = None


def filtered(bucket: int) -> dict[str, object]:
    """The filter for rows of a bucket."""
    return {"type": "eq", "key": "bucket", "value": bucket}


class Asker:
    """Makes questions for one place."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._maker = Maker(seed)
        self._random = random.Random(seed)

    def of_kind(self, kind: str) -> Question:
        """A question: vector, exact, filtered, text, hybrid."""
        vector, bucket = self._maker.vectors(1)[0], self._random.randrange(BUCKETS)
        place = self._place
        if kind == "filtered":
            query = SearchQuery(vector=vector, k=K, filter=parse_filter(filtered(bucket)))
            return Question(kind, place, query, bucket=bucket)
        if kind == "text":
            return Question(kind, place, SearchQuery(text=self._maker.text(), k=K))
        if kind == "hybrid":
            return Question(kind, place, SearchQuery(vector=vector, text=self._maker.text(), k=K, exact=True))
        return Question(kind, place, SearchQuery(vector=vector, k=K, exact=kind == "exact"))

    def of_word(self, book: Book) -> Question:
        """A question for the word that only one version of a row has, or had."""
        number = self._random.randrange(len(book.rows))
        row = book.rows[number]
        if self._random.random() < 0.5 and book.ended:
            return Question("word", self._place, SearchQuery(text=own_word(self._random.choice(book.ended))), only=-1)
        if row is None or row.text is None:
            return self.of_kind("text")
        return Question("word", self._place, SearchQuery(text=own_word(row.text)), only=number)

    def any(self, book: Book) -> Question:
        """One of any kind that the place can answer."""
        if self._place.collection == MARKS:
            return self.of_kind(self._random.choice(("vector", "exact", "filtered")))
        kind = self._random.choice(("vector", "exact", "filtered", "text", "hybrid", "word"))
        return self.of_word(book) if kind == "word" else self.of_kind(kind)


def own_word(text: str) -> str:
    """The word of a text that no other row has: its last."""
    return text.rpartition(" ")[2]


def scores_of(book: Book, place: Place, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every row's score, shape [n]."""
    if place.collection == MARKS:
        return np.asarray(-((book.vectors - vector) ** 2).sum(axis=1), np.float32)
    return np.asarray(book.vectors @ vector, np.float32)


def check(book: Book, since: int, question: Question, result: SearchResult, tally: Tally) -> None:
    """Take an answer into the tally. `since`: the book's time when it was asked. Before anything else is awaited."""
    tally.checked += 1
    tally.incomplete += not result.complete
    where = f"{question.kind} search of {'/'.join(question.place)}"
    numbers = [int(hit.id[1:]) for hit in result.hits]
    if len(set(numbers)) < len(numbers):
        tally.problems.append(f"{where}: a row came twice: {numbers}")
    still = book.still(since)
    good = matching(book, question) & still
    for hit, number in zip(result.hits, numbers, strict=True):
        row = book.rows[number]
        if still[number] and (row is None or not good[number]):
            tally.problems.append(f"{where}: {hit.id} is not there, or does not match")
        elif still[number] and row is not None and (hit.text, hit.attributes) != (row.text, row.attributes):
            tally.problems.append(f"{where}: {hit.id} is {hit.text!r}, not {row.text!r}")
    if question.only is not None:
        _check_word(question, numbers, still, where, tally)
    elif question.query.vector is not None and question.query.text is None:
        _check_scores(book, question, result, still, tally)


def matching(book: Book, question: Question) -> Mask:
    """Rows that are there and that the question's filter lets through, shape [n]."""
    if question.bucket is None:
        return book.there.copy()
    return np.asarray(book.there & (np.arange(len(book.there)) % BUCKETS == question.bucket))


def _check_word(question: Question, numbers: list[int], still: Mask, where: str, tally: Tally) -> None:
    assert question.only is not None
    wanted = [] if question.only < 0 else [question.only]
    if numbers != wanted and (not wanted or still[question.only]):
        tally.problems.append(f"{where}: {question.query.text} finds {numbers}, not {wanted}")


def _check_scores(book: Book, question: Question, result: SearchResult, still: Mask, tally: Tally) -> None:
    """Of a search by vector alone: the scores, and that no better row is missing."""
    where = f"{question.kind} search of {'/'.join(question.place)}"
    assert question.query.vector is not None
    scores, k = scores_of(book, question.place, question.query.vector), question.query.k
    good = matching(book, question) & still
    found = {int(hit.id[1:]): hit.score for hit in result.hits}
    for number, score in found.items():
        if good[number] and abs(score - scores[number]) > CLOSE:
            tally.problems.append(f"{where}: r{number} has a score of {score}, not {scores[number]}")
    if not result.complete:
        return
    # A hit whose row ends before its text is fetched is left out, and no other comes in its place.
    short = min(k, int(good.sum())) - len(found)
    tally.short += short > 0
    last = min(found.values(), default=-np.inf) if len(found) == k or 0 < short <= int((~still).sum()) else -np.inf
    better = [number for number in np.flatnonzero(good & (scores > last + CLOSE)).tolist() if number not in found]
    if not question.query.exact:
        tally.wanted += k
        tally.missed += min(len(better), k)
    elif better:
        tally.problems.append(f"{where}: {len(found)} hits, and rows that are better are missing: {better[:K]}")


def questions(model: Model, seed: int, each: int) -> Iterator[Question]:
    """The set that is asked before the wipe and after the restore: `each` of every kind of every place."""
    for tenant in TENANTS:
        for name, kinds in (
            (NOTES, ("vector", "exact", "filtered", "text", "hybrid")),
            (MARKS, ("vector", "exact", "filtered")),
        ):
            place = Place(tenant, name)
            asker = Asker(place, seed + sum(map(ord, tenant + name)))
            for _ in range(each):
                yield from (asker.of_kind(kind) for kind in kinds)
            if name == NOTES:
                yield from (asker.of_word(model.books[place]) for _ in range(each))


def difference(question: Question, before: SearchResult, after: SearchResult) -> str | None:
    """What differs between two answers to a question; None: nothing. Scores are the same within CLOSE."""
    ids = [[hit.id for hit in one.hits] for one in (before, after)]
    where = f"{question.kind} search of {'/'.join(question.place)}"
    if ids[0] != ids[1]:
        return f"{where} found {ids[0]} before, and {ids[1]} after"
    scores = [[hit.score for hit in one.hits] for one in (before, after)]
    if not np.allclose(*scores, atol=CLOSE, rtol=0):
        return f"{where} has scores {scores[0]} before, and {scores[1]} after"
    if [(hit.text, hit.attributes) for hit in before.hits] != [(hit.text, hit.attributes) for hit in after.hits]:
        return f"{where} has other texts or attributes after than before"
    return None if before.complete and after.complete else f"{where} was not complete"


def wrong_answers(model: Model, asked: Sequence[Question], found: Sequence[SearchResult]) -> list[str]:
    """What is wrong with answers that were given while nothing changed."""
    tally = Tally()
    for question, result in zip(asked, found, strict=True):
        book = model.books[question.place]
        check(book, book.time, question, result, tally)
    problems = list(tally.problems)
    if tally.incomplete:
        problems.append(f"{tally.incomplete} answers were not complete")
    if tally.recall < LEAST_RECALL:
        problems.append(f"the recall of approximate searches is {tally.recall:.3f}")
    return problems


def differences(
    asked: Sequence[Question], before: Sequence[SearchResult], after: Sequence[SearchResult]
) -> tuple[list[str], int]:
    """What differs; and how many approximate searches found other rows, for the graph was built anew and may miss others."""
    wrong: list[str] = []
    missed = 0
    for question, first, second in zip(asked, before, after, strict=True):
        what = difference(question, first, second)
        if what is None:
            continue
        if question.kind == "vector" and {hit.id for hit in first.hits} != {hit.id for hit in second.hits}:
            missed += 1
        else:
            wrong.append(what)
    return wrong, missed
