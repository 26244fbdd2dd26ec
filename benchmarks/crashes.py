"""Kills a data plane again and again while it works, and checks each time that it lost nothing: `python -m benchmarks.crashes`.

One folder lives through all kills. A child (crashing.py) works in it, says what it does and what was acknowledged, and gets
SIGKILL at a random moment: while it works, while it opens, or while it closes. Then everything is checked (crashcheck.py);
sometimes only after a second kill. One line is printed a kill, and a summary at the end; the exit status is 1 if anything
was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.crashcheck import Check
from benchmarks.crashmodel import Model
from benchmarks.ending import tied, to_the_end

READY_S = 60.0
WORK_S = (0.2, 2.5)
MOMENTS = ("working",) * 7 + ("opening",) * 2 + ("closing",)
UNCHECKED_SHARE = 0.2  # of kills after which the next process begins at once


class Broken(Exception):
    """The child ended by itself; the message has its last words."""


class Child:
    """A process of crashing.py, and a thread that hears it, so that it never waits for us."""

    def __init__(self, command: list[str], model: Model) -> None:
        self._model = model
        self._said: set[str] = set()
        self._changed = threading.Condition()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `kill`
        self._process = subprocess.Popen(tied(command), stdout=subprocess.PIPE, stderr=self._errors)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                heard: list[Any] = json.loads(line)
                self._model.hear(heard)
                if len(heard) == 1:
                    with self._changed:
                        self._said.add(heard[0])
                        self._changed.notify_all()
        with self._changed:
            self._said.add("silent")
            self._changed.notify_all()

    def wait(self, word: str) -> None:
        """Until it has said that. Raises Broken."""
        with self._changed:
            heard = self._changed.wait_for(lambda: word in self._said or "silent" in self._said, READY_S)
        if not heard or word not in self._said:
            raise Broken(f"it never said {word!r}: {self.kill()[1]}")

    def close(self) -> None:
        """Tell it to close in order."""
        self._process.terminate()

    def end(self) -> int:
        """SIGKILL: its exit status."""
        self._process.kill()
        return self._process.wait()

    def kill(self) -> tuple[int, str]:
        """SIGKILL, and hear the rest. Returns its exit status and the end of what it said on standard error."""
        status = self.end()
        self._hearing.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace")[-3000:]
        self._errors.close()
        self._model.died()
        return status, words


class Crashes:
    """A folder and its kills."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.random = random.Random(seed)
        self.model = Model()
        self.moments: Counter[str] = Counter()
        self.problems: list[str] = []

    def live(self, life: int) -> str:
        """One process from its start to its kill; returns what it was doing. Raises Broken."""
        moment = "working" if life == 0 else self.random.choice(MOMENTS)
        command = [sys.executable, "-m", "benchmarks.crashing", "--dir", str(self.folder / "data")]
        command += ["--cold", str(self.folder / "cold"), "--seed", str(self.seed + life), "--life", str(life)]
        child = Child([*command, "--fill"] if life == 0 else command, self.model)
        try:
            self._play(child, moment)
        except BaseException:
            child.end()
            raise
        status, words = child.kill()
        if status not in (-9, 0) or "Traceback" in words:
            raise Broken(f"it ended by itself with status {status}: {words}")
        self.moments[moment] += 1
        return moment

    def _play(self, child: Child, moment: str) -> None:
        """Until it is to be killed. Raises Broken."""
        if moment == "opening":
            child.wait("opening")
            time.sleep(self.random.random() * 0.3)
        else:
            child.wait("ready")
            time.sleep(self.random.uniform(*WORK_S))
        if moment == "closing":
            child.close()
            child.wait("closing")
            time.sleep(self.random.random() * 0.3)

    async def check(self, life: int, *, archive: bool) -> dict[str, int]:
        """Open, check, close."""
        check = Check(self.folder / "data", self.folder / "cold", self.model, self.seed + life)
        self.problems += await check.run(archive=archive)
        return check.counts

    def run(self, kills: int, archive_every: int) -> None:
        """All of it. Stops at the first kill after which anything is wrong."""
        for life in range(kills):
            began = time.monotonic()
            moment = self.live(life)
            line = f"kill {life + 1:2d}  while {moment:8s} {self.model.acknowledged:6d} acknowledged so far"
            if life + 1 < kills and self.random.random() < UNCHECKED_SHARE:
                print(f"{line}, not checked before the next", flush=True)
                continue
            archive = (life + 1) % archive_every == 0 or life + 1 == kills
            counts = asyncio.run(self.check(life, archive=archive))
            verdict = "clean" if not self.problems else f"{len(self.problems)} PROBLEMS"
            also = ", archive restored and compared" if archive else ""
            print(f"{line}, {counts['rows']} rows: {verdict}{also} ({time.monotonic() - began:.1f} s)", flush=True)
            if self.problems:
                return


def main() -> int:
    """Read the arguments, kill, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the folder is made; default: the system's")
    parser.add_argument("--archive-every", type=int, default=5, help="kills")
    parser.add_argument("--json", action="store_true", help="a last line with the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crashes-", dir=args.dir) as folder:
        crashes = Crashes(Path(folder), args.seed)
        crashes.run(args.kills, args.archive_every)
    print("\n".join(crashes.problems[:40]))
    total = sum(crashes.moments.values())
    print(f"{total} kills ({dict(crashes.moments)}), {crashes.model.acknowledged} acknowledged calls: ", end="")
    print("nothing lost, undone or doubled" if not crashes.problems else f"{len(crashes.problems)} problems")
    if args.json:
        print(
            json.dumps({"kills": total, "acknowledged": crashes.model.acknowledged, "problems": len(crashes.problems)})
        )
    return 1 if crashes.problems else 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
