"""JSON as lines of text."""

from __future__ import annotations

import pytest

from agentflow.library.errors import FileTooLarge, FileUnreadable
from agentflow.library.formats.records import MAX_DEPTH, read_json, read_jsonl
from agentflow.library.transcript import Transcript


def of_json(text: str) -> str:
    out = Transcript(1_000_000)
    read_json(text, out)
    return out.text()


def of_jsonl(text: str) -> str:
    out = Transcript(1_000_000)
    read_jsonl(text, out)
    return out.text()


def test_each_value_stands_behind_its_path() -> None:
    text = '{"user": {"name": "Ada", "tags": ["x", "y"], "born": null, "alive": false}, "": "bare"}'
    assert of_json(text) == "user.name: Ada\nuser.tags: x\nuser.tags: y\nuser.alive: false\nbare"


def test_objects_of_a_list_are_paragraphs() -> None:
    assert of_json('[{"a": 1, "b": {"c": 2}}, {"a": 3}]') == "a: 1\nb.c: 2\n\na: 3"


def test_numbers_stay_as_they_are_written() -> None:
    assert of_json("[1.50, 1e5, NaN, " + "9" * 5000 + "]") == "1.50\n1e5\nNaN\n" + "9" * 5000


def test_a_single_value_is_a_document() -> None:
    assert of_json('"text"') == "text"
    assert of_json("[]") == ""


def test_a_nesting_that_is_allowed_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert of_json("[" * depth + '"x"' + "]" * depth) == "x"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 1_000_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(FileTooLarge, match="nested more than 200 levels"):
        of_json("[" * depth + "]" * depth)
    with pytest.raises(FileTooLarge, match="nested more than 200 levels"):
        of_json('{"k":' * depth + "1" + "}" * depth)


def test_invalid_json_is_refused_with_its_place() -> None:
    with pytest.raises(FileUnreadable, match=r"no valid JSON \(.*line 2, column 6\): correct it, or name it .txt"):
        of_json('{"a": 1,\n "b" 2}')


def test_each_line_is_a_record() -> None:
    assert of_jsonl('{"a": "x\u2028y"}\r\n\n  \n{"a": 2}') == "a: x\u2028y\n\na: 2"


def test_an_invalid_line_is_named() -> None:
    with pytest.raises(FileUnreadable, match=r"no valid JSON in line 3 \(.*column 1"):
        of_jsonl('{"a": 1}\n\n}\n')
