"""Snapshots: what was saved comes back, and what is damaged counts for nothing and is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataplane.errors import Damaged, StorageFull, Unavailable, UnsupportedFormat
from dataplane.hot import snapshot
from dataplane.hot.graph import Graph
from dataplane.hot.sketch import Sketcher
from dataplane.hot.table import Table
from tests.dataplane.planes import vectors

STORED = vectors(60, dimensions=8)
HEAT = np.array([[1.0, 3.0, 2.0**40], [1.0, 5.0, 2.0], [490_000.25, 1.0, 2.0]])


def of(heat: np.ndarray) -> snapshot.Heat:
    """What is saved so that this is loaded."""
    return snapshot.Heat(np.arange(heat.shape[1]), tuple(heat))


LIKE = Graph(8, "dot")


def graph(first: int = 1) -> Graph:
    made = Graph(8, "dot")
    made.add(np.arange(first, first + 60, dtype=np.uint64), STORED)
    return made


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_snapshot_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    saved = snapshot.save(tmp_path / "new", 7, graph(), of(HEAT))
    loaded = snapshot.load(tmp_path / "new", LIKE)
    assert loaded is not None
    assert loaded.graph is not None
    assert (saved.seq, saved.nodes, loaded.seq) == (7, 60, 7)
    assert loaded.graph.rows.tolist() == list(range(1, 61))
    assert (loaded.graph.vectors(np.arange(60)) == STORED).all()
    assert loaded.graph.masked == 0
    assert (loaded.heat == HEAT).all()
    assert loaded.graph.search(STORED[4], 1)[0].tolist() == [5]
    assert snapshot.verify(tmp_path / "new") == []
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def sketched(count: int = 60) -> snapshot.Sketched:
    table = Table(1)
    slots = table.append(np.arange(1, 61, dtype=np.uint64), [f"r{at}" for at in range(60)], [None] * 60, 1.0)
    centre = STORED.mean(axis=0)
    table.set_sketches(slots, *Sketcher(8, centre).encode(STORED))
    return snapshot.Sketched(table.view(), slots[-count:], centre)


def test_sketches_come_back_for_the_rows_that_had_them(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 60, None, of(HEAT), sketched(count=50))
    saved = snapshot.load_sketches(tmp_path, 8, 60)
    assert saved is not None
    known, (words, factors, bases) = saved.of(np.array([5, 11, 60, 61], np.uint64))
    assert known.tolist() == [False, True, True, False]
    made = Sketcher(8, saved.centre).encode(STORED[[10, 59]])
    assert (words == made[0]).all()
    assert (factors == made[1]).all()
    assert bases.tolist() == made[2].tolist()
    assert snapshot.verify(tmp_path) == []


def test_sketches_that_are_damaged_ahead_or_of_other_dimensions_are_not_used(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 60, None, of(HEAT), sketched())
    assert snapshot.load_sketches(tmp_path, 8, 59) is None
    assert snapshot.load_sketches(tmp_path, 9, 60) is None
    assert snapshot.load_sketches(tmp_path / "none", 8, 60) is None
    file = next(tmp_path.glob("sketches-*"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert snapshot.load_sketches(tmp_path, 8, 60) is None
    assert [file.name in problem for problem in snapshot.verify(tmp_path)] == [True]


def test_sketches_of_no_rows_know_none(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 60, None, of(HEAT), snapshot.Sketched(sketched().view, np.empty(0, np.int64), STORED[0]))
    saved = snapshot.load_sketches(tmp_path, 8, 60)
    assert saved is not None
    assert saved.of(np.array([5], np.uint64))[0].tolist() == [False]


def test_without_a_graph_there_is_heat_alone(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 7, None, of(HEAT))
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert loaded.graph is None
    assert (loaded.heat == HEAT).all()


def test_a_new_snapshot_replaces_the_old_one_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    (tmp_path / ".tmp-0-graph-8.faiss").write_bytes(b"broken off")
    (tmp_path / "shard-1.parquet").write_bytes(b"not ours")
    snapshot.save(tmp_path, 9, graph(100), of(HEAT[:, :1]))
    parts = sorted(name.partition("-")[0] + Path(name).suffix for name in names(tmp_path))
    assert parts == ["graph.faiss", "heat.npy", "rows.npy", "shard.parquet", "snapshot.json.json"]
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert loaded.graph is not None
    assert loaded.graph.rows[0] == 100


def test_where_there_is_none_there_is_nothing_to_load(tmp_path: Path) -> None:
    assert snapshot.load(tmp_path, LIKE) is None
    assert snapshot.load(tmp_path / "no folder", LIKE) is None
    assert snapshot.verify(tmp_path) == []
    snapshot.remove(tmp_path / "no folder")
    (tmp_path / "graph-3.faiss").write_bytes(b"written, but the kill came before the pointer")
    assert snapshot.load(tmp_path, LIKE) is None


def test_a_removed_snapshot_is_gone(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    snapshot.remove(tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("which", ["snapshot.json", "graph-7-*.faiss", "rows-7-*.npy", "heat-7-*.npy"])
def test_whatever_is_cut_or_flipped_is_found_and_named(tmp_path: Path, which: str) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    (path,) = tmp_path.glob(which)
    whole = path.read_bytes()
    places = np.unique(np.linspace(0, len(whole) - 1, 60).astype(int)).tolist()
    damaged = [whole[:at] for at in places]
    damaged += [whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in places]
    damaged += [whole + b"x", b""]
    for content in damaged:
        path.write_bytes(content)
        try:
            loaded = snapshot.load(tmp_path, LIKE)
        except Damaged as error:
            assert str(tmp_path) in str(error)
            assert any(str(tmp_path) in problem for problem in snapshot.verify(tmp_path))
        else:  # the name of a field with a default was hit: it says the same
            assert which == "snapshot.json"
            assert loaded is not None
            assert loaded.seq == 7
            assert (loaded.heat == HEAT).all()
    path.unlink()
    if which != "snapshot.json":
        with pytest.raises(Damaged, match="missing"):
            snapshot.load(tmp_path, LIKE)
    path.write_bytes(whole)
    assert snapshot.verify(tmp_path) == []


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    with pytest.raises(Damaged, match="not the one"):
        snapshot.load(tmp_path, Graph(9, "dot"))
    pointer = msgspec.json.decode((tmp_path / "snapshot.json").read_bytes(), type=snapshot.Snapshot)
    for changed in (
        msgspec.structs.replace(pointer, nodes=59),
        msgspec.structs.replace(pointer, files=pointer.files[1:]),
        msgspec.structs.replace(pointer, files=()),
    ):
        sealed = msgspec.structs.replace(changed, sha256=snapshot._sum(changed))
        (tmp_path / "snapshot.json").write_bytes(msgspec.json.encode(sealed))
        with pytest.raises(Damaged):
            snapshot.load(tmp_path, LIKE)


def test_a_newer_format_is_refused_as_such(tmp_path: Path) -> None:
    newer = snapshot.Snapshot(7, 0, (), format=2)
    newer = msgspec.structs.replace(newer, sha256=snapshot._sum(newer))
    (tmp_path / "snapshot.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(UnsupportedFormat, match="format 2"):
        snapshot.load(tmp_path, LIKE)


def test_a_snapshot_that_is_replaced_while_it_is_verified_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    read = snapshot.read
    turns = iter([True, False, False])

    def replaced_after_reading(folder: Path) -> snapshot.Snapshot | None:
        found = read(folder)
        if next(turns):
            snapshot.save(folder, 8, graph(), of(HEAT))
        return found

    monkeypatch.setattr(snapshot, "read", replaced_after_reading)
    assert snapshot.verify(tmp_path) == []


@pytest.mark.parametrize("blocked", ["heat-8-00.npy", "rows-8-00.npy", "graph-8-00.faiss"])
def test_what_cannot_be_written_leaves_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    before = names(tmp_path)
    monkeypatch.setattr("dataplane.hot.snapshot.secrets.token_hex", lambda size: "00")
    (tmp_path / blocked).mkdir()  # in the way
    with pytest.raises((Unavailable, StorageFull)):
        snapshot.save(tmp_path, 8, graph(), of(HEAT))
    (tmp_path / blocked).rmdir()
    assert names(tmp_path) == before
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert loaded.seq == 7


class Interrupted(Graph):
    """`at` is called while it is being saved."""

    at: Callable[[], None]

    def save(self, path: Path) -> None:
        self.at()
        super().save(path)


def interrupted(at: Callable[[], None]) -> Graph:
    made = Interrupted(8, "dot")
    made.add(np.arange(1, 31, dtype=np.uint64), STORED[:30])
    made.at = at
    return made


def test_a_second_snapshot_of_the_same_change_that_breaks_off_leaves_the_first_whole(tmp_path: Path) -> None:
    def full() -> None:
        raise StorageFull("no room for it.")

    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StorageFull):
        snapshot.save(tmp_path, 7, interrupted(full), of(HEAT[:, :1]))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert (loaded.heat == HEAT).all()


def test_a_kill_while_a_second_snapshot_of_the_same_change_is_written_loses_nothing(tmp_path: Path) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    killed = os.fork()
    if not killed:  # pragma: no cover - it is killed
        snapshot.save(tmp_path, 7, interrupted(lambda: os.kill(os.getpid(), signal.SIGKILL)), of(HEAT[:, :1]))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    assert snapshot.verify(tmp_path) == []
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert (loaded.heat == HEAT).all()
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    assert len(names(tmp_path)) == 4, "what the kill left is gone"


def test_a_second_snapshot_of_the_same_change_is_no_damage_while_it_is_written_and_replaces_the_first(
    tmp_path: Path,
) -> None:
    snapshot.save(tmp_path, 7, graph(), of(HEAT))
    problems: list[str] = []
    snapshot.save(tmp_path, 7, interrupted(lambda: problems.extend(snapshot.verify(tmp_path))), of(HEAT[:, :1]))
    assert problems == []
    loaded = snapshot.load(tmp_path, LIKE)
    assert loaded is not None
    assert loaded.graph is not None
    assert (len(loaded.graph), loaded.heat.tolist()) == (30, HEAT[:, :1].tolist())
    assert len(names(tmp_path)) == 4


def test_heat_is_written_in_parts_as_numpy_would_write_it(tmp_path: Path) -> None:
    heat = np.random.default_rng(1).random((3, 40_001))
    every = np.flatnonzero(heat[0] > 0.25)
    snapshot.Heat(every, tuple(heat)).save(tmp_path / "heat.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "heat.npy"), heat[:, every])
