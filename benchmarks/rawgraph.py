"""hnswlib with nothing around it: what the data plane's ingest and search are measured against.

`.venv-bench/bin/python -m benchmarks.rawgraph --vectors F.npy` answers commands (see commands.py) and times itself, so that
what passes between the processes is not in the figures. Labels are positions in the file of vectors; the metric is the inner
product of vectors of length 1. Adding goes by one thread.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hnswlib  # type: ignore[import-not-found, import-untyped, unused-ignore]  # in .venv-bench only
import numpy as np

from benchmarks.commands import answer_commands

K = 10
M = 16
EF_CONSTRUCTION = 128


class RawGraph:
    """A graph, and the commands on it."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors
        self.pool = ThreadPoolExecutor(2)

    def build(self, rows: int, batch: int) -> dict[str, object]:
        """A new graph of the first `rows`, `batch` a call. Seconds of wall time and of CPU."""
        self.graph = hnswlib.Index("ip", self.vectors.shape[1])
        self.graph.init_index(rows, M=M, ef_construction=EF_CONSTRUCTION)
        self.graph.set_num_threads(1)
        vectors = np.array(self.vectors[:rows])
        wall, cpu = time.perf_counter(), time.process_time()
        for at in range(0, rows, batch):
            stop = min(at + batch, rows)
            self.graph.add_items(vectors[at:stop], np.arange(at, stop), num_threads=1)
        return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}

    def search(self, start: int, stop: int, ef: int, threads: int = 1) -> dict[str, object]:
        """The K nearest of each query, one query a call, an equal part of them on each of 1 or 2 threads."""
        self.graph.set_ef(ef)
        parts = np.array_split(np.array(self.vectors[start:stop]), threads)
        wall, cpu = time.perf_counter(), time.process_time()
        if threads == 1:
            found = self._search_all(parts[0])
        else:
            found = [each for part in self.pool.map(self._search_all, parts) for each in part]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"wall_s": wall, "cpu_s": cpu, "found": [each.tolist() for each in found]}

    def _search_all(self, queries: np.ndarray) -> list[np.ndarray]:
        return [self.graph.knn_query(query, k=K, num_threads=1)[0][0] for query in queries]


def main() -> None:
    """Answer commands until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    args = parser.parse_args()
    answer_commands(RawGraph(np.load(args.vectors, mmap_mode="r")))


if __name__ == "__main__":
    main()
