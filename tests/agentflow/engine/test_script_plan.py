from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.engine.protocol import Delta
from agentflow.engine.script import Rule, Script
from agentflow.engine.script_plan import Cutter, last_user_text, plan
from agentflow.errors import InvalidGrammar
from agentflow.messages import Sampling, Structured
from agentflow.tokenizer import ByteTokenizer

EOS = ByteTokenizer.EOS
PLAIN = Sampling()


def deltas(answer: str, sampling: Sampling = PLAIN, *, limit: int = 1000, step: int = 1) -> list[Delta]:
    cutter = Cutter(plan(Script(answer=answer), None, b"hi", sampling, limit), sampling)
    found = [cutter.cut(step, 0)]
    while found[-1].finish_reason is None:
        found.append(cutter.cut(cutter.emitted + step, 0))
    return found


def outcome(answer: str, sampling: Sampling = PLAIN, *, limit: int = 1000) -> tuple[str, int, Any, Any]:
    """Text, number of tokens, finish and stop reason: the same however the output is cut."""
    outcomes = set()
    for step in (1, 2, 3, 7, 5000):
        found = deltas(answer, sampling, limit=limit, step=step)
        text = "".join(delta.text for delta in found)
        tokens = sum(len(delta.token_ids) for delta in found)
        outcomes.add((text, tokens, found[-1].finish_reason, found[-1].stop_reason))
        assert all(delta.finish_reason is None for delta in found[:-1])
    [one] = outcomes
    return one


def test_an_answer_ends_with_the_end_of_text() -> None:
    assert outcome("abc") == ("abc", 4, "stop", None)
    assert deltas("abc")[-1].token_ids == [EOS]


def test_no_answer_is_the_end_of_text_alone() -> None:
    assert outcome("") == ("", 1, "stop", None)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(2, ("ab", 2, "length", None)), (3, ("abc", 3, "length", None)), (4, ("abc", 4, "stop", None))],
)
def test_the_length_is_bounded_in_tokens(limit: int, expected: tuple[str, int, str, None]) -> None:
    assert outcome("abc", limit=limit) == expected


def test_the_answer_is_repeated_when_its_end_is_ignored() -> None:
    assert outcome("abc", Sampling(ignore_eos=True), limit=10) == ("abc abc ab", 10, "length", None)
    assert outcome("", Sampling(ignore_eos=True), limit=3) == ("---", 3, "length", None)


def test_the_answer_is_repeated_to_its_least_length() -> None:
    assert outcome("abc", Sampling(min_tokens=6)) == ("abc ab", 7, "stop", None)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(stop=("lo w",)), ("hel", 7, "stop", "lo w")),
        (Sampling(stop=("lo w",), include_stop_str_in_output=True), ("hello w", 7, "stop", "lo w")),
        (Sampling(stop=("world", "o")), ("hell", 5, "stop", "o")),
        (Sampling(stop=("llo", "lo")), ("he", 5, "stop", "llo")),
        (Sampling(stop=("x",)), ("hello wörld", 13, "stop", None)),
        (Sampling(stop=("ö",)), ("hello w", 9, "stop", "ö")),
        (Sampling(stop=("o",), min_tokens=6), ("hello wörld", 13, "stop", None)),
        (Sampling(stop=("l",), min_tokens=6), ("hello wör", 11, "stop", "l")),
        (Sampling(stop_token_ids=(ord("l"),)), ("he", 3, "stop", ord("l"))),
        (Sampling(stop_token_ids=(ord("l"),), include_stop_str_in_output=True), ("hel", 3, "stop", ord("l"))),
        (Sampling(stop_token_ids=(EOS, 9999)), ("hello wörld", 13, "stop", None)),
        (Sampling(stop_token_ids=(ord("o"),), stop=("l",)), ("he", 3, "stop", "l")),
        (Sampling(stop=("d ",), ignore_eos=True), ("hello wörl", 13, "stop", "d ")),
    ],
)
def test_stops_end_the_answer_where_they_are_complete(
    sampling: Sampling, expected: tuple[str, int, str, str | int | None]
) -> None:
    assert outcome("hello wörld", sampling) == expected


def test_a_stop_beyond_the_length_is_not_reached() -> None:
    assert outcome("hello", Sampling(stop=("lo",)), limit=4) == ("hell", 4, "length", None)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.integers(1, 5))
def test_a_character_is_never_cut_and_its_tokens_are_not_held_back(answer: str, step: int) -> None:
    found = deltas(answer, step=step)
    data = answer.encode()
    assert b"".join(bytes(i for i in delta.token_ids if i != EOS) for delta in found) == data
    assert "".join(delta.text for delta in found) == answer
    position = 0
    for delta in found[:-1]:
        position += len(delta.token_ids)
        assert position % step == 0


def test_logprobs_depend_on_nothing_but_the_token() -> None:
    first, second = (deltas("ab", Sampling(logprobs=2)) for _ in range(2))
    assert first == second
    [logprob] = first[0].logprobs or ()
    assert (logprob.token, logprob.token_id) == ("a", ord("a"))
    assert [top.token for top in logprob.top] == ["a", "b"]
    assert 0 > logprob.logprob == logprob.top[0].logprob > logprob.top[1].logprob
    assert deltas("a", Sampling(logprobs=0))[0].logprobs == (type(logprob)("a", 97, logprob.logprob),)
    assert deltas("a")[0].logprobs is None


def said(script: Script, prompt: str, sampling: Sampling = PLAIN, rule: Rule | None = None) -> str:
    return plan(script, rule, prompt.encode(), sampling, 1000).data.decode()


def test_the_default_answer_repeats_the_last_user_message() -> None:
    prompt = "<|user|>\nfirst<|end|>\n<|assistant|>\nx<|end|>\n<|user|>\nsecond\nline<|end|>\n<|assistant|>\n"
    assert last_user_text(prompt) == "second\nline"
    assert said(Script(), prompt) == "You said: second\nline"
    assert said(Script(), "a bare prompt") == "You said: a bare prompt"


def test_the_seed_picks_one_of_several_answers() -> None:
    rule = Rule(answers=("a", "b", "c"))
    assert [said(Script(), "x", Sampling(seed=seed), rule) for seed in (0, 1, 2, 3, -1)] == ["a", "b", "c", "a", "c"]
    assert said(Script(), "x", rule=rule) == said(Script(), "x", rule=rule)


def structured(kind: Any, value: Any, answer: str = "no") -> str:
    return said(Script(), "x", Sampling(structured=Structured(kind, value)), Rule(answer=answer))


def test_a_form_that_is_asked_for_is_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert structured("choice", ["yes", "no"]) == "no"
    assert structured("choice", ["yes", "perhaps"]) == "yes"
    assert structured("json_object", None) == "{}"
    assert structured("json_object", None, '{"x": 1}') == '{"x": 1}'
    assert json.loads(structured("json", schema)) == {"a": 0}
    assert structured("json", schema, '{"a": 5}') == '{"a": 5}'
    assert json.loads(structured("json", schema, '{"a": "5"}')) == {"a": 0}
    assert structured("regex", r"(\w+\s?)+\d{3}x") == "a000x"


@pytest.mark.parametrize(
    ("kind", "value"), [("grammar", "root ::= 'a'"), ("regex", "(?=a)"), ("json", False), ("json", {"$ref": "#"})]
)
def test_a_form_that_cannot_be_kept_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(InvalidGrammar, match="scripted engine"):
        structured(kind, value)
