"""The data plane on real text embeddings, against raw hnswlib, a raw fdatasync, an oracle, and three other stores.

The texts are WordNet's glosses, embedded by wordllama (corpus.py); queries are texts that are not rows. One process, on a
real disk, numpy on one thread. What each figure is, is said where it is measured:

    hotlife.py    ingest, search and recall with everything hot; beside Chroma's server, Qdrant's local mode and LanceDB
    mixedload.py  visibility, durability and the loop's lag, under 1,000 inserts and 200 searches a second
    demoted.py    recall, reads and latency with memory for 60 % of the vectors; what is kept hot
    prewarm.py    a cold shard into the page cache           logreads.py   a row of a log shard by its id
    restart.py    kill -9, and the first right answer

    python -m benchmarks.dataplane [--rows 100000] [--rounds 3] [--only KEY ...] [--dir FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import uvloop

from acu.config.places import default_model_cache
from acu.process.pulse import settle_memory
from benchmarks import corpus, demoted, hotlife, logreads, prewarm, restart, vectorpeers
from benchmarks.bench import Bench
from benchmarks.disk import refuse_memory
from benchmarks.ending import to_the_end
from benchmarks.report import last_line, spread, table
from benchmarks.server import OBSTACLES
from dataplane.errors import DataPlaneError
from dataplane.tuning import tune_process

MEMORY_BYTES = 12 * 2**30  # of the hot layer on the reference machine
GOALS = {
    "visible_p50_ms": "under 1",
    "visible_p99_ms": "under 3.7",
    "durable_p99_ratio": "3 or less",
    "loop_lag_p99_ms": "under 5",
    "ingest_ratio": "0.8 or more",
    "search_ratio": "0.8 or more",
    "search_full_ratio": "0.5 or more",
    "recall_hot": "0.99 or more",
    "recall_60": "0.989 or more",
    "warm_read_share": "0.1 or less",
    "search_60_p50_ms": "",
    "search_60_p99_ms": "",
    "recall_filtered": "0.99 or more",
    "warm_read_p50_ms": "under 1",
    "prewarm_p99_ms": "under 80",
    "bytes_per_vector": "",
    "hot_share_vs_oracle": "0.97 or more",
    "restart_s": "under 2",
}
PEER_KEYS = tuple(f"vs_{name}_{what}" for name in vectorpeers.NAMES for what in ("visible", "search"))
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


async def run(bench: Bench) -> None:
    """Every part that is wanted."""
    texts = bench.folder / "texts.json"
    texts.write_text(json.dumps(bench.corpus.texts))
    if bench.wants(*hotlife.KEYS, *PEER_KEYS):
        await run_hot(bench, texts)
    if bench.wants(*demoted.KEYS):
        await demoted.measure(bench)
    if bench.wants(*logreads.KEYS):
        await asyncio.to_thread(logreads.measure, bench)
    if bench.wants(*prewarm.KEYS):
        await asyncio.to_thread(prewarm.measure, bench)
    if bench.wants(*restart.KEYS):
        restart.measure(bench, texts)  # no thread, which would wait for its process when the benchmark is ended


async def run_hot(bench: Bench, texts: Path) -> None:
    """Rounds of a whole life, beside the peers."""
    python, vectors = bench.peers_python, bench.corpus.path
    names = vectorpeers.NAMES if bench.wants(*PEER_KEYS) else ()
    with bench.scratch("peers") as folder:
        stores = [vectorpeers.peer(name, folder / name, python, vectors, texts) for name in names]
        raw = vectorpeers.raw_graph(folder / "hnswlib", python, vectors)
        with vectorpeers.started([*stores, raw]):
            await asyncio.to_thread(vectorpeers.fill, stores, bench.corpus.rows, bench.say)
            for number in range(bench.rounds):
                await hotlife.play_round(bench, number, raw, stores)


def tables(bench: Bench) -> str:
    """What was measured, for people."""
    figures = bench.figures
    title = f"{bench.corpus.rows} rows, {corpus.DIMENSIONS} dimensions: median (lowest to highest round)"
    rows = [[key, spread(figures[key], ".3f"), goal] for key, goal in GOALS.items() if key in figures]
    parts = [table(title, ["figure", "value", "to reach"], rows)]
    beside = [[key, spread(values, ".3f")] for key, values in figures.items() if key not in GOALS]
    parts.append(table("Beside these", ["figure", "value"], beside))
    parts.append(table("How", ["what", ""], [[what, how] for what, how in bench.notes.items()]))
    return "\n".join(parts)


def one_line(bench: Bench) -> str:
    """The same for programs."""
    lines: dict[str, object] = {key: statistics.median(values) for key, values in bench.figures.items()}
    lines["spread"] = {key: [min(values), max(values)] for key, values in bench.figures.items()}
    lines["notes"] = bench.notes
    lines["rows"] = bench.corpus.rows
    return last_line(lines)


def obstacles(error: BaseException) -> list[BaseException]:
    """What a group of errors is made of. Raises what is no obstacle but a defect."""
    if isinstance(error, BaseExceptionGroup):
        return [each for part in error.exceptions for each in obstacles(part)]
    if isinstance(error, (*OBSTACLES, DataPlaneError)):
        return [error]
    raise error


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 10), metavar="1-9")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the mixed load, a round")
    parser.add_argument(
        "--only", nargs="+", choices=[*GOALS, *PEER_KEYS], default=[], metavar="KEY", help="; ".join(GOALS)
    )
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where data is kept; a real disk")
    parser.add_argument("--seed", type=int, default=0, help="of the rows' order")
    parser.add_argument("--bench-python", type=Path, default=Path(".venv-bench/bin/python"), help="with the peers")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    args = parse()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # numpy's threads are fixed when it is loaded, which has happened by now.
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.dataplane", *sys.argv[1:]], os.environ | ONE_THREAD
        )
    cache = default_model_cache(os.environ).parent / "bench"
    try:
        kind = refuse_memory(args.dir)
        rows = corpus.load(args.rows, args.seed, cache, args.bench_python)
        with tempfile.TemporaryDirectory(prefix="acu-bench-", dir=args.dir) as name:
            bench = Bench(rows, Path(name), args.bench_python, args.rounds, args.seconds, frozenset(args.only))
            bench.notes["file system"] = kind
            gc.collect()
            settle_memory()  # as the daemon does, and the corpus is the benchmark's own
            tune_process()
            uvloop.run(run(bench))
    except (*OBSTACLES, DataPlaneError, BaseExceptionGroup) as error:
        for each in obstacles(error):
            print(f"not measured: {each}", file=sys.stderr)
        return 1
    if values := bench.figures.get("bytes_per_vector"):
        bench.notes["vectors that 12 GB hold"] = f"{MEMORY_BYTES / statistics.median(values) / 1e6:.1f} million"
    print(tables(bench))
    if args.json:
        print(one_line(bench))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
