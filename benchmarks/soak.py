"""How much memory a process that holds only the data plane takes, over minutes: `python -m benchmarks.soak`.

A child (soaking.py) is filled with three times as much data as it may have memory, and then carries a mixed load. Its
resident memory is read once a second from outside. It is to stay below the cap and OVERHEAD_MB for the interpreter, the
libraries and what they need for a moment. The curve's figures are printed for the filling and for each minute of the load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.ending import tied, to_the_end
from benchmarks.report import NotMeasured, last_line, percentile, table

OVERHEAD_MB = 150
DATA_SHARE = 3  # times the cap
ROW_BYTES = 1024  # of its vector
MIB = 1 << 20
FILL_ROWS_S = 300.0  # slower than that, and the filling is given up
END_S = 120.0


@dataclass(frozen=True)
class Sample:
    """One second: `rss` is bytes of resident memory, `counted` what the data plane says; `at` seconds since the start."""

    at: float
    phase: str
    rss: int
    counted: int
    operations: int
    errors: int


@dataclass
class Curve:
    """The samples in order."""

    samples: list[Sample] = field(default_factory=list)

    def figures(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Resident memory in MiB, and operations a second. Raises NotMeasured of nothing."""
        rss = [sample.rss / MIB for sample in samples]
        took = samples[-1].at - samples[0].at if len(samples) > 1 else 1.0
        done = samples[-1].operations - samples[0].operations if samples else 0
        return {
            "min": min(rss, default=0.0),
            "median": percentile(rss, 0.5),
            "p99": percentile(rss, 0.99),
            "max": max(rss, default=0.0),
            "counted": max((sample.counted for sample in samples), default=0) / MIB,
            "ops_s": done / took,
            "errors": samples[-1].errors - samples[0].errors,
        }

    def minutes(self) -> list[tuple[str, list[Sample]]]:
        """The filling, and each minute of the load after it."""
        parts: dict[str, list[Sample]] = {}
        began = next((sample.at for sample in self.samples if sample.phase == "mixed"), 0.0)
        for sample in self.samples:
            name = sample.phase if sample.phase != "mixed" else f"minute {int((sample.at - began) // 60) + 1}"
            parts.setdefault(name, []).append(sample)
        return list(parts.items())

    def report(self, cap_mb: int) -> str:
        """The curve for people."""
        header = ("", "min MiB", "median", "p99", "max", "counted", "ops/s", "errors")
        rows: list[list[object]] = []
        for name, samples in [*self.minutes(), ("all", self.samples)]:
            figures = self.figures(samples)
            rows.append(
                [
                    name,
                    *(f"{figures[key]:.0f}" for key in ("min", "median", "p99", "max", "counted", "ops_s", "errors")),
                ]
            )
        return table(f"Resident memory with a cap of {cap_mb} MiB, to stay below {cap_mb + OVERHEAD_MB}", header, rows)


class Child:
    """The process under load, and a thread that hears what it counts."""

    def __init__(self, folder: Path, rows: int, seconds: float, memory_mb: int) -> None:
        command = [sys.executable, "-m", "benchmarks.soaking", "--dir", str(folder / "data"), "--rows", str(rows)]
        command += ["--seconds", str(seconds), "--memory-mb", str(memory_mb)]
        self.process = subprocess.Popen(tied(command), stdout=subprocess.PIPE)
        self.last: dict[str, Any] = {"phase": "starting", "counts": {}, "errors": {}}
        self.all: dict[str, Any] = {}
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)
            self.all.update(self.last)

    def sample(self, at: float) -> Sample:
        """How it is now."""
        last = self.last
        return Sample(
            at,
            last["phase"],
            psutil.Process(self.process.pid).memory_info().rss,
            last.get("memory", 0),
            sum(Counter(last["counts"]).values()),
            sum(Counter(last["errors"]).values()),
        )


def soak(folder: Path, minutes: float, memory_mb: int) -> tuple[Curve, dict[str, Any]]:
    """Run it. Raises NotMeasured when the child does not end well."""
    rows = DATA_SHARE * memory_mb * MIB // ROW_BYTES
    child, curve, began = Child(folder, rows, 60 * minutes, memory_mb), Curve(), time.monotonic()
    deadline = began + rows / FILL_ROWS_S + 60 * minutes + END_S
    try:
        while child.process.poll() is None:
            if time.monotonic() > deadline:
                raise NotMeasured("the data plane was not filled in time, or did not end")
            try:
                sample = child.sample(time.monotonic() - began)
            except psutil.NoSuchProcess:
                break
            if sample.phase in {"filling", "mixed", "closing"}:
                curve.samples.append(sample)
            time.sleep(1)
    finally:
        child.process.kill()
        status = child.process.wait()
    if status or child.last["phase"] != "closed":
        raise NotMeasured(f"the data plane ended with status {status} while {child.last['phase']}")
    return curve, child.all


def main() -> None:
    """Read the arguments, soak, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of mixed load, after the filling")
    parser.add_argument("--memory-mb", type=int, default=200)
    parser.add_argument("--dir", type=Path, help="a folder on a real disk; default: the system's for temporary files")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="soak-", dir=args.dir) as folder:
            curve, said = soak(Path(folder), args.minutes, args.memory_mb)
    except NotMeasured as error:
        sys.exit(f"not measured: {error}")
    figures = curve.figures(curve.samples)
    below = figures["max"] < args.memory_mb + OVERHEAD_MB
    print(curve.report(args.memory_mb))
    print(f"counts: {said['counts']}; errors: {said['errors'] or 'none'}; rows at the end: {said.get('tiers')}")
    print(f"resident at the end of the imports: {said['rss_of_imports'] / MIB:.0f} MiB")
    print(
        f"the largest was {figures['max']:.0f} MiB: {'below' if below else 'ABOVE'} {args.memory_mb + OVERHEAD_MB} MiB"
    )
    if args.json:
        print(last_line({f"rss_{key}": round(value, 1) for key, value in figures.items()} | {"below": below}))


if __name__ == "__main__":
    sys.exit(to_the_end(main))
