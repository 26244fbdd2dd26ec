"""acu.doctor.sight: what is absent is None, what does not open is noted once."""

from __future__ import annotations

from pathlib import Path

from acu.doctor.sight import Sight


def test_a_file_is_read_without_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"  Dell Inc. \xff\n\n")
    sight = Sight(tmp_path)
    assert sight.text("a") == "Dell Inc. \ufffd"
    assert not sight.here
    assert Sight().here


def test_what_is_absent_is_no_news(tmp_path: Path) -> None:
    sight = Sight(tmp_path)
    (tmp_path / "file").write_text("1")
    assert (sight.text("a"), sight.number("a"), sight.chosen("a"), sight.names("a"), sight.fields("a")) == (
        None,
        None,
        None,
        (),
        {},
    )
    assert (sight.text("file/below"), sight.names("file")) == (None, ())
    assert sight.unread == []


def test_what_does_not_open_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    sight = Sight(tmp_path)
    assert sight.text("a") is None
    assert sight.number("a") is None
    assert sight.unread == ["/a: Is a directory"]


def test_a_number_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("many\n")
    (tmp_path / "b").write_text("-1\n")
    sight = Sight(tmp_path)
    assert (sight.number("a"), sight.number("b")) == (None, -1)
    assert len(sight.unread) == 1
    assert sight.unread[0].startswith("/a: ")


def test_the_chosen_word_is_the_one_in_brackets(tmp_path: Path) -> None:
    for name, text in (("a", "none [mq-deadline] bfq"), ("b", "none\n"), ("c", "one two"), ("d", "")):
        (tmp_path / name).write_text(text)
    sight = Sight(tmp_path)
    assert [sight.chosen(name) for name in "abcd"] == ["mq-deadline", "none", None, None]


def test_names_are_in_order_and_fields_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text("Uid:\t0\t0\nCapEff:\t00ff\nno colon\n")
    sight = Sight(tmp_path)
    assert sight.names("") == ("a", "b")
    assert sight.fields("a") == {"Uid": "0\t0", "CapEff": "00ff"}


def test_an_error_without_words_is_told_by_its_kind(tmp_path: Path) -> None:
    sight = Sight(tmp_path)
    sight.note("the clock", ValueError())
    sight.note("the clock", OSError(1, "Operation not permitted"))
    assert sight.unread == ["the clock: ValueError", "the clock: Operation not permitted"]
