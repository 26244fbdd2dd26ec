"""Docstrings in Google's style: what of them a model reads."""

from __future__ import annotations

import inspect

from agentflow.tools.docstring import read_docstring


def read(text: str) -> tuple[str, dict[str, str]]:
    summary, parameters = read_docstring(inspect.cleandoc(text))
    return summary, parameters


def test_the_first_paragraph_and_the_parameters_are_read() -> None:
    text = """Tell the weather
    of a day.

    More for people.

    Args:
        city (str, optional): Where, or
            how: far.
        day: When.

        *rest: Others.

    Returns:
        nothing: at all.
    """
    assert read(text) == (
        "Tell the weather of a day.",
        {"city": "Where, or how: far.", "day": "When.", "rest": "Others."},
    )


def test_parameters_are_found_right_behind_the_first_line() -> None:
    assert read("Do it.\nArguments:\n  a: One.\n") == ("Do it.", {"a": "One."})


def test_a_docstring_without_a_summary_or_without_text_says_nothing() -> None:
    assert read("\n    Args:\n        a: One.") == ("", {"a": "One."})
    assert read("") == ("", {})


def test_what_is_no_entry_is_left_out() -> None:
    assert read("X.\n\nArgs:\n    (see the manual)\n    a: One.\nNotes: none\n    b: Two.") == ("X.", {"a": "One."})
