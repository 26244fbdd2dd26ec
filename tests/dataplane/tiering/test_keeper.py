"""The keeper: a step that fails, and the thread."""

from __future__ import annotations

import time

import pytest

from dataplane.errors import StorageFull
from tests.dataplane.keeping import (
    COUNT,
    STORED,
    right,
    wait_for,
)
from tests.dataplane.stilled import Stilled


def test_a_step_that_fails_is_told_and_tried_again_after_a_pause(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no room.")

    hot.keeper.memory_bytes = 1
    monkeypatch.setattr(hot.collection.shards, "demote", full)
    assert not hot.keeper.step(hot.collection)
    assert hot.keeper.last_error == "no room."
    assert hot.keeper.counts.failures == 1
    assert not hot.keeper.step(hot.collection), "it pauses"
    assert hot.keeper.counts.failures == 1
    right(hot)
    monkeypatch.undo()
    hot.keeper.due.of(hot.collection).paused_until = 0.0
    hot.keeper.step(hot.collection)
    assert hot.keeper.last_error is None
    hot.work()
    right(hot)
    assert "the keeper pauses" in caplog.text


def test_a_defect_in_a_step_does_not_end_the_thread(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot.keeper.steps, "merge", lambda *_: 1 // 0)
    hot.keeper.start()
    wait_for(lambda: hot.keeper.counts.failures == 1)
    assert "see the log" in (hot.keeper.last_error or "")
    monkeypatch.undo()
    hot.upsert(STORED[COUNT : COUNT + 300], COUNT)
    hot.keeper.due.of(hot.collection).paused_until = 0.0
    wait_for(lambda: hot.counts == (0, COUNT + 300, 0, 0))
    hot.keeper.stop()


def test_nothing_is_done_while_the_keeper_is_held_nor_for_a_collection_that_was_dropped(hot: Stilled) -> None:
    hot.keeper.start()
    with hot.keeper.held():
        hot.upsert(STORED[COUNT : COUNT + 300], COUNT)
        hot.collection.changed_at -= 60
        hot.keeper.hurry(hot.collection, on=True)
        time.sleep(0.2)
        assert hot.counts == (300, COUNT, 0, 0)
    wait_for(lambda: hot.counts == (0, COUNT + 300, 0, 0))
    with hot.keeper.held():
        hot.collection.dropped = True
        hot.keeper.forget(hot.collection)
    time.sleep(0.1)
    hot.keeper.stop()
    assert len(hot.keeper.due) == 0


def test_a_keeper_that_never_began_can_be_stopped(still: Stilled) -> None:
    still.keeper.stop()
