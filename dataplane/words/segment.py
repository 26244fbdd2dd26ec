"""A text's words, as full text search takes them. Pure.

    text -> pieces of at most 8,192 characters -> NFKC, case folded -> runs of letters, digits and their marks
         -> words; a run's stretches of Han, kana, Hangul and Bopomofo -> overlapping pairs of characters

Chinese and Japanese have no spaces. Overlapping pairs (as in Lucene's CJKAnalyzer) need no dictionary, and find what a
dictionary would not know: 上海的天气 is 上海 海的 的天 天气. A stretch of one character is a word of its own.
A query for one character means every row that has it. Most of those rows have it only inside pairs: as the first half of
one, or last in its stretch. So `words_to_index` also gives the last character of each stretch, and whoever searches for one
such character (`is_single`) looks for all words that begin with it.

Case is folded, not only lowered: STRASSE finds Straße. Marks belong to their letter, without which Hindi would fall apart.
Scripts that have neither spaces nor pairs here (Thai, Lao, Khmer, Burmese) give one word for each run.
No word has an ASCII character that is not a letter or a digit, nor white space, nor more than 64 characters.

Words depend on the tables of Unicode that Python has: an index built with others must be built anew
(`unicodedata.unidata_version`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

MAX_WORD = 64  # characters; of a longer word the beginning counts, in texts as in queries
PIECE = 8192  # characters: what is normalised in one go, for the interpreter's lock is held meanwhile
FORMAT = 1  # rises when the same text gives other words

# Jamo, radicals, iteration mark and zero, kana, Bopomofo, ideographs, Hangul, and the planes of ideographs.
CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005\u3007\u3031-\u3035\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f"
    "\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
STOPS = " \n\t\u3002\u3001\uff0c\uff01\uff1f\uff1b\uff1a"  # and those of Chinese and Japanese


class _Patterns(NamedTuple):
    ascii: re.Pattern[str]
    run: re.Pattern[str]
    stretch: re.Pattern[str]


def words(text: str) -> list[str]:
    """The words of `text` in their order, with repeats."""
    return [word for word, _ in _words(text)]


def words_to_index(text: str) -> list[str]:
    """`words`, and after each stretch of two or more CJK characters its last one."""
    if len(text) <= PIECE and text.isascii():  # most texts, at a fifth of the cost
        return [run[:MAX_WORD] for run in _patterns().ascii.findall(text.lower())]
    found: list[str] = []
    for word, ends_stretch in _words(text):
        found.append(word)
        if ends_stretch:
            found.append(word[1:])
    return found


def is_single(word: str) -> bool:
    """Whether it is one CJK character, which other words may begin with."""
    return len(word) == 1 and _patterns().stretch.fullmatch(word) is not None


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it is the last pair of a stretch."""
    patterns = _patterns()
    for piece in _pieces(text):
        if piece.isascii():
            for run in patterns.ascii.finditer(piece.lower()):
                yield run[0][:MAX_WORD], False
            continue
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", piece).casefold())
        for run in patterns.run.finditer(folded):
            yield from _words_of_run(run[0], patterns.stretch)


def _words_of_run(run: str, stretch: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    at = 0
    for found in stretch.finditer(run):
        if found.start() > at:
            yield run[at : found.start()][:MAX_WORD], False
        at = found.end()
        if at - found.start() == 1:
            yield found[0], False
        for first in range(found.start(), at - 1):
            yield run[first : first + 2], first == at - 2
    if at < len(run):
        yield run[at:][:MAX_WORD], False


def _pieces(text: str) -> Iterator[str]:
    """`text`, cut after a space or a stop. A run of 8,192 characters without any is cut where it stands."""
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        cut = max(text.rfind(stop, start, end) for stop in STOPS) + 1 or end
        yield text[start:cut]
        start = cut
    yield text[start:]


@cache
def _patterns() -> _Patterns:
    """Compiled at the first use. re has no class of marks, so it is written out: tens of milliseconds, once."""
    marks = "".join(mark for mark in map(chr, range(0x300, 0x20000)) if unicodedata.category(mark) in ("Mn", "Mc"))
    letter = r"[^\W_]"
    return _Patterns(
        ascii=re.compile("[a-z0-9]+"),
        run=re.compile(f"{letter}(?:{letter}|[{_ranges(marks)}])*"),
        stretch=re.compile(f"[{CJK}]+"),
    )


def _ranges(characters: str) -> str:
    """Rising characters as the inside of a class, neighbours as ranges."""
    parts: list[list[str]] = []
    for character in characters:
        if parts and ord(character) == ord(parts[-1][1]) + 1:
            parts[-1][1] = character
        else:
            parts.append([character, character])
    return "".join(f"{first}-{last}" for first, last in parts)
