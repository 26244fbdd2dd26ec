"""What functions return and raise, as results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.tools.blob import Blob
from agentflow.tools.errors import ToolDied, ToolFailed
from agentflow.tools.result import TEXT_MAX, failure, finished
from agentflow.tools.tool import Content


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "null"),
        (1.5, "1.5"),
        ((1, "é"), '[1,"é"]'),
        ({"x": float("nan"), "y": [float("-inf")], "z": b"\xff"}, '{"x":null,"y":[null],"z":"/w=="}'),
    ],
)
def test_short_results_are_text(tmp_path: Path, value: Any, text: str) -> None:
    assert finished(value, "t", tmp_path / "result") == text
    assert not (tmp_path / "result").exists()


def test_long_text_bytes_and_blobs_are_files(tmp_path: Path) -> None:
    path, source = tmp_path / "result", tmp_path / "made.csv"
    source.write_bytes(b"a,b\n")
    for value, data, media_type in (
        ("é" * TEXT_MAX, "é".encode() * TEXT_MAX, "text/plain"),
        ([1] * TEXT_MAX, b"[" + b"1," * (TEXT_MAX - 1) + b"1]", "application/json"),
        (bytearray(b"\0\1"), b"\0\1", "application/octet-stream"),
        (Blob(source), b"a,b\n", "text/csv"),
    ):
        # What an earlier try left at the place is replaced.
        assert finished(value, "t", path) == Content(path, len(data), media_type)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o600


def test_text_of_exactly_the_bound_is_not_a_file(tmp_path: Path) -> None:
    assert finished("x" * TEXT_MAX, "t", tmp_path / "result") == "x" * TEXT_MAX


def test_a_blob_that_is_at_its_place_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text("written there")
    assert finished(Blob(path, "text/html"), "t", path) == Content(path, 13, "text/html")


@pytest.mark.parametrize("value", [object(), {1j: 2}, [object], "\ud800", {"a": "\ud800"}])
def test_what_has_no_json_is_told_in_a_sentence(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ToolFailed, match="The tool t returned .*: correct the tool"):
        finished(value, "t", tmp_path / "result")


def test_errors_become_sentences() -> None:
    assert str(failure(ValueError("no good"), "t")) == "The tool t failed: ValueError: no good"
    assert str(failure(KeyError(), "t")) == "The tool t failed: KeyError"
    assert len(str(failure(ValueError("x" * 10_000), "t"))) < 700
    own = ToolDied("gone")
    assert failure(own, "t") is own


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("nothing to say")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("boom \ud800"), "ValueError with text that is no Unicode (surrogates not allowed)"),
        (ToolFailed("no \ud800", again=True), "ToolFailed with text that is no Unicode (surrogates not allowed)"),
        (Wordless(), "Wordless with words that cannot be told (KeyError)"),
    ],
)
def test_an_error_whose_text_cannot_be_told_is_told_without_it(error: Exception, sentence: str) -> None:
    told = failure(error, "t")
    assert str(told) == f"The tool t raised {sentence}: correct the tool."
    assert told.again == (getattr(error, "again", False))
