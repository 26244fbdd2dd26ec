"""Graph: the HNSW index over a collection's hot rows, by faiss.

Nodes are numbered in the order in which they were added, each has its row's number, and none is ever changed. A node whose
row ended is masked: searches walk through it and do not give it back. Masked nodes cost memory and time until the graph is
built anew, which its owner does past a share of them. faiss's own arrays hold the vectors, and there is no second copy.

faiss releases the GIL in every call, and is not safe for a search beside an add: locks.py holds them apart. `add` adds a few
rows at a time, and runs the searches that came meanwhile in between.

Growth: faiss keeps vectors in one array that doubles, so that for a moment both the old and the new one are there
(`moving_bytes` tells). A graph that is made with a `reserve` has the memory for so many nodes from the beginning.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from dataplane.errors import Damaged
from dataplane.hot.address import address
from dataplane.hot.locks import SharedTurns

Metric = Literal["cosine", "dot", "l2"]
Floats = NDArray[np.float32]
Nodes = NDArray[np.int64]
Rows = NDArray[np.uint64]

LINKS = 16  # M: half the links of a node at the lowest level
EF_CONSTRUCTION = 128
EF_SEARCH = 144  # recall@10 0.992 to 0.994 on 100,000 WordNet glosses of 256 dimensions
PIECE = 2  # rows added before the searches that came meanwhile: about a millisecond
PIECE_ALONE = 16  # while none comes; each end of a piece waits for the interpreter's lock


class Graph:
    """An index of float32 vectors of `dimensions`. One thread adds, any thread ends nodes, any number search."""

    def __init__(self, dimensions: int, metric: Metric, reserve: int = 0) -> None:
        self.dimensions = dimensions
        self.metric = metric
        index = faiss.IndexHNSWFlat(
            dimensions, LINKS, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efConstruction = EF_CONSTRUCTION
        if reserve:
            storage: Any = faiss.downcast_index(index.storage)
            codes = storage.codes
            codes.resize(4 * dimensions * reserve)
            codes.resize(0)  # a C++ vector keeps its memory
        self._take(index, np.empty(0, np.uint64), np.zeros(0, np.uint8), 0)
        self._room = reserve

    def _take(self, index: Any, rows: Rows, live: NDArray[np.uint8], masked: int) -> None:
        self._index = index
        self._rows = rows  # of the nodes, with spare room
        self._live = live  # one bit a node, in bytes
        self._masked = masked
        self._room = len(rows)  # nodes for which there is memory
        self._turns = SharedTurns()
        self._bits = threading.Lock()  # of `_live`: the writer's thread masks nodes while the keeper's adds others
        self._selector: Any = None
        self._kept_options: dict[int, Any] = {}

    def __len__(self) -> int:
        """Nodes, masked ones included."""
        return int(self._index.ntotal)

    @property
    def rows(self) -> Rows:
        """The row number of each node, shape [nodes]."""
        return self._rows[: len(self)]

    @property
    def spare(self) -> int:
        """Nodes that can be added in the memory that is taken already."""
        return self._room - len(self)

    @property
    def masked(self) -> int:
        """Nodes that no search gives back."""
        return self._masked

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken, the links of nodes to come included."""
        return node_bytes(self.dimensions) * self._room

    def growth(self, count: int) -> int:
        """Bytes of memory that adding `count` nodes takes for good."""
        return node_bytes(self.dimensions) * (self._room_for(count) - self._room)

    def _room_for(self, count: int) -> int:
        needed = len(self) + count
        return self._room if needed <= self._room else max(needed, 2 * self._room)

    def moving_bytes(self, count: int) -> int:
        """Bytes that adding `count` nodes takes for a moment, beyond what it keeps: the vectors move to a larger array."""
        return 4 * self.dimensions * len(self) if len(self) + count > self._room else 0

    def add(self, rows: Rows, vectors: Floats) -> int:
        """Append nodes for rows, shape [n], and their `vectors`, shape [n, dimensions]; returns the first one's number."""
        faiss.omp_set_num_threads(1)  # of this thread: faiss would start one for each core
        first = len(self)
        if first + len(rows) > len(self._rows):
            grown = np.empty(max(first + len(rows), 1024, first + first // 2), np.uint64)
            grown[:first] = self._rows[:first]
            self._rows = grown
        self._rows[first : first + len(rows)] = rows
        self._room = self._room_for(len(rows))
        wanted = np.ascontiguousarray(vectors, np.float32)
        into: Any = self._index
        with self._turns.writing() as serve:
            self._unmask(first, len(rows))  # in here: a search beside it would keep a selector of the smaller mask
            start, piece = 0, PIECE
            while start < len(rows):
                part = wanted[start : start + piece]
                into.add_c(len(part), address(part))
                start += len(part)
                piece = PIECE if serve() else min(2 * piece, PIECE_ALONE)
        return first

    def _unmask(self, start: int, count: int) -> None:
        needed = (start + count + 7) // 8
        nodes = np.arange(start, start + count)
        with self._bits:
            if needed > len(self._live):
                grown = np.zeros(max(needed, 2 * len(self._live), 1024), np.uint8)
                grown[: len(self._live)] = self._live
                self._live, self._selector = grown, None
            np.bitwise_or.at(self._live, nodes >> 3, (1 << (nodes & 7)).astype(np.uint8))

    def end(self, node: int) -> None:
        """Mask a node. From any thread."""
        bit = np.uint8(1 << (node & 7))
        with self._bits:
            if self._live[node >> 3] & bit:
                self._live[node >> 3] &= ~bit
                self._masked += 1

    def search(self, query: Floats, k: int, ef: int = EF_SEARCH) -> tuple[Rows, Floats]:
        """The best rows for a query, shape [dimensions], and their scores, best first; at most `k` of them."""
        if not len(self):
            return np.empty(0, np.uint64), np.empty(0, np.float32)
        scores, nodes = np.empty(k, np.float32), np.empty(k, np.int64)
        wanted = np.ascontiguousarray(query, np.float32)
        into: Any = self._index

        def searched() -> None:
            # faiss's own wrapper takes 30 microseconds for its checks. One query is searched by one thread.
            into.search_c(1, address(wanted), k, address(scores), address(nodes), self._options(max(ef, k)))

        self._turns.read(searched)
        if nodes[-1] < 0:
            found = nodes >= 0
            nodes, scores = nodes[found], scores[found]
        return self._rows[nodes], self._scores(scores)

    def _options(self, ef: int) -> Any:
        """What a search is done with. Kept: to make one takes ten microseconds."""
        if self._masked:
            options: Any = faiss.SearchParametersHNSW(efSearch=ef)  # type: ignore[attr-defined]  # not in its stub
            options.sel = options.kept = self._mask()  # the second: faiss keeps the address only
            return options
        if (kept := self._kept_options.get(ef)) is None:  # another search may exchange it meanwhile
            kept = faiss.SearchParametersHNSW(efSearch=ef)  # type: ignore[attr-defined]
            self._kept_options = {ef: kept}
        return kept

    @property
    def busy(self) -> bool:
        """Whether a search would have to wait for rows to be added."""
        return self._turns.written

    def _mask(self) -> Any:
        selector: Any = self._selector  # another search may make one at the same time
        if selector is None:
            live = self._live
            selector = faiss.IDSelectorBitmap(live.nbytes, faiss.swig_ptr(live))
            selector.referenced = live
            self._selector = selector
        return selector

    def shown(self, nodes: Nodes) -> NDArray[np.bool_]:
        """Which nodes are not masked, shape [n]."""
        live = self._live
        shown: NDArray[np.bool_] = (live[nodes >> 3] >> (nodes & 7).astype(np.uint8)) & 1 == 1
        return shown

    def _scores(self, distances: Floats) -> Floats:
        return -distances if self.metric == "l2" else distances

    def score(self, query: Floats, nodes: Nodes) -> Floats:
        """The exact scores of some nodes, shape [n]."""
        scores = np.empty(len(nodes), np.float32)
        for start in range(0, len(nodes), 1024):
            part = slice(start, start + 1024)
            scores[part] = exact_scores(query, self.vectors(nodes[part]), self.metric)
        return scores

    def vectors(self, nodes: Nodes) -> Floats:
        """Copies of the vectors of some nodes, shape [n, dimensions]."""

        def copied() -> Floats:
            storage: Any = faiss.downcast_index(self._index.storage)
            every = faiss.rev_swig_ptr(storage.get_xb(), len(self) * self.dimensions)
            return np.array(every.reshape(-1, self.dimensions)[nodes])

        return self._turns.read(copied)

    def save(self, path: Path) -> None:
        """Write the index to a file; searches go on. Raises OSError."""
        try:
            self._turns.read(lambda: faiss.write_index(self._index, str(path)))
        except RuntimeError as error:
            raise OSError(f"the graph could not be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: Path, like: Graph, rows: Rows, live: NDArray[np.bool_]) -> Graph:
        """A saved index of the kind of `like`; `live`, shape [nodes], says which nodes are not masked. Raises Damaged."""
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise Damaged(f"the graph in {path} cannot be read: {error}") from error
        if (
            not isinstance(index, faiss.IndexHNSWFlat)
            or index.d != like.dimensions
            or not index.ntotal == len(live) == len(rows)
        ):
            raise Damaged(f"the graph in {path} is not the one that its snapshot describes.")
        graph = cls.__new__(cls)
        graph.dimensions, graph.metric = like.dimensions, like.metric
        graph._take(index, rows, np.packbits(live, bitorder="little"), int(len(live) - np.count_nonzero(live)))
        return graph


def node_bytes(dimensions: int) -> int:
    """About what a node takes in memory: vector, links, row number."""
    return 4 * dimensions + 8 * LINKS + 32


def exact_scores(query: Floats, vectors: Floats, metric: Metric) -> Floats:
    """Scores of `vectors`, shape [n, dimensions], higher is better: inner products, or minus the squared distances."""
    if metric != "l2":
        products: Floats = vectors @ query
        return products
    rest = vectors - query
    distances: Floats = np.einsum("nd,nd->n", rest, rest)
    return -distances
