"""acu.refusals: problems are collected, and told at once."""

from __future__ import annotations

import pytest

from acu.errors import StartRefused
from acu.refusals import Refusals, few


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


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (["x" * 1000] * 1000, f"{'x' * 120}, {'x' * 120}, {'x' * 120} and 997 more"),
    ],
)
def test_of_many_names_few_are_told(names: list[str], told: str) -> None:
    assert few(names) == told
