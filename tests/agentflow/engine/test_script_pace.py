"""The timetable of a scripted stream, asked at times that the test makes up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentflow.engine.script import Rule, Script
from agentflow.engine.script_pace import Pace


def assert_next(pace: Pace, now: float, emitted: int, *, upto: int, due: float) -> None:
    told_upto, told_due = pace.next(now, emitted)
    assert told_upto == upto
    assert told_due == pytest.approx(due)


def test_a_stream_at_rate_0_is_always_due() -> None:
    pace = Pace(Script(tokens_per_delta=3), None, 5)
    assert pace.begin(100.0) == 3
    assert pace.next(100.0, 3) == (6, 100.0)
    assert pace.next(250.0, 6) == (9, 250.0), "nothing is late where nothing has a time"


def test_a_delta_is_due_when_the_last_of_its_tokens_is() -> None:
    pace = Pace(Script(tokens_per_s=10, tokens_per_delta=2), None, 0)
    assert pace.begin(100.0) == 2
    assert_next(pace, 100.0, 2, upto=4, due=100.3)
    assert_next(pace, 100.3, 4, upto=6, due=100.5)


def test_what_a_late_reader_missed_comes_in_one_delta_and_the_rest_in_time() -> None:
    pace = Pace(Script(tokens_per_s=10), None, 0)
    pace.begin(100.0)
    upto, due = pace.next(101.05, 1)
    assert upto == 11, "tokens 0 to 10 are due by then"
    assert due <= 101.05
    assert_next(pace, 101.05, upto, upto=12, due=101.1)


def test_streams_that_begin_together_are_spread_over_one_interval_and_none_is_slower_than_its_rate() -> None:
    firsts = []
    for number in range(100):
        pace = Pace(Script(tokens_per_s=10), None, number)
        pace.begin(100.0)
        firsts.append(pace.next(100.0, 1)[1] - 100.0)
    assert all(0 < first <= 0.1 + 1e-9 for first in firsts)
    assert max(later - earlier for earlier, later in pairwise(sorted(firsts))) < 3 * 0.1 / 100


def test_a_rule_says_what_it_says_and_the_script_the_rest() -> None:
    script = Script(tokens_per_s=10, ttft_s=2, tokens_per_delta=4)
    pace = Pace(script, Rule(tokens_per_s=100), 0)
    assert (pace.interval_s, pace.ttft_s, pace.per_delta) == (0.01, 2, 4)
    pace = Pace(script, Rule(tokens_per_s=0, ttft_s=0, tokens_per_delta=1), 0)
    assert (pace.interval_s, pace.ttft_s, pace.per_delta) == (0, 0, 1)
