"""Preloading a model's weights against `dd` reading the same files, from a disk whose pages were let go of before each.

`--mb` of files as a model has them are written to a folder (of `--folder`'s disk, removed at the end). In each round both
read them, in turns that alternate: `dd if=FILE of=/dev/null bs=1M` file by file, and `acu.models.preload`. Before each the
files' pages are dropped, and it is asked whether they are gone: a file system that keeps them is not measured. As root the
whole page cache is dropped too (`--drop`), which is the box's and slows whatever else runs. What lies under this kernel (a
host's own cache) cannot be dropped, and is the same for both.

- `preload_ratio`: MB/s of the preload over dd's (to reach: 0.9 or more);
- `cpu_ratio`: seconds of CPU, the preload's over dd's;
- `again_mb_s`: a second preload, of what is in memory.

    python -m benchmarks.loading [--mb 1024] [--rounds 5] [--folder DIR] [--drop] [--json]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from acu import models
from acu.models.pagecache import cached_bytes
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, Ratio, last_line, spread, table
from benchmarks.server import OBSTACLES

SHARDS = 4
GOAL = 0.9


def write_shards(folder: Path, size_mb: int) -> list[Path]:
    """Files that no compression or hole makes smaller."""
    shards = [folder / f"model-{number + 1:05}-of-{SHARDS:05}.safetensors" for number in range(SHARDS)]
    for shard in shards:
        with shard.open("wb") as file:
            for _ in range(max(1, size_mb // SHARDS)):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    return shards


def let_go(shards: list[Path], *, everything: bool) -> None:
    """Drop the files' pages. Raises NotMeasured where they stay."""
    if everything:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    kept = 0
    for shard in shards:
        with shard.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            kept += cached_bytes(file.fileno()) or 0
    if kept:
        raise NotMeasured(f"{kept >> 20} MiB of the files stay in memory; choose --folder on a disk")


def cpu_seconds(who: int) -> float:
    """User and system time of this process or of its ended children."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def by_dd(shards: list[Path]) -> tuple[float, float]:
    """(seconds, seconds of CPU)."""
    before, began = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    for shard in shards:
        subprocess.run(["dd", f"if={shard}", "of=/dev/null", "bs=1M", "status=none"], check=True)
    return time.perf_counter() - began, cpu_seconds(resource.RUSAGE_CHILDREN) - before


def by_preload(shards: list[Path]) -> tuple[float, float]:
    """(seconds, seconds of CPU)."""
    before, began = cpu_seconds(resource.RUSAGE_SELF), time.perf_counter()
    models.preload(shards[0].parent)
    return time.perf_counter() - began, cpu_seconds(resource.RUSAGE_SELF) - before


def measure(folder: Path, size_mb: int, rounds: int, *, drop: bool) -> dict[str, list[float]]:
    """The figures, round by round. Raises NotMeasured."""
    shards = write_shards(folder, size_mb)
    size = sum(shard.stat().st_size for shard in shards) / 1e6
    figures: dict[str, list[float]] = defaultdict(list)
    ways = {"dd": by_dd, "preload": by_preload}
    for number in range(rounds):
        for way in sorted(ways, reverse=bool(number % 2)):
            let_go(shards, everything=drop)
            seconds, cpu = ways[way](shards)
            figures[f"{way}_mb_s"].append(size / seconds)
            figures[f"{way}_cpu_s"].append(cpu)
        models.preload(folder)
        figures["again_mb_s"].append(size / by_preload(shards)[0])
    return figures


def main() -> int:
    """Measure, print the table, and with --json one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1024, help="size of the files in MiB (1024)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path.home(), help="where to write them (the home folder)")
    parser.add_argument("--drop", action="store_true", help="drop the box's whole page cache before each, as root")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="acu-loading-", dir=args.folder) as name:
            figures = measure(Path(name), args.mb, args.rounds, drop=args.drop)
    except OBSTACLES as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    ratio = Ratio.of(figures["preload_mb_s"], figures["dd_mb_s"])
    cpu = Ratio.of(figures["preload_cpu_s"], figures["dd_cpu_s"])
    rows = [[key, spread(values), ""] for key, values in figures.items()]
    rows += [["preload_ratio", str(ratio), f"{GOAL} or more"], ["cpu_ratio", str(cpu), ""]]
    print(table(f"{args.mb} MiB read, median (lowest to highest)", ["figure", "value", "to reach"], rows))
    if args.json:
        told: dict[str, object] = {key: statistics.median(values) for key, values in figures.items()}
        told |= {"preload_ratio": ratio.median, "cpu_ratio": cpu.median, "spread": [ratio.low, ratio.high]}
        print(last_line(told))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
