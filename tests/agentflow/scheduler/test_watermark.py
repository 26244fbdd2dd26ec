"""When idle runs let go of a KV pool, and how many."""

from __future__ import annotations

import pytest

from agentflow.scheduler.watermark import PoolUse, PoolWatermark


def use(running: int, held: int, runs: int = 10, pool: int = 1000) -> PoolUse:
    return PoolUse(pool, running, runs, held)


@pytest.mark.parametrize(
    ("seen", "released"),
    [
        (use(950, 0), 0),  # at the mark, and not above it
        (use(0, 950), 0),
        (use(500, 451), 3),  # both together
        (use(951, 0, runs=0), 0),  # nobody is idle
        (use(951, 0, runs=1), 1),
        (use(0, 2000, runs=11), 4),  # more than the pool: the engine has given some away already
        (PoolUse(0, 0, 5, 100), 0),  # no pool
    ],
)
def test_above_the_mark_a_share_of_the_idle_runs_lets_go(seen: PoolUse, released: int) -> None:
    assert PoolWatermark(0.95, 0.30).observe(seen) == released


def test_each_reading_above_it_releases_and_the_passing_counts_once() -> None:
    mark = PoolWatermark(0.95, 0.30)
    assert [mark.observe(use(400, held, runs)) for held, runs in ((600, 10), (580, 7), (540, 4), (560, 4))] == [
        3,
        3,
        0,
        2,
    ]
    assert (mark.above, mark.passed) == (True, 1)
    assert mark.observe(use(400, 500)) == 0  # 0.90: above it still
    assert mark.above
    mark.observe(use(400, 499))
    assert not mark.above
    mark.observe(use(400, 560))
    assert (mark.above, mark.passed) == (True, 2)
