"""Arithmetic: right answers, and refusals that come at once."""

from __future__ import annotations

import pytest

from agentflow.tools.calculator import MAX_LENGTH, MAX_NESTING, Unanswerable, answer


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("7 // 2 - 7 % 4", "0"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("+5 - -5", "10"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 4", "0.25"),
        ("1e3 + .5", "1000.5"),
        ("sqrt(16) + abs(-2)", "6"),
        ("max(1, 5, 3) - min(4, 2)", "3"),
        ("round(2.71828, 2)", "2.72"),
        ("round(2.7)", "3"),
        ("sin(0) + cos(0) + tan(0)", "1"),
        ("log(e) + exp(0)", "2"),
        ("log(8, 2)", "3"),
        ("pi", "3.14159265358979"),
        ("2 ** -2", "0.25"),
        (" 42\n", "42"),
    ],
)
def test_an_expression_has_its_value(expression: str, value: str) -> None:
    assert answer(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("2**4097", "too large"),
        ("10**400 * 1.0", "too large"),
        ("1e999", "too large"),
        ("exp(1000)", "too large"),
        ("round(1, -1000000000)", "100 digits"),
        ("round(1, 0.5)", "100 digits"),
        ("1 / 0", "divides by zero"),
        ("5 % 0", "divides by zero"),
        ("sqrt(-1)", "no value"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(1, 2, 3)", "too many or too few"),
        ("", "empty"),
        ("2 +", "incomplete"),
        ("2 3", "incomplete"),
        ("(2", "incomplete"),
        ("2^3", "Write \\*\\*"),
        ("1,000 + 1", "write 1000"),
        ("sqrt", "needs its brackets"),
        ("pi(2)", "needs its brackets"),
        ("max()", "can be used"),
        ("x + 1", "'x' is unknown"),
        ("__import__('os')", "'__import__' is unknown"),
        ("'a' * 9", "cannot be read"),
        ("[1][0]", "cannot be read"),
        ("(1).real", "cannot be read"),
        ("2j", "cannot be read"),
        ("1_000", "cannot be read"),
        ("0x10", "cannot be read"),
        ("1 if 1 else 2", "'if' is unknown"),
        ("\0", "cannot be read"),
        ("٣ + 1", "cannot be read"),
    ],
)
def test_what_has_no_answer_is_refused_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(Unanswerable, match=reason):
        answer(expression)


def test_a_flood_of_brackets_is_refused_before_it_is_parsed() -> None:
    deep = "(" * MAX_NESTING + "1" + ")" * MAX_NESTING
    assert answer(deep) == "1"
    with pytest.raises(Unanswerable, match=f"more than {MAX_NESTING} deep"):
        answer(f"({deep})")
    with pytest.raises(Unanswerable, match=f"longer than {MAX_LENGTH}"):
        answer("(" * 100_000)


@pytest.mark.parametrize(
    "expression", ["-" * (MAX_LENGTH - 1) + "1", "+".join("1" * (MAX_LENGTH // 2)), "**".join("1" * 160)]
)
def test_long_chains_do_not_meet_the_limit_of_recursion(expression: str) -> None:
    assert answer(expression) in {"1", "-1", str(MAX_LENGTH // 2)}
