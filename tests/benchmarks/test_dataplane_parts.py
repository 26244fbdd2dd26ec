"""The parts of the benchmark on a real data plane, with a few random rows: that they ask for what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hotlife, logreads, mixedload, prewarm
from benchmarks.bench import Bench
from benchmarks.corpus import BUCKETS, DIMENSIONS, Corpus
from benchmarks.disk import IN_MEMORY, filesystem
from benchmarks.plane import Plane
from benchmarks.report import NotMeasured
from benchmarks.restart import child

ROWS, TOTAL = 1500, 4000


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((TOTAL, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = [f"text {number}" for number in range(TOTAL)]
    return Corpus(vectors, texts, rng.integers(0, BUCKETS, TOTAL), ROWS, Path("none"))


@pytest.fixture
def bench(corpus: Corpus, tmp_path: Path) -> Bench:
    return Bench(corpus, tmp_path, tmp_path / "python", rounds=1, seconds=0.2, only=frozenset())


async def test_a_filled_plane_has_every_row_once_and_finds_each_by_its_vector(corpus: Corpus, tmp_path: Path) -> None:
    plane = await Plane.open(tmp_path, corpus)
    try:
        await plane.fill(0, ROWS)
        await plane.settle()
        assert plane.rows() == {"hot": ROWS, "demoted": 0}
        assert plane.memory_bytes() > ROWS * DIMENSIONS * 4
        answers = await plane.search_all(corpus.vectors[:20])
        assert [answer.rows[0] for answer in answers] == list(range(20))
        assert {(len(answer.rows), answer.hot, answer.read) for answer in answers} == {(10, 10, 0)}
        found = await plane.search(corpus.vectors[5], bucket=int(corpus.buckets[5]), fetch=True)
        assert found.rows[0] == 5
        assert {int(corpus.buckets[row]) for row in found.rows} == {int(corpus.buckets[5])}
    finally:
        await plane.close()


async def test_filtered_recall_and_turns_with_peers_are_measured_on_what_is_stored(bench: Bench) -> None:
    plane = await Plane.open(bench.folder / "data", bench.corpus)
    try:
        await plane.fill(0, ROWS)
        await hotlife.filtered(bench, plane, "recall_filtered")
        assert bench.figures["recall_filtered"][0] > 0.9
        seen = await hotlife.ours_in_turn(plane, range(TOTAL - 10, TOTAL), range(ROWS, ROWS + 5))
        assert (len(seen["search_s"]), len(seen["found"]), len(seen["visible_s"])) == (10, 10, 5)
        assert plane.rows()["hot"] == ROWS + 5
    finally:
        await plane.close()


async def test_the_mixed_load_makes_its_calls_and_misses_none_of_its_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixedload, "SYNCS", 5)
    monkeypatch.setattr(mixedload, "CONTROL_S", 0.2)
    plane = await Plane.open(bench.folder / "data", bench.corpus)
    try:
        await plane.fill(0, ROWS)
        await mixedload.carry_load(bench, plane, bench.folder)
        assert plane.rows()["hot"] == ROWS + 200
    finally:
        await plane.close()
    assert bench.figures["own_writes_missed"] == [0.0]
    assert set(hotlife.LOAD) <= set(bench.figures)


def test_log_events_and_shards_are_read_from_the_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if filesystem(bench.folder) in IN_MEMORY:
        pytest.skip("the temporary folder lies in memory")
    for module, name, value in ((logreads, "EVENTS", 600), (logreads, "READS", 20), (prewarm, "TIMES", 3)):
        monkeypatch.setattr(module, name, value)
    logreads.measure(bench)
    prewarm.measure(bench)
    assert {*logreads.KEYS, *prewarm.KEYS} <= set(bench.figures)
    assert bench.notes["rows of the prewarmed shard"] == str(ROWS)


def test_a_restarted_process_is_heard_line_by_line_and_killed_at_the_end(tmp_path: Path) -> None:
    script = f"print({json.dumps(json.dumps({'right': True}))}, flush=True); import time; time.sleep(60)"
    with child([sys.executable, "-c", script], tmp_path / "log") as process:
        assert process.line(30) == {"right": True}
        with pytest.raises(NotMeasured, match="says nothing"):
            process.line(0.05)
    assert process.process.returncode == -9


def test_what_a_restarted_process_dies_of_is_told(tmp_path: Path) -> None:
    with (
        child([sys.executable, "-c", "raise SystemExit('its folder is gone')"], tmp_path / "log") as process,
        pytest.raises(NotMeasured, match="its folder is gone"),
    ):
        process.line(30)
