"""The arithmetic of waits."""

from __future__ import annotations

import pytest

from agentflow.scheduler.estimate import WaitEstimate


def test_nothing_is_predicted_before_anything_was_seen() -> None:
    estimate = WaitEstimate()
    assert estimate.wait_s(ahead=10, seats=2) is None
    assert estimate.retry_after_s(waiting=100, seats=2) == 1.0


def test_the_wait_grows_with_the_queue_and_shrinks_with_the_seats() -> None:
    estimate = WaitEstimate()
    estimate.observe(4.0)
    assert estimate.wait_s(ahead=0, seats=1) == 4.0
    assert estimate.wait_s(ahead=9, seats=1) == 40.0
    assert estimate.wait_s(ahead=9, seats=8) == 5.0
    assert estimate.wait_s(ahead=9, seats=0) is None


def test_the_mean_follows_slowly() -> None:
    estimate = WaitEstimate(weight=0.5)
    estimate.observe(4.0)
    estimate.observe(8.0)
    assert estimate.wait_s(ahead=0, seats=1) == pytest.approx(6.0)


def test_a_refused_caller_comes_back_when_half_of_the_queue_has_gone_within_a_minute() -> None:
    estimate = WaitEstimate()
    estimate.observe(1.0)
    assert estimate.retry_after_s(waiting=20, seats=2) == pytest.approx(5.5)
    assert estimate.retry_after_s(waiting=1_000_000, seats=1) == 60.0


def test_it_is_empty_when_the_queue_has_gone_and_the_last_have_run() -> None:
    estimate = WaitEstimate()
    assert estimate.empty_s(waiting=0, running=0, seats=2) == 0.0
    assert estimate.empty_s(waiting=9, running=2, seats=2) == 1.0  # nothing was learned
    estimate.observe(4.0)
    assert estimate.empty_s(waiting=0, running=0, seats=2) == 0.0
    assert estimate.empty_s(waiting=0, running=1, seats=2) == 4.0
    assert estimate.empty_s(waiting=6, running=2, seats=2) == 16.0
    assert estimate.empty_s(waiting=6, running=0, seats=2) == 12.0
