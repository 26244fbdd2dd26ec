"""The text that comes out is bounded and clean."""

from __future__ import annotations

import pytest

from agentflow.library.errors import FileTooLarge
from agentflow.library.transcript import Transcript


def test_the_bound_counts_bytes_and_holds_at_each_piece() -> None:
    out = Transcript(6)
    out.add("中")
    out.add("abc")
    with pytest.raises(FileTooLarge, match="longer than 6 bytes"):
        out.add("d")


def test_line_ends_become_line_feeds_and_control_characters_vanish() -> None:
    out = Transcript(100)
    out.add("a\r\nb\rc\td\x0ce\x02f\ufeffg")
    assert out.text() == "a\nb\nc\td\x0cefg"


def test_halves_of_surrogate_pairs_are_joined_or_replaced() -> None:
    out = Transcript(100)
    out.add("\ud83d")
    out.add("\ude00 \ud83d!")
    assert out.text() == "😀 �!"
    assert out.text() == ""
