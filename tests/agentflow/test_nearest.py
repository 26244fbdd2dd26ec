"""Which name was meant, and how a message asks."""

from __future__ import annotations

import pytest

from agentflow.nearest import did_you_mean, nearest

KNOWN = ("calculator", "current_time", "memory_read", "memory_write", "Weather")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("calculater", "calculator"),
        ("memory_wite", "memory_write"),
        ("CALCULATOR", "calculator"),
        ("weathr", "Weather"),
        ("memory_", "memory_read"),
        ("cur", "current_time"),
        ("cu", None),
        ("time", None),
        ("mislay", None),
        ("", None),
        ("calculator" + "x" * 10, "calculator"),
        ("calculator" + "x" * 14, None),
    ],
)
def test_the_nearest_is_the_most_alike_else_the_shortest_that_a_name_begins(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN) == meant


def test_one_that_is_alike_comes_before_one_that_it_begins() -> None:
    assert nearest("tool", ["toolbox_of_all", "pool"]) == "pool"


def test_of_a_long_name_the_beginning_is_read() -> None:
    assert nearest("a" * 127 + "c" + "b" * 10**6, ["a" * 127 + "d"]) == "a" * 127 + "d"


def test_where_nothing_was_meant_nothing_is_asked() -> None:
    assert did_you_mean("add") == " Did you mean 'add'?"
    assert did_you_mean(None) == ""
