"""How long a data plane that was killed takes to its first right answer, and what its process holds in memory.

A process is filled, and then inserts another 2 % that no snapshot has yet, each acknowledged durable; then it is killed by
SIGKILL. `restart_s` runs from the start of the next process, Python and its imports included, to its line that says that
the answers are right (restarted.py says what right is); `open_s` is of that the time after the imports. Once it has settled
its resident memory is read, and it goes on to the next round: another 2 %, and the next kill. `rss_bytes_per_vector` is
what its memory grew by, from before the opening, over the rows.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, K
from benchmarks.ending import start_tied
from benchmarks.nearest import nearest
from benchmarks.report import NotMeasured
from benchmarks.restarted import PROBES

TAIL = 0.02  # of the rows
FILL_TIMEOUT_S = 1200.0
TIMEOUT_S = 120.0
KEYS = ("restart_s",)


class Child:
    """A process of `benchmarks.restarted`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process, self.began = start_tied(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0)

    def line(self, timeout_s: float) -> dict[str, Any]:
        """The next line that it prints. Raises NotMeasured when none comes."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise NotMeasured(f"the restarted data plane says nothing for {timeout_s:.0f} s")
        if not (line := self.process.stdout.readline()):
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise NotMeasured(f"the restarted data plane ended:\n{tail}")
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def child(command: list[str], log: Path) -> Iterator[Child]:
    """A process that is killed at the end, whatever happens."""
    started = Child(command, log)
    try:
        yield started
    finally:
        started.kill()


def measure(bench: Bench, texts: Path) -> None:
    """One filling, and a kill and a restart each round."""
    corpus = bench.corpus
    tail = max(1, int(corpus.rows * TAIL))
    first = corpus.rows - tail * (bench.rounds + 1)  # so that after the last round all rows are stored
    with bench.scratch("restart") as folder:
        base = [sys.executable, "-m", "benchmarks.restarted", "--dir", str(folder / "data")]
        base += ["--vectors", str(corpus.path), "--texts", str(texts), "--rows", str(first)]
        for number in range(bench.rounds + 1):
            stored = first + number * tail
            truth = nearest(corpus.vectors[:stored], corpus.vectors[-PROBES:], K).tolist()
            command = [*base, "--truth", json.dumps(truth), "--tail", str(stored), str(stored + tail)]
            with child(command if number else [*command, "--fill"], folder / "log") as process:
                if number:
                    one_round(bench, process, stored)
                if "stale" not in process.line(FILL_TIMEOUT_S):
                    raise NotMeasured("the restarted data plane said something else than expected")


def one_round(bench: Bench, process: Child, stored: int) -> None:
    """The first right answer, and the memory once it has settled."""
    opening = process.line(TIMEOUT_S)
    imported_s = time.perf_counter() - process.began
    right = process.line(TIMEOUT_S)
    took = time.perf_counter() - process.began
    settled = process.line(FILL_TIMEOUT_S)
    if "opening" not in opening or "right" not in right or settled.get("rows") != stored:
        raise NotMeasured(f"of {stored} rows the restarted data plane said: {right}, {settled}")
    before, after = settled["rss"]
    bench.add(restart_s=took, open_s=took - imported_s, rss_bytes_per_vector=(after - before) / stored)
    bench.say(f"restarted: right after {took:.2f} s")
