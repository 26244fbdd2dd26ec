"""Snapshots of a collection's graph, sketches and heat, so that a start need not make them again.

    snapshot.json      what the files are: sizes, SHA-256, the sequence number, and a SHA-256 of all that
    graph-<seq>-<token>.faiss  rows-<seq>-<token>.npy  heat-<seq>-<token>.npy
    sketches-<seq>-<token>.npy  centre-<seq>-<token>.npy

The files are written and synced first, the description next and atomically: it is the pointer. Last, the files of the snapshot
before are removed. The token is new with each snapshot, for two may be of one sequence number: nothing that the pointer names
is ever written over, and a crash or a full disk leaves the old snapshot whole. A description that does not fit its files, or
cannot be read, counts for nothing: the graph is then built anew in the background, and searches read sketches and stored
vectors meanwhile. Nothing in a snapshot is the only copy of anything but heat.

Rows that were inserted after `seq` are not in the graph; those that ended since are masked when it is taken up.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.errors import ChecksumMismatch, Damaged, DataPlaneError, UnsupportedFormat
from dataplane.files import (
    make_way,
    remove_files,
    remove_leftovers,
    sha256_file,
    storage_errors,
    write_atomically,
    write_bytes,
)
from dataplane.hot import sketchfile
from dataplane.hot.graph import Graph
from dataplane.hot.sketchfile import SavedSketches
from dataplane.hot.table import TableView

POINTER = "snapshot.json"
FORMAT = 1
Rows = NDArray[np.uint64]


class SnapshotFile(Struct, frozen=True):
    """A file of a snapshot."""

    name: str
    bytes: int
    sha256: str


class Snapshot(Struct, frozen=True):
    """What `snapshot.json` holds. `sha256` is that of the other fields."""

    seq: int
    nodes: int
    files: tuple[SnapshotFile, ...]
    sha256: str = ""
    format: int = FORMAT


class Heat(Struct, frozen=True):
    """What is saved of the heat: of some slots, the columns with row number, accesses and hour."""

    slots: NDArray[np.int64]
    columns: tuple[NDArray[Any], ...]

    def save(self, path: Path) -> None:
        """As one array of float64, shape [3, slots], a part after the other: it is never in memory as a whole."""
        shape = (len(self.columns), len(self.slots))
        header: Any = np.lib.format.write_array_header_1_0
        with path.open("wb") as file:
            header(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
            for column in self.columns:
                for start in range(0, len(self.slots), sketchfile.PART):
                    file.write(column[self.slots[start : start + sketchfile.PART]].astype("<f8").tobytes())


class Sketched(Struct, frozen=True):
    """What is saved of the sketches: those of the rows at `slots` of a view, and the centre that they are made with."""

    view: TableView
    slots: NDArray[np.int64]
    centre: NDArray[np.float32]


class Loaded(Struct, frozen=True):
    """A snapshot's content. `heat`: row number, accesses, hour; shape [3, rows], float64."""

    seq: int
    graph: Graph | None
    heat: NDArray[np.float64]


def save(folder: Path, seq: int, graph: Graph | None, heat: Heat, sketched: Sketched | None = None) -> Snapshot:
    """Write a snapshot, and remove what the one before it left. Raises StorageFull, Unavailable."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files: list[SnapshotFile] = []
    nodes, mark = 0, f"{seq}-{secrets.token_hex(4)}"
    try:
        files.append(_saved(folder, f"heat-{mark}.npy", heat.save))
        if sketched is not None:
            view, slots, centre = sketched.view, sketched.slots, sketched.centre
            files.append(_saved(folder, f"centre-{mark}.npy", lambda path: _save_array(path, centre)))
            files.append(_saved(folder, f"sketches-{mark}.npy", lambda path: sketchfile.save(path, view, slots)))
        if graph is not None:
            rows = graph.rows.copy()
            nodes = len(rows)
            files.append(_saved(folder, f"rows-{mark}.npy", lambda path: _save_array(path, rows)))
            files.append(_saved(folder, f"graph-{mark}.faiss", graph.save))
        snapshot = Snapshot(seq, nodes, tuple(files))
        snapshot = msgspec.structs.replace(snapshot, sha256=_sum(snapshot))
        make_way(folder / POINTER)
        write_bytes(folder / POINTER, msgspec.json.encode(snapshot))
    except DataPlaneError:
        _take_back(folder, files)
        raise
    remove_stray(folder, snapshot)
    return snapshot


def _take_back(folder: Path, files: list[SnapshotFile]) -> None:
    """On a full disk what was written already would only take space. Files that the pointer names stay."""
    with contextlib.suppress(DataPlaneError):
        there = read(folder)
        named = {file.name for file in there.files} if there else set()
        remove_files(folder, [file.name for file in files if file.name not in named])


def _saved(folder: Path, name: str, write: object) -> SnapshotFile:
    path = folder / name
    write_atomically(path, write)  # type: ignore[arg-type]
    return SnapshotFile(name, path.stat().st_size, sha256_file(path))


def _save_array(path: Path, array: NDArray[np.generic]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def read(folder: Path) -> Snapshot | None:
    """The description, whole; None if there is none. Raises Damaged."""
    path = folder / POINTER
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"the snapshot {path} cannot be read: {error}.") from error
    if snapshot.format != FORMAT:
        raise UnsupportedFormat(f"the snapshot {path} has format {snapshot.format}; this release reads {FORMAT}.")
    if snapshot.sha256 != _sum(snapshot):
        raise ChecksumMismatch(f"the snapshot {path} does not have its own checksum.")
    return snapshot


def verify(folder: Path) -> list[str]:
    """What is wrong with the snapshot, one sentence a problem."""
    before = _pointer(folder)
    try:
        snapshot = read(folder)
    except DataPlaneError as error:
        return [str(error)]
    problems = []
    for file in () if snapshot is None else snapshot.files:
        try:
            _check(folder, file)
        except DataPlaneError as error:
            problems.append(str(error))
    if problems and _pointer(folder) != before:
        return verify(folder)  # it was replaced meanwhile
    return problems


def _pointer(folder: Path) -> bytes | None:
    try:
        return (folder / POINTER).read_bytes()
    except OSError:
        return None


def _check(folder: Path, file: SnapshotFile) -> Path:
    path = folder / file.name
    try:
        size = path.stat().st_size
    except OSError as error:
        raise Damaged(f"{path} is missing, which the snapshot names.") from error
    if size != file.bytes or sha256_file(path) != file.sha256:
        raise ChecksumMismatch(f"{path} is not what was written: its size or SHA-256 differs.")
    return path


def load(folder: Path, like: Graph) -> Loaded | None:
    """The snapshot, checked; None if there is none. Its graph has no node masked. Raises Damaged."""
    snapshot = read(folder)
    if snapshot is None:
        return None
    paths = {file.name.partition("-")[0]: _check(folder, file) for file in snapshot.files}
    try:
        heat = np.load(paths["heat"], allow_pickle=False)
        graph = None
        if "graph" in paths:
            rows = np.load(paths["rows"], allow_pickle=False)
            graph = Graph.load(paths["graph"], like, rows, np.ones(snapshot.nodes, np.bool_))
    except (OSError, ValueError, KeyError) as error:
        raise Damaged(f"the snapshot in {folder} cannot be read: {error}.") from error
    return Loaded(snapshot.seq, graph, heat)


def load_sketches(folder: Path, dimensions: int, seq: int) -> SavedSketches | None:
    """The sketches in the snapshot, checked. None where there are none, or `load` has something to say against them.

    `seq`: the collection's; a snapshot that is ahead of it may name rows that are others now.
    """
    try:
        found = read(folder)
        if found is None or found.seq > seq:
            return None
        files = {file.name.partition("-")[0]: file for file in found.files}
        if "sketches" not in files or "centre" not in files:
            return None
        centre = np.load(_check(folder, files["centre"]), allow_pickle=False)
        saved = sketchfile.load(_check(folder, files["sketches"]), centre)
    except (DataPlaneError, OSError, ValueError):
        return None
    return saved if centre.shape == (dimensions,) else None


def read_rows(folder: Path) -> Rows:
    """The row of each node of the snapshot's graph; none where there is no graph. Raises Damaged."""
    found = read(folder)
    file = next((file for file in found.files if file.name.startswith("rows-")), None) if found else None
    if file is None:
        return np.empty(0, np.uint64)
    path = _check(folder, file)
    try:
        rows: Rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Damaged(f"the snapshot in {folder} cannot be read: {error}.") from error
    return rows


def remove(folder: Path) -> None:
    """Remove the snapshot. The pointer goes first."""
    if folder.is_dir():
        remove_files(folder, [POINTER])
        remove_stray(folder, Snapshot(0, 0, ()))


def remove_stray(folder: Path, snapshot: Snapshot) -> None:
    """Remove files of other snapshots, and of broken writes."""
    if not folder.is_dir():
        return
    named = {file.name for file in snapshot.files}
    with storage_errors(folder):
        stray = [
            path.name
            for pattern in ("heat-*.npy", "rows-*.npy", "graph-*.faiss", "sketches-*.npy", "centre-*.npy")
            for path in folder.glob(pattern)
            if path.name not in named
        ]
    remove_files(folder, stray)
    remove_leftovers(folder)


def _sum(snapshot: Snapshot) -> str:
    return hashlib.sha256(
        msgspec.json.encode((snapshot.seq, snapshot.nodes, snapshot.files, snapshot.format))
    ).hexdigest()
