"""The words of texts in many scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.words.segment import MAX_WORD, PIECE, is_single, words, words_to_index


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n.,!?", []),
        ("Hello, World-wide_web 3.14", ["hello", "world", "wide", "web", "3", "14"]),
        ("don't", ["don", "t"]),
        ("上海的天气", ["上海", "海的", "的天", "天气"]),
        ("猫", ["猫"]),
        ("北京2024年", ["北京", "2024", "年"]),
        ("用iPhone拍照", ["用", "iphone", "拍照"]),
        ("日本語のテキスト。", ["日本", "本語", "語の", "のテ", "テキ", "キス", "スト"]),
        ("한국어 문장", ["한국", "국어", "문장"]),
        ("ｶﾞﾗｽ", ["ガラ", "ラス"]),
        ("\uff21\uff22\uff23\uff11\uff12\uff13 ﬁne", ["abc123", "fine"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ΟΔΟΣ οδος", ["οδοσ", "οδοσ"]),
        ("café cafe\u0301", ["café", "café"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("العَرَبِيَّة", ["العَرَبِيَّة"]),
        ("🙂 ok\x00\ud800ok", ["ok", "ok"]),
        ("\u0301x", ["x"]),
        ("𠀀𠀁", ["𠀀𠀁"]),
    ],
)
def test_the_words_of_a_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_question_shares_pairs_with_its_answer() -> None:
    assert set(words("上海明天天气怎么样")) & set(words("上海的天气很好")) == {"上海", "天气"}


def test_the_index_has_the_last_character_of_each_stretch_too() -> None:
    assert words_to_index("我有猫。狗 cat") == ["我有", "有猫", "猫", "狗", "cat"]


def test_every_character_of_a_stretch_begins_a_word_of_the_index() -> None:
    for character in "上海明天天气怎么样":
        assert any(word.startswith(character) for word in words_to_index("上海明天天气怎么样"))


@pytest.mark.parametrize(
    ("word", "single"), [("猫", True), ("の", True), ("한", True), ("a", False), ("猫狗", False), ("", False)]
)
def test_one_cjk_character_is_single(word: str, single: bool) -> None:
    assert is_single(word) is single


def test_of_a_long_word_the_beginning_counts() -> None:
    assert words("x" * 1000) == ["x" * MAX_WORD]
    assert words("é" * 1000 + " y") == ["é" * MAX_WORD, "y"]


@pytest.mark.parametrize("unit", ["word ", "straße ", "上海天气\uff0c", "猫\n"])
def test_a_long_text_is_cut_only_between_words(unit: str) -> None:
    times = 3 * PIECE // len(unit)
    assert words(unit * times) == words(unit) * times


def test_a_run_that_never_ends_is_still_read_to_its_end() -> None:
    assert words("猫" * (2 * PIECE)) == ["猫猫"] * (2 * (PIECE - 1))


@given(st.text(max_size=300))
def test_every_word_is_one_that_the_ascii_tokenizer_keeps_whole(text: str) -> None:
    for word in words_to_index(text):
        assert 0 < len(word) <= MAX_WORD
        assert all(character.isalnum() for character in word if character.isascii())
        assert len(word.split()) == 1
        assert "\ud800" not in word
        word.encode()


@given(st.text(max_size=200))
def test_words_are_the_index_words_without_the_last_characters(text: str) -> None:
    left = iter(words_to_index(text))
    assert all(word in left for word in words(text))
