"""A text, cut into overlapping chunks that an embedder takes. Pure.

OpenAI's static strategy: chunks of at most `max_chunk_size_tokens`, of which `chunk_overlap_tokens` are repeated from the chunk
before; never more than the embedder takes. How a text falls into tokens is asked of its tokenizer (`spans`).

Each chunk is found from its own beginning: tokenize a window that starts there, take as many tokens as fit, move the cut back
to the last page, paragraph, sentence or word border within the last quarter. So a chunk is tokenized as the embedder
will tokenize it, there is no seam between pieces of a long text, and never is a whole text tokenized at once. A cut in the
middle of a word may make more tokens of the chunk than its window had; such a chunk is counted again, and shortened.

Invariants: every character that is not blank is in a chunk; chunks begin and end with such a character, in order, and each goes
on behind the one before; none has more tokens than allowed. No chunk is longer than CHARACTERS_A_TOKEN characters for each
token that is allowed, because a tokenizer may make one token of a word of any length (WordPiece's unknown one). A quarter of
a chunk's characters at least are not repeated in the next, so the whole takes time in proportion to the text.

A long text takes seconds (0.4 MB/s with WordPiece and chunks of 256 tokens, nine tenths of it in the tokenizer) and belongs
in a thread. `chunks` is a generator whose steps are short: a few calls of the tokenizer, which runs without the
interpreter's lock, and 0.2 ms of Python. The consumer may embed, yield or give up between any two.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from agentflow.errors import InvalidRequest

Spans = Callable[[str], Sequence[tuple[int, int]]]
"""For each token of a text, in order, the characters [start, end) that it stands for; no special tokens added.

Tokens may share a character (one of several bytes), and characters may belong to none (white space).
"""

CHARACTERS_A_TOKEN: Final = 16

_FEWEST, _MOST, _DEFAULT, _DEFAULT_OVERLAP = 100, 4096, 800, 400
_FIRST_GUESS = 5.0  # characters a token, where none have been seen yet
_SLACK = 1.15
_LOOK_AHEAD = 64  # characters of white space that a border may have behind it
_SEEN = re.compile(r"\S")
_BLANK = re.compile(r"\s")
# From the border that is sought first: page, paragraph, sentence or line, word. A cut is before the white space, where a
# token ends in nearly every tokenizer.
_CLOSING = "[\"'”’»)\\]）】」』]*"  # noqa: RUF001 - these are meant
_BORDERS = (
    re.compile(r"(?=\f)"),
    re.compile(r"(?=\n[ \t\r]*\n)"),
    re.compile(rf"[.!?…]{_CLOSING}(?=\s)|[。！？；]{_CLOSING}|(?=\n)"),  # noqa: RUF001 - as above
    re.compile(r"(?=\s)"),
)


class ChunkingStrategy(Struct, frozen=True):
    """OpenAI's static strategy; the defaults are its `auto`. Raises InvalidRequest for what OpenAI refuses."""

    max_chunk_size_tokens: int = _DEFAULT
    chunk_overlap_tokens: int = _DEFAULT_OVERLAP

    def __post_init__(self) -> None:
        if not _FEWEST <= self.max_chunk_size_tokens <= _MOST:
            raise InvalidRequest(
                f"max_chunk_size_tokens must be from {_FEWEST} to {_MOST}, not {self.max_chunk_size_tokens}",
                param="chunking_strategy.static.max_chunk_size_tokens",
            )
        if not 0 <= self.chunk_overlap_tokens <= self.max_chunk_size_tokens // 2:
            raise InvalidRequest(
                f"chunk_overlap_tokens must be from 0 to half of max_chunk_size_tokens "
                f"({self.max_chunk_size_tokens // 2}), not {self.chunk_overlap_tokens}",
                param="chunking_strategy.static.chunk_overlap_tokens",
            )


class Chunk(Struct, frozen=True):
    """`text` is the characters [start, end) of the whole; `page` counts from 1, and is where the chunk begins."""

    text: str
    start: int
    end: int
    page: int


def chunk(text: str, spans: Spans, strategy: ChunkingStrategy, embedder_tokens: int) -> list[Chunk]:
    """All chunks of `text`; see `chunks`."""
    return list(chunks(text, spans, strategy, embedder_tokens))


def chunks(text: str, spans: Spans, strategy: ChunkingStrategy, embedder_tokens: int) -> Iterator[Chunk]:
    """The chunks of `text`, in order; none for a blank one.

    `embedder_tokens`: how many tokens of text the embedder takes, which is its context less the special tokens that it adds.
    """
    cutter = _Cutter(text, spans, strategy, embedder_tokens)
    start, end, page, counted = _seen_from(text, 0), 0, 1, 0
    while start < len(text):
        cut, following = cutter.cut(start, end)
        if cut <= end:  # the overlap alone fills a chunk: a very small one, in a text with very long tokens
            start = _seen_from(text, end)
            continue
        end = cut
        page += text.count("\f", counted, start)
        counted = start
        yield Chunk(text[start:end], start, end, page)
        start = following


class _Cutter:
    """Where a chunk ends and the next one begins. Remembers how many characters a token has had, to size its windows."""

    def __init__(self, text: str, spans: Spans, strategy: ChunkingStrategy, embedder_tokens: int) -> None:
        self._text = text
        self._spans = spans
        self._most = max(1, min(strategy.max_chunk_size_tokens, embedder_tokens))
        self._overlap = min(strategy.chunk_overlap_tokens, self._most // 2)
        self._longest = self._most * CHARACTERS_A_TOKEN
        self._characters_a_token = _FIRST_GUESS

    def cut(self, start: int, beyond: int) -> tuple[int, int]:
        """The end of the chunk that begins at `start`, and the beginning of the next (the text's length: there is none).

        The character at `start` is not blank. The end is behind `beyond` where that is possible.
        """
        window = self._window(start)
        end = self._end(start, beyond, window)
        rest = _seen_from(self._text, end)
        if rest >= len(self._text) or self._overlap == 0:
            return end, rest
        return end, min(self._begin(start, end, window), rest)

    def _window(self, start: int) -> _Window:
        """More tokens than a chunk may have, unless the text or the longest chunk ends before them."""
        text, size = self._text, min(int(self._most * self._characters_a_token * _SLACK) + 8, self._longest)
        while True:
            window = _Window(start, min(start + size, len(text)), self._spans(text[start : start + size]))
            if len(window.starts) > self._most or window.end == len(text) or size == self._longest:
                self._characters_a_token = (window.end - start) / max(1, len(window.starts))
                return window
            size = min(2 * size, self._longest)

    def _end(self, start: int, beyond: int, window: _Window) -> int:
        """The best end for a chunk, or the last that fits."""
        text, taken = self._text, len(window.starts)
        if taken <= self._most and window.end == len(text):
            return start + len(text[start:].rstrip())
        limit = window.end
        if taken > self._most:
            taken = window.whole(self._most)
            limit = window.ends[taken - 1] if taken else start + 1
        low = max(window.ends[taken - taken // 4 - 1] if taken else limit, (start + limit + 1) // 2, beyond + 1)
        end = _best_border(text, low, limit, window) or start + len(text[start:limit].rstrip())
        while (excess := self._excess(start, end)) > 0:
            border = window.border_before(end, excess)
            end = border if border > start else start + (end - start) // 2
        return end

    def _excess(self, start: int, end: int) -> int:
        """How many tokens the chunk has too many: none if it ends before white space, counted if it cuts a word."""
        text = self._text
        if end - start <= 1 or text[end : end + 1].isspace():
            return 0
        return len(self._spans(text[start:end])) - self._most

    def _begin(self, start: int, end: int, window: _Window) -> int:
        """Where the next chunk begins, to repeat the end of this one: at a word, if one begins near."""
        text = self._text
        tokens = bisect_left(window.starts, end)
        earliest = start + (end - start) // 4 + 1
        position = window.starts[tokens - self._overlap] if tokens >= self._overlap else earliest
        position = window.border_from(max(position, earliest))
        if position < end and not text[position - 1].isspace():
            space = _BLANK.search(text, position, position + (end - position) // 4)
            position = space.start() if space else position
        position = _seen_from(text, position)
        return position if position < end else len(text)


class _Window:
    """The tokens of a stretch of the text: where they start and end, in characters of the whole text."""

    def __init__(self, start: int, end: int, spans: Sequence[tuple[int, int]]) -> None:
        self.end = end
        self.starts = [start + first for first, _ in spans]
        self.ends = [start + last for _, last in spans]

    def whole(self, tokens: int) -> int:
        """The most tokens, up to so many, of which the last does not share a character with the next."""
        while 0 < tokens < len(self.starts) and self.ends[tokens - 1] > self.starts[tokens]:
            tokens -= 1
        return tokens

    def straddling(self, position: int) -> int:
        """Where the token ends that is on both sides of `position`, or `position`."""
        before = bisect_left(self.starts, position)
        return max(self.ends[before - 1], position) if before else position

    def border_before(self, position: int, tokens: int) -> int:
        """The border that lies so many tokens, and maybe some more, before `position`; -1 if none does."""
        kept = self.whole(max(0, bisect_left(self.ends, position) + 1 - tokens))
        return self.ends[kept - 1] if kept else -1

    def border_from(self, position: int) -> int:
        """The first character from `position` on where a token starts and none is cut, or the end."""
        token = bisect_left(self.starts, position)
        while token < len(self.starts) and token > 0 and self.ends[token - 1] > self.starts[token]:
            token += 1
        return self.starts[token] if token < len(self.starts) else self.end


def _best_border(text: str, low: int, limit: int, window: _Window) -> int | None:
    """The last border of the best kind in [low, limit], without the white space before it, if there is one.

    It cuts no token, but for the white space that some tokenizers join with what is before it.
    """
    for border in _BORDERS:
        for place in reversed([found.end() for found in border.finditer(text, low, limit + _LOOK_AHEAD)]):
            inside = window.straddling(place)
            if place <= limit and (inside == place or text[place:inside].isspace()):
                end = low + len(text[low:place].rstrip())
                if not text[end - 1].isspace():
                    return end
    return None


def _seen_from(text: str, position: int) -> int:
    """The first character from `position` on that is not blank, or the text's length."""
    found = _SEEN.search(text, position)
    return found.start() if found else len(text)
