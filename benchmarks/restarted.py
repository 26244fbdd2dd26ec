"""A process that holds the data plane and is killed: `python -m benchmarks.restarted --dir D --rows N --tail A B ...`.

It prints {"opening": true}, opens the data in D, searches until the answers are right, and prints {"right": true}. Then it
lets the data plane settle, prints {"settled": true, ...} with its memory, inserts the `--tail` (rows that no snapshot has
yet), each acknowledged durable, prints {"stale": true}, and waits to be killed. With `--fill` it says only the last,
after it has inserted all N rows and let them settle.

Right is: the row that was inserted last is among the answers to its own vector; and of the ten nearest of PROBES other
queries, nine of ten are among the answers. `rss` is bytes of resident memory: before the data plane was opened, and now.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import numpy as np
import psutil
import uvloop

from benchmarks.bench import K
from benchmarks.corpus import Corpus
from benchmarks.nearest import recall
from benchmarks.plane import Plane

PROBES = 3
RIGHT = 0.9  # recall of the probes


def tell(**what: object) -> None:
    """A line for the parent."""
    print(json.dumps(what), flush=True)


async def answer(plane: Plane, args: argparse.Namespace, rss: int) -> None:
    """Search until the answers are right, and settle."""
    truth = np.array(json.loads(args.truth), np.int64).reshape(PROBES, K)
    while not await right(plane, truth, args.tail[0] - 1):
        await asyncio.sleep(0.005)
    tell(right=True)
    await plane.settle()
    tell(settled=True, rss=[rss, psutil.Process().memory_info().rss], rows=sum(plane.rows().values()))


async def right(plane: Plane, truth: np.ndarray, last: int) -> bool:
    """Whether the answers are."""
    if last not in (await plane.search(plane.corpus.vectors[last])).rows:
        return False
    answers = await plane.search_all(plane.corpus.vectors[-PROBES:])
    return recall([answer.rows for answer in answers], truth) >= RIGHT


async def run(args: argparse.Namespace) -> None:
    """Until it is killed."""
    vectors = np.load(args.vectors, mmap_mode="r")
    buckets = np.zeros(len(vectors), np.int64)
    rss = psutil.Process().memory_info().rss
    if not args.fill:
        tell(opening=True)
    plane = await Plane.open(args.dir, Corpus(vectors, [], buckets, args.rows, args.vectors))
    if not args.fill:
        await answer(plane, args, rss)
    # Only now, since a process that answers has no use for the texts of rows to come.
    plane.corpus = Corpus(vectors, json.loads(args.texts.read_text()), buckets, args.rows, args.vectors)
    if args.fill:
        await plane.fill(0, args.rows)
        await plane.settle()
    await plane.fill(*args.tail)
    tell(stale=True)
    await asyncio.Event().wait()


def main() -> None:
    """Read the arguments and live."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--tail", type=int, nargs=2, required=True, help="rows to insert: from, and up to")
    parser.add_argument("--truth", required=True, help="the ten nearest rows of each probe, a JSON list of lists")
    parser.add_argument("--fill", action="store_true")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
