"""The admission queue: priorities, ageing, and departures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentflow.scheduler.queue import AdmissionQueue


class Item:
    def __init__(self, name: str) -> None:
        self.name = name


def drain(queue: AdmissionQueue[Item]) -> list[str]:
    names = []
    while (item := queue.pop()) is not None:
        names.append(item.name)
    return names


def test_a_lower_priority_number_goes_first_and_equals_go_in_order_of_arrival() -> None:
    queue: AdmissionQueue[Item] = AdmissionQueue(ageing_s=10.0)
    for name, priority in (("a", 0), ("b", -1), ("c", 0), ("d", 5)):
        queue.push(Item(name), priority=priority, arrived_at=100.0)
    assert drain(queue) == ["b", "a", "c", "d"]


def test_waiting_long_enough_overtakes_a_better_priority() -> None:
    queue: AdmissionQueue[Item] = AdmissionQueue(ageing_s=10.0)
    queue.push(Item("patient"), priority=1, arrived_at=100.0)
    queue.push(Item("nine seconds later"), priority=0, arrived_at=109.0)
    queue.push(Item("eleven seconds later"), priority=0, arrived_at=111.0)
    assert drain(queue) == ["nine seconds later", "patient", "eleven seconds later"]


def test_a_departed_item_is_skipped_and_leaves_only_once() -> None:
    queue: AdmissionQueue[Item] = AdmissionQueue(ageing_s=10.0)
    stays, leaves = Item("stays"), Item("leaves")
    queue.push(leaves, priority=0, arrived_at=1.0)
    queue.push(stays, priority=0, arrived_at=2.0)
    assert queue.discard(leaves) is True
    assert queue.discard(leaves) is False
    assert len(queue) == 1
    assert queue.peek() is stays
    assert drain(queue) == ["stays"]


def test_a_flood_of_departures_keeps_no_memory() -> None:
    queue: AdmissionQueue[Item] = AdmissionQueue(ageing_s=10.0)
    items = [Item(str(number)) for number in range(10_000)]
    for item in items:
        queue.push(item, priority=0, arrived_at=0.0)
    for item in items[:-1]:
        queue.discard(item)
    assert len(queue) == 1
    assert len(queue._heap) <= 65


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1000), st.booleans()), max_size=60))
def test_the_order_is_that_of_urgency_at_any_later_moment(arrivals: list[tuple[int, float, bool]]) -> None:
    queue: AdmissionQueue[Item] = AdmissionQueue(ageing_s=7.0)
    kept = []
    for number, (priority, arrived_at, leaves) in enumerate(arrivals):
        item = Item(str(number))
        queue.push(item, priority=priority, arrived_at=arrived_at)
        if leaves:
            queue.discard(item)
        else:
            kept.append((priority * 7.0 + arrived_at, number))
    assert drain(queue) == [str(number) for _, number in sorted(kept)]
