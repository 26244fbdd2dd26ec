"""acu.refusals: problems are collected, and told at once."""

from __future__ import annotations

import pytest

from acu.errors import StartRefused
from acu.refusals import Refusals


def test_everything_that_was_noted_is_told_in_order_and_once() -> None:
    refusals = Refusals()
    for problems in (("a", "b"), ("c",), ("b",)):
        with refusals.noted():
            raise StartRefused(*problems)
    with pytest.raises(StartRefused) as refused:
        refusals.tell()
    assert refused.value.problems == ("a", "b", "c")


def test_without_a_problem_nothing_is_told() -> None:
    refusals = Refusals()
    with refusals.noted():
        pass
    refusals.tell()


def test_another_error_is_not_noted() -> None:
    refusals = Refusals()
    with pytest.raises(ValueError, match="not ours"), refusals.noted():
        raise ValueError("not ours")
    refusals.tell()
