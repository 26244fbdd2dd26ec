"""acu.http.idle: who makes room."""

from __future__ import annotations

from acu.http.idle import CLOSING_AT_ONCE, SPARED_S, Idle


def always(_: str) -> bool:
    return True


def test_the_one_that_has_been_idle_for_longest_makes_room() -> None:
    idle: Idle[str] = Idle()
    for at, name in enumerate(("a", "b", "c")):
        idle.rest(name, float(at))
    idle.wake("a")
    assert len(idle) == 2
    idle.rest("a", 3.0)
    assert [idle.give_way(10.0, always) for _ in range(4)] == ["b", "c", "a", None]
    assert idle.closed == 3


def test_one_that_was_just_answered_is_spared() -> None:
    idle: Idle[str] = Idle()
    idle.rest("a", 5.0)
    assert idle.give_way(5.0 + SPARED_S * 0.99, always) is None
    assert idle.give_way(5.0 + SPARED_S, always) == "a"


def test_one_whose_answer_is_on_the_way_is_passed_over_and_asked_again_later() -> None:
    idle: Idle[str] = Idle()
    idle.rest("reading", 0.0)
    idle.rest("idle", 1.0)
    assert idle.give_way(5.0, lambda name: name != "reading") == "idle"
    assert idle.give_way(5.0, always) is None
    assert idle.give_way(5.0 + SPARED_S, always) == "reading"


def test_no_more_close_at_a_time_than_there_are_descriptors_for() -> None:
    idle: Idle[int] = Idle()
    for number in range(CLOSING_AT_ONCE + 2):
        idle.rest(number, 0.0)
    closing = [idle.give_way(9.0, lambda _: True) for _ in range(CLOSING_AT_ONCE + 1)]
    assert closing == [*range(CLOSING_AT_ONCE), None]
    idle.gone(0)
    assert idle.give_way(9.0, lambda _: True) == CLOSING_AT_ONCE


def test_one_that_has_closed_is_forgotten() -> None:
    idle: Idle[str] = Idle()
    idle.rest("a", 0.0)
    idle.gone("a")
    assert idle.give_way(9.0, always) is None
