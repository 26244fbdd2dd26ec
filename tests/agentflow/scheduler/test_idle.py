"""Which prompts of idle runs are kept, and how much goes of one that is not."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from agentflow.scheduler.idle import Forgotten, Idle, IdlePrefixes, Place, held

HERE = Place("m", "acme")
ELSEWHERE = (Place("m", "other"), Place("small", "acme"))


def left(idle: IdlePrefixes, prompt: Sequence[int], at: float, said: Sequence[int] = (), place: Place = HERE) -> None:
    """A sequence that begins and ends."""
    idle.end(idle.begin(place, prompt), said, at)


def gone(place: Place, token_ids: Sequence[int], keep: int) -> Forgotten:
    return Forgotten(place, array("I", token_ids), keep)


def over(idle: IdlePrefixes, now: float) -> list[tuple[list[int], int]]:
    """(tokens, how many are kept) of all that go."""
    found = []
    while (one := idle.next_over(now)) is not None:
        found.append((list(one.token_ids), one.keep))
    return found


def test_a_prompt_goes_when_its_time_is_over_with_all_that_was_said_behind_it() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1, 2], at=100.0, said=[3])
    assert (len(idle), idle.next_at, idle.next_over(159.9)) == (1, 160.0, None)
    assert idle.next_over(160.0) == gone(HERE, [1, 2, 3], 0)
    assert (len(idle), idle.next_at, idle.next_over(999.0)) == (0, None, None)


def test_what_an_erased_tenant_left_goes_at_once_and_nothing_else_does() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1], at=1.0, place=ELSEWHERE[0])
    left(idle, [1, 2], at=2.0)
    left(idle, [3], at=3.0, place=ELSEWHERE[1])
    idle.expire("acme")
    assert [idle.next_over(4.0), idle.next_over(4.0), idle.next_over(4.0)] == [
        gone(HERE, [1, 2], 0),
        gone(ELSEWHERE[1], [3], 0),
        None,
    ]
    assert (len(idle), idle.next_at) == (1, 61.0)


def test_one_too_many_and_the_oldest_goes() -> None:
    idle = IdlePrefixes(2, 60.0)
    for number in range(4):
        left(idle, [number], at=number)
    assert idle.too_many
    assert over(idle, 4.0) == [([0], 0), ([1], 0)]
    assert (len(idle), idle.too_many, idle.next_at) == (2, False, 62.0)


def test_none_is_kept_where_none_may_be() -> None:
    idle = IdlePrefixes(0, 60.0)
    left(idle, [1], at=0.0)
    assert over(idle, 0.0) == [([1], 0)]


def test_what_a_prompt_goes_on_from_is_idle_no_more() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1, 2], at=0.0, said=[3])
    reading = idle.begin(HERE, [1, 2, 3, 4])
    assert (len(idle), over(idle, 1000.0)) == (0, [])
    idle.end(reading, [5], 1000.0)
    assert over(idle, 1060.0) == [([1, 2, 3, 4, 5], 0)]


def test_all_that_a_prompt_goes_on_from_is_found_among_others() -> None:
    idle = IdlePrefixes(100, 60.0)
    for other in ([1, 2, 9], [1, 2, 3, 3], [1, 1], [0], [1, 2, 3, 5], [9]):
        left(idle, other, at=0.0)
    for own in ([1, 2, 3, 4], [1], [1, 2]):
        left(idle, own, at=0.0)
    assert len(idle) == 8  # 1 grew into 1 2
    idle.begin(HERE, [1, 2, 3, 4])
    assert len(idle) == 6


def test_a_sequence_that_no_engine_saw_leaves_all_as_it_was() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1], at=0.0)
    idle.end(idle.begin(HERE, [1, 2]), None, 10.0)
    assert over(idle, 60.0) == [([1], 0)]
    idle.end(idle.begin(HERE, [1, 2]), None, 80.0)
    assert len(idle) == 0


def test_however_often_a_sequence_comes_to_nothing_what_it_would_have_gone_on_from_grows_no_younger() -> None:
    idle = IdlePrefixes(10, 100.0)
    for place, at in ((HERE, 0.0), (ELSEWHERE[0], 10.0)):
        left(idle, [1], at=at, place=place)
    left(idle, [1, 2], at=20.0)  # takes the first one's place
    left(idle, [3], at=30.0)
    for now in (50.0, 90.0):
        for prompt in ([3, 5], [1, 2, 5]):
            idle.end(idle.begin(HERE, prompt), None, now)
        assert (len(idle), idle.next_at) == (3, 110.0)
    assert [idle.next_over(at) for at in (110.0, 119.0, 120.0, 130.0)] == [
        gone(ELSEWHERE[0], [1], 0),
        None,
        gone(HERE, [1, 2], 0),
        gone(HERE, [3], 0),
    ]


def test_what_another_left_again_meanwhile_is_as_young_as_that_makes_it() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1], at=0.0)
    waiting = idle.begin(HERE, [1, 2])
    left(idle, [1], at=10.0)
    idle.end(waiting, None, 20.0)
    assert (len(idle), idle.next_at) == (1, 70.0)
    assert over(idle, 70.0) == [([1], 0)]


def test_what_another_has_in_common_stays_until_that_goes_too() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [7, 7, 7, 1, 1], at=0.0)
    left(idle, [7, 7, 7, 2, 2], at=10.0)
    left(idle, [7, 9], at=20.0)
    assert over(idle, 60.0) == [([7, 7, 7, 1, 1], 3)]
    assert over(idle, 70.0) == [([7, 7, 7, 2, 2], 1)]
    assert over(idle, 80.0) == [([7, 9], 0)]


def test_what_a_sequence_at_work_has_in_common_stays() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [7, 7, 1], at=0.0)
    reading = idle.begin(HERE, [7, 7, 2])
    assert over(idle, 60.0) == [([7, 7, 1], 2)]
    idle.end(reading, [3], 100.0)
    assert over(idle, 160.0) == [([7, 7, 2, 3], 0)]


def test_a_prompt_that_is_the_beginning_of_another_goes_without_a_word() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1, 2, 3], at=0.0)
    left(idle, [1, 2], at=1.0)
    left(idle, [1, 2, 3], at=2.0)  # again: one entry, as old as its last use
    assert len(idle) == 1
    reading = idle.begin(HERE, [5])
    left(idle, [5], at=3.0)
    assert over(idle, 63.0) == [([1, 2, 3], 0)]
    assert len(idle) == 0
    idle.end(reading, [], 70.0)
    assert over(idle, 130.0) == [([5], 0)]


def test_the_same_prompt_twice_at_work_is_left_once() -> None:
    idle = IdlePrefixes(10, 60.0)
    first, second = idle.begin(HERE, [1]), idle.begin(HERE, [1])
    idle.end(first, [2], 0.0)
    idle.end(second, [2], 5.0)
    assert (len(idle), idle.next_at) == (1, 65.0)
    assert over(idle, 65.0) == [([1, 2], 0)]


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_another_tenants_prompts_and_those_of_another_model_are_nothing_to_this(elsewhere: Place) -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [1, 2], at=0.0)
    idle.begin(elsewhere, [1, 2, 3])
    assert over(idle, 60.0) == [([1, 2], 0)]


def test_an_empty_prompt_and_the_largest_token_are_no_trouble() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, [], at=0.0)
    left(idle, [2**32 - 1], at=0.0, said=[0])
    assert over(idle, 60.0) == [([2**32 - 1, 0], 0)]


def test_neighbours_tell_as_much_as_a_look_at_all() -> None:
    chance = random.Random(5)
    idle, known = IdlePrefixes(40, 60.0), dict[tuple[int, ...], float]()
    for step in range(2000):
        prompt = tuple(chance.choices((0, 1, 255, 256, 65_536), k=chance.randrange(1, 9)))
        known = {each: at for each, at in known.items() if prompt[: len(each)] != each}
        known[prompt] = step
        left(idle, prompt, at=step)
        while len(known) > 40 or (known and min(known.values()) + 60.0 <= step):
            oldest = min(known, key=known.__getitem__)
            del known[oldest]
            keep = max((_shared(oldest, other) for other in known), default=0)
            if keep < len(oldest):
                assert idle.next_over(step) == gone(HERE, list(oldest), keep)
        assert idle.next_over(step) is None
        assert len(idle) == len(known)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_what_is_held_is_what_nobody_at_work_names_in_whole_blocks() -> None:
    idle = IdlePrefixes(10, 60.0)
    left(idle, range(10), at=1.0)
    assert held(idle.orders("m"), 4) == Idle(1, 8)
    left(idle, [*range(6), 9, 9, 9], at=2.0)  # its first block is the other's too
    assert held(idle.orders("m"), 4) == Idle(2, 12)
    left(idle, range(10), at=3.0, place=ELSEWHERE[0])  # another tenant's are others
    left(idle, range(10), at=3.0, place=ELSEWHERE[1])  # and so are another model's
    assert held(idle.orders("m"), 4) == Idle(3, 20)
    assert held(idle.orders("small"), 4) == Idle(1, 8)
    working = idle.begin(HERE, [*range(5), 7, 7, 7])
    assert held(idle.orders("m"), 4) == Idle(3, 16)
    again = idle.begin(HERE, [*range(6), 9, 9, 9])
    assert held(idle.orders("m"), 4) == Idle(2, 12)
    idle.end(again, [], 4.0)
    idle.end(working, None, 4.0)
    assert held(idle.orders("m"), 4) == Idle(3, 20)
    assert held(idle.orders("m"), 1) == Idle(3, 23)
    assert held(idle.orders("nobody's"), 4) == Idle(0, 0)


def test_one_that_is_in_use_and_idle_at_once_holds_nothing() -> None:
    idle = IdlePrefixes(10, 60.0)
    first, second = idle.begin(HERE, range(8)), idle.begin(HERE, range(8))
    idle.end(first, [], 1.0)
    assert held(idle.orders("m"), 4) == Idle(1, 0)
    idle.end(second, [], 2.0)
    assert held(idle.orders("m"), 4) == Idle(1, 8)


def test_held_blocks_are_those_of_the_idle_prompts_less_those_in_use() -> None:
    choose = random.Random(7)
    for _ in range(200):
        idle = IdlePrefixes(100, 60.0)
        readings = [
            idle.begin(HERE, [choose.randrange(2) for _ in range(choose.randrange(1, 9))])
            for _ in range(choose.randrange(1, 12))
        ]
        for reading in readings[::2]:
            idle.end(reading, [choose.randrange(2)], 1.0)
        (order,) = idle.orders("m")
        blocks = [
            {prompt[: 4 * size] for prompt in group for size in range(2, len(prompt) // 4 + 1, 2)}
            for group in (order.idle, [reading.prompt for reading in readings[1::2]])
        ]
        assert held([order], 2).tokens == 2 * len(blocks[0] - blocks[1])


def test_the_oldest_of_one_model_go_when_they_have_to() -> None:
    idle = IdlePrefixes(10, 60.0)
    for number in range(4):
        left(idle, [number], at=float(number), place=HERE if number % 2 else ELSEWHERE[0])
    left(idle, [9], at=0.0, place=ELSEWHERE[1])
    assert idle.expire_oldest("m", 3) == 3
    assert over(idle, 5.0) == [([0], 0), ([1], 0), ([2], 0)]
    assert (len(idle), idle.next_at) == (2, 63.0)
    assert idle.expire_oldest("m", 3) == 1
    assert idle.expire_oldest("small", 0) == 0
    assert over(idle, 5.0) == [([3], 0)]
