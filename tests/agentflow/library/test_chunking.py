"""Chunks: all of the text, cut where it may be cut, small enough for the embedder."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from agentflow.errors import InvalidRequest
from agentflow.library.chunking import CHARACTERS_A_TOKEN, Chunk, ChunkingStrategy, Spans, chunk, chunks

AUTO = ChunkingStrategy()
Offsets = Sequence[tuple[int, int]]


def words(text: str) -> Offsets:
    """One token a word or a mark."""
    return [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]


def characters(text: str) -> Offsets:
    """One token a byte of UTF-8, so that several share a character; white space counts too."""
    return [(place, place + 1) for place, character in enumerate(text) for _ in character.encode("utf-8", "replace")]


def joined(text: str) -> Offsets:
    """A word with the space before it, and marks with the line feeds behind them, as the newer BPE vocabularies cut."""
    return [found.span() for found in re.finditer(r" ?\w+| ?[^\w\s]+\n*|\s+", text)]


def pieces(text: str) -> Offsets:
    """Words in pieces of three characters, whose count depends on where the word begins."""
    return [(place, min(place + 3, end)) for start, end in words(text) for place in range(start, end, 3)]


def wordpiece() -> Spans:
    """The tokenizer of BERT and MiniLM, with a small vocabulary: long words are one unknown token."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[UNK]", *letters, *(f"##{letter}" for letter in letters), "the", "##ing", ".", "中", "文"]
    backend = Tokenizer(models.WordPiece({token: n for n, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def spans(text: str) -> Offsets:
        offsets: Offsets = backend.encode(text, add_special_tokens=False).offsets
        return offsets

    return spans


TOKENIZERS: list[Spans] = [words, characters, joined, pieces, wordpiece()]


def check(text: str, made: list[Chunk], spans: Spans, most: int) -> None:
    """The invariants, whatever the text."""
    covered = 0
    for number, piece in enumerate(made):
        assert piece.text == text[piece.start : piece.end] == piece.text.strip() != ""
        assert not text[covered : piece.start].strip()
        assert piece.end > covered
        assert number == 0 or piece.start > made[number - 1].start
        assert len(piece.text) <= most * CHARACTERS_A_TOKEN
        assert len(spans(piece.text)) <= most or len(piece.text) == 1
        assert piece.page == 1 + text.count("\f", 0, piece.start)
        covered = piece.end
    assert not text[covered:].strip()


texts = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            [
                "word ",
                "thing. ",
                "。",
                "中文",
                "\n\n",
                "\f",
                " \n \t\n",
                "x" * 70,
                " " * 90,
                "é\u0301",
                "😀",
                "\u200b\x07",
            ]
        ),
    ),
    max_size=60,
).map("".join)


@settings(deadline=None, max_examples=100)
@given(texts, st.sampled_from(TOKENIZERS), st.integers(1, 40), st.sampled_from([0, 10, 50]))
def test_all_text_is_in_chunks_that_fit(text: str, spans: Spans, embedder_tokens: int, overlap: int) -> None:
    strategy = ChunkingStrategy(max_chunk_size_tokens=100, chunk_overlap_tokens=overlap)
    check(text, chunk(text, spans, strategy, embedder_tokens), spans, embedder_tokens)


def test_the_default_is_800_tokens_of_which_400_are_repeated() -> None:
    text = " ".join(str(n) for n in range(2000))
    made = chunk(text, words, AUTO, 10_000)
    assert [len(piece.text.split()) for piece in made] == [800] * 4
    assert [piece.text.split()[0] for piece in made] == ["0", "400", "800", "1200"]
    check(text, made, words, 800)


def test_an_embedder_that_takes_less_caps_the_chunk_and_its_overlap() -> None:
    text = " ".join(str(n) for n in range(1000))
    made = chunk(text, words, AUTO, 254)
    assert [piece.text.split()[0] for piece in made[:3]] == ["0", "127", "254"]
    check(text, made, words, 254)


def test_without_an_overlap_nothing_is_repeated() -> None:
    text = " ".join(str(n) for n in range(1000))
    made = chunk(text, words, ChunkingStrategy(100, 0), 512)
    assert " ".join(piece.text for piece in made) == text


def test_a_short_text_is_one_chunk_without_the_blanks_around_it() -> None:
    assert chunk(" \n one two\n", words, AUTO, 512) == [Chunk("one two", 3, 10, 1)]
    assert chunk(" \n\f ", words, AUTO, 512) == []
    assert chunk("", words, AUTO, 512) == []


@pytest.mark.parametrize(
    ("border", "end", "weaker"),
    [
        ("\f", "w", "\n\n"),
        ("\n \n", "w", ". "),
        (". ", "w.", " "),
        ('!" ', 'w!"', ", "),
        ("\n", "w", " "),
        ("。", "w。", " "),
    ],
)
@pytest.mark.parametrize("spans", [words, joined])
def test_the_cut_is_at_the_best_border_of_the_last_quarter(border: str, end: str, weaker: str, spans: Spans) -> None:
    text = "w " * 79 + "w" + border + "w " * 10 + "w" + weaker + "w " * 40
    first = chunk(text, spans, ChunkingStrategy(100, 0), 512)[0]
    assert first.end == 158 + len(end)
    assert first.text.endswith(end)


def test_a_border_before_the_last_quarter_does_not_count() -> None:
    text = "w " * 70 + "end.\n\n" + "w " * 100
    assert chunk(text, words, ChunkingStrategy(100, 0), 512)[0].text.count("w") == 98


def test_the_overlap_begins_at_a_word() -> None:
    text = "abcdefgh " * 200
    for piece in chunk(text, pieces, ChunkingStrategy(100, 50), 512):
        assert piece.text.startswith("abcdefgh")


def test_chinese_is_cut_at_its_full_stops() -> None:
    text = "中文的句子没有空格也要分开。" * 200
    made = chunk(text, characters, ChunkingStrategy(400, 100), 512)
    check(text, made, characters, 400)
    assert all(piece.text.endswith("。") for piece in made)


def test_pages_are_counted() -> None:
    text = "\f".join("word " * 80 for _ in range(5))
    made = chunk(text, words, ChunkingStrategy(100, 0), 512)
    assert [piece.page for piece in made] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "word and then. " * 4_000,
        "x" * 50_000,
        ("a" + " " * 5_000) * 10,
        " \n" * 30_000,
        ".)))" * 5_000,
        ("a " * 400 + "q" * 20_000) * 3,
        "\u200b" * 20_000,
    ],
)
@pytest.mark.parametrize("spans", [characters, pieces, wordpiece()])
def test_the_tokenizer_sees_each_character_a_bounded_number_of_times(text: str, spans: Spans) -> None:
    seen = 0

    def counting(window: str) -> Offsets:
        nonlocal seen
        seen += len(window)
        return spans(window)

    made = chunk(text, counting, ChunkingStrategy(200, 100), 512)
    check(text, made, spans, 200)
    assert seen <= 10 * len(text)


def test_chunks_come_one_by_one() -> None:
    seen = 0

    def counting(window: str) -> Offsets:
        nonlocal seen
        seen += len(window)
        return words(window)

    assert next(chunks("word " * 100_000, counting, AUTO, 512)).start == 0
    assert seen < 20_000


@pytest.mark.parametrize(
    ("size", "overlap", "param"),
    [
        (99, 0, "max_chunk_size_tokens"),
        (4097, 0, "max_chunk_size_tokens"),
        (100, 51, "chunk_overlap_tokens"),
        (100, -1, "chunk_overlap_tokens"),
    ],
)
def test_a_strategy_outside_of_its_bounds_is_refused(size: int, overlap: int, param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        ChunkingStrategy(size, overlap)
    assert caught.value.param == f"chunking_strategy.static.{param}"
    assert ChunkingStrategy(4096, 2048).max_chunk_size_tokens == 4096
