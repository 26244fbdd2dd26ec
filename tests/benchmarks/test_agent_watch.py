"""What a look at ACU's counts says, and what the looks say together."""

from __future__ import annotations

import pytest

from agentflow.engine.protocol import EngineStats
from benchmarks.agentwatch import Lateness, Look


def look(counted: int = 0, outstanding: int = 0, step: float = 0.0, seats: int = 0, queued: int = 0) -> Look:
    """After the engine's step `step`, in which it counted so many sequences; it was asked for `outstanding`."""
    engine = EngineStats(outstanding=outstanding, running=counted, last_progress_at=step)
    return Look(at=0.0, engine=engine, kv_tokens=0, going=3, speaking=2, seats=seats, queued=queued)


@pytest.mark.parametrize(
    ("outstanding", "seats", "queued", "held"),
    [
        (2, 2, 0, False),
        (1, 1, 1, False),
        (0, 0, 2, False),
        (0, 3, 0, True),
        (3, 0, 0, True),
        (0, 2, 1, True),  # one waits: so of two seats one is nobody's
        (2, 0, 1, True),
    ],
)
def test_a_seat_is_held_where_more_are_taken_than_runs_speak_and_do_not_wait_for_one(
    outstanding: int, seats: int, queued: int, held: bool
) -> None:
    assert look(outstanding=outstanding, seats=seats, queued=queued).held is held


def late(*looks: Look) -> int:
    lateness = Lateness()
    for each in looks:
        lateness.add(each)
    return lateness.steps


def test_the_step_that_is_under_way_may_count_what_is_over_and_the_next_may_not() -> None:
    before = look(2, 2, step=1.0)
    assert late(before, look(2, 1, step=1.0), look(2, 1, step=2.0), look(1, 1, step=3.0)) == 0
    assert late(before, look(2, 1, step=1.0), look(2, 1, step=2.0), look(2, 1, step=3.0), look(1, 1, step=4.0)) == 1
    assert late(before, look(2, 1, step=1.0), *(look(2, 1, step=2.0 + each) for each in range(4))) == 3


def test_what_is_over_right_after_a_step_is_counted_by_the_next_one_which_had_begun() -> None:
    before = look(2, 2, step=1.0)
    assert late(before, look(2, 1, step=2.0), look(2, 1, step=3.0), look(1, 1, step=4.0)) == 0
    assert late(before, look(2, 1, step=2.0), look(2, 1, step=3.0), look(2, 1, step=4.0)) == 1


def test_others_that_are_over_at_each_step_do_not_make_one_late() -> None:
    looks = [look(10 - number, 9 - number, step=float(number)) for number in range(9)]
    assert late(look(10, 10, step=0.5), *looks) == 0


def test_looks_between_two_steps_are_no_steps() -> None:
    assert late(look(2, 2, step=1.0), *(look(2, 1, step=1.0) for _ in range(9)), look(1, 1, step=2.0)) == 0
