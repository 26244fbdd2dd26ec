"""How the parts of the data plane's benchmark are chosen, what they take turns at, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import dataplane, demoted, hotlife, logreads, prewarm, restart
from benchmarks.bench import Bench
from benchmarks.corpus import Corpus
from benchmarks.report import NotMeasured
from dataplane.errors import StorageFull


def bench(folder: Path, *only: str) -> Bench:
    corpus = Corpus(np.zeros((5, 2), np.float32), list("abcde"), np.zeros(5, np.int64), 3, folder / "v.npy")
    return Bench(corpus, folder, folder / "python", rounds=1, seconds=1.0, only=frozenset(only))


def test_every_figure_that_is_to_be_reached_is_measured_by_one_part() -> None:
    parts = [*hotlife.KEYS, *demoted.KEYS, *logreads.KEYS, *prewarm.KEYS, *restart.KEYS]
    assert sorted(parts) == sorted(dataplane.GOALS)


def test_without_a_choice_everything_is_wanted(tmp_path: Path) -> None:
    assert bench(tmp_path).wants("restart_s")
    assert bench(tmp_path, "recall_60").wants("recall_60", "restart_s")
    assert not bench(tmp_path, "recall_60").wants("restart_s")


def test_the_last_line_has_medians_and_spreads_of_all_rounds(tmp_path: Path) -> None:
    done = bench(tmp_path)
    for value in (3.0, 1.0, 2.0):
        done.add(recall_60=value, ours_recall=value)
    done.notes["file system"] = "ext4"
    line = json.loads(dataplane.one_line(done))
    assert line["recall_60"] == 2.0
    assert line["spread"]["recall_60"] == [1.0, 3.0]
    assert line["notes"] == {"file system": "ext4"}
    goals, beside, how = dataplane.tables(done).strip().split("\n\n")
    assert "recall_60  2.000 (1.000 to 3.000)  0.989 or more" in goals
    assert "ours_recall" in beside
    assert "ext4" in how


def test_a_scratch_folder_is_gone_after_the_part(tmp_path: Path) -> None:
    with bench(tmp_path).scratch("hot") as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_obstacles_is_told_one_by_one() -> None:
    first, second, third = NotMeasured("a"), StorageFull("b"), OSError("c")
    group = BaseExceptionGroup("x", [first, BaseExceptionGroup("y", [second, third])])
    assert dataplane.obstacles(group) == [first, second, third]


def test_a_defect_is_no_obstacle() -> None:
    with pytest.raises(ZeroDivisionError):
        dataplane.obstacles(BaseExceptionGroup("x", [NotMeasured("a"), ZeroDivisionError()]))


async def test_each_side_gets_every_block_once_and_the_first_turn_goes_round() -> None:
    turns: list[tuple[str, int, int]] = []

    def side(name: str, wall_s: float) -> hotlife.Side:
        async def search(start: int, stop: int) -> dict[str, float]:
            turns.append((name, start, stop))
            return {"wall_s": wall_s, "cpu_s": 2 * wall_s}

        return search

    sums = await hotlife.alternate({"a": side("a", 1.0), "b": side("b", 3.0)})
    blocks = hotlife.QUERIES // hotlife.BLOCK
    assert sums == {"a": {"wall_s": blocks, "cpu_s": 2 * blocks}, "b": {"wall_s": 3 * blocks, "cpu_s": 6 * blocks}}
    for name in "ab":
        own = [(start, stop) for each, start, stop in turns if each == name]
        assert own == [(at, at + hotlife.BLOCK) for at in range(0, hotlife.QUERIES, hotlife.BLOCK)]
    assert [name for name, _, _ in turns[:4]] == ["a", "b", "b", "a"]
