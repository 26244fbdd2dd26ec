"""acu.config.document: a strict subset of YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acu.config.document import MAX_BYTES, overlay, parse_value, plain_scalar, read_document
from acu.config.fields import Problem
from acu.errors import ConfigError


def read(tmp_path: Path, content: bytes) -> tuple[dict[str, Any], dict[str, int], list[Problem]]:
    """What a file holds."""
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    return read_document(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0660", "0660"),
        ("660", 660),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("null", None),
        ("~", None),
        ("", None),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("-", "-"),
        (".", "."),
    ],
)
def test_a_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_a_quoted_scalar_is_text() -> None:
    found: list[Problem] = []
    assert parse_value("X", "'660'", found) == "660"
    assert parse_value("X", "[a, 1, {b: true}]", found) == ["a", 1, {"b": True}]
    assert found == []


def test_lines_are_remembered(tmp_path: Path) -> None:
    values, lines, _ = read(tmp_path, b"a:\n  b: 1\n  c: {d: 2}\n")
    assert values == {"a": {"b": 1, "c": {"d": 2}}}
    assert lines == {"a": 1, "a.b": 2, "a.c": 3, "a.c.d": 3}


def test_a_key_that_is_given_twice_is_a_problem_with_both_lines(tmp_path: Path) -> None:
    _, _, found = read(tmp_path, b"a: 1\nb: 2\na: 3\n")
    assert found == [Problem("a", "given twice, in line 1 and in line 3")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "not YAML"),
        (b"a: &x 1\nb: *x\n", "YAML anchor is not accepted"),
        (b"a: !!python/object:os.system x", "YAML tag is not accepted"),
        (b"<<: {a: 1}", "a key must be a word"),
        (b"[1]: 2", "a key must be a word"),
        (b"- 1\n", "expected sections"),
        (b"just text", "expected sections"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: \x00", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "not YAML"),
        (b"{" * 40 + b"a: 1" + b"}" * 40, "nested deeper than 32 levels"),
        (b"a: " + b"[" * 200 + b"]" * 200, "nested deeper than 32 levels"),
        (b"a: " + b"[" * 200_000, "nested deeper than 32 levels"),
        (b"a" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_what_could_surprise_or_explode_is_refused_with_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read(tmp_path, content)
    assert str(refused.value).startswith(str(tmp_path / "f.yaml"))


def test_a_fifo_a_folder_and_a_device_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="cannot be read: it is not a regular file") as refused:
            read_document(path)
        assert str(refused.value).startswith(str(path))


def test_an_empty_file_is_an_empty_document(tmp_path: Path) -> None:
    assert read(tmp_path, b"# nothing\n") == ({}, {}, [])


def test_overlay_makes_sections_and_refuses_to_enter_a_value() -> None:
    document: dict[str, Any] = {"a": 1}
    found: list[Problem] = []
    overlay(document, "b.c.d", 2, "X", found)
    assert document == {"a": 1, "b": {"c": {"d": 2}}}
    overlay(document, "a.b", 2, "X", found)
    assert found == [Problem("X", "a is not a section")]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        values, _, _ = read_document(path)
    except ConfigError as error:
        assert error.problems
    else:
        assert isinstance(values, dict)
