"""An agent's run killed by SIGKILL at every moment of its log, and at random ones, and taken up again each time.

Of each life: what its client saw before the kill must be a beginning of the final answer, the run must have come to its end, and
the tool that is not idempotent must have run once at most (and the model been told so where nobody knows).

    python -m benchmarks.runkills [--random 20] [--every 1] [--seed 1] [--json]

`--every 3` takes every third moment of the log alone. A moment takes about three seconds: two processes are started for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from agentflow.agents.archive import Archive
from agentflow.agents.progress import Progress
from agentflow.agents.record import CallStarted, Ended, Event
from agentflow.events import TextDelta
from benchmarks.ending import tied, to_the_end
from dataplane import DataPlane, DataPlaneConfig

SLOW_TOKENS_S = 120.0
SLOW_RUN_S = 6.0  # about what a run takes at that rate, with the process's start
KILLED = -9


class Wrong(Exception):
    """What should not have been."""


def begin(folder: Path, moment: str = "", *, kill_after_s: float | None = None) -> tuple[str, int, int]:
    """One life: the text that its client saw, its exit code, and how many appends it had if it came to its end."""
    rate = "0" if kill_after_s is None else str(SLOW_TOKENS_S)
    command = [sys.executable, "-m", "benchmarks.runkilled", str(folder), "begin", moment or "never", rate]
    process = subprocess.Popen(tied(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            process.kill()
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    text, appends = "", 0
    for line in out.decode().splitlines(keepends=True):
        if line.endswith("\n"):  # a line that was cut was not seen
            said = json.loads(line)
            text, appends = (text + said, appends) if isinstance(said, str) else (text, said["appends"])
    return text, process.returncode, appends


def resume(folder: Path) -> None:
    """The next life, which takes up what is open."""
    command = [sys.executable, "-m", "benchmarks.runkilled", str(folder), "resume"]
    subprocess.run(tied(command), check=True, timeout=120, stdout=subprocess.DEVNULL)


async def logged(folder: Path) -> tuple[str, list[Event]] | None:
    """The run's id and its log; None if it had never begun."""
    plane = await DataPlane.open(DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=64))
    try:
        archive = Archive(plane.state)
        if await archive.open_runs():
            raise Wrong("a run is open still")
        found = await archive.page("default", None, 10)
        if not found:
            return None
        return found[0].id, [event for _, event in await archive.events("default", found[0].id)]
    finally:
        await plane.close()


def shown(run_id: str, events: list[Event]) -> str:
    """The text of a chat: that of the steps, with a blank line between."""
    progress, steps = Progress(run_id), Counter[int]()
    text = ""
    for event in events:
        for heard in progress.apply(event):
            if isinstance(heard, TextDelta):
                text += "\n\n" * (bool(text) and not steps[progress.step]) + heard.text
                steps[progress.step] += 1
    return text


def check(folder: Path, seen: str, whole: str) -> str:
    """What became of the run, in a word. Raises Wrong."""
    booked = len((folder / "booked").read_text()) if (folder / "booked").exists() else 0
    if booked > 1:
        raise Wrong(f"booked {booked} times")
    found = asyncio.run(logged(folder))
    if found is None:
        if seen or booked:
            raise Wrong("the client saw a run that is gone")
        return "had not begun"
    run_id, events = found
    text = shown(run_id, events)
    if not text.startswith(seen):
        raise Wrong(f"the client saw {seen!r}, and the answer is {text!r}")
    if not isinstance(events[-1], Ended) or events[-1].end != "completed":
        raise Wrong(f"the run ended with {events[-1]}")
    started = [event for event in events if isinstance(event, CallStarted) and event.name == "book"]
    if len(started) > 1:
        raise Wrong("the booking was started twice")
    if text == whole:
        return "the same answer"
    if text.endswith("I cannot tell whether it is booked."):
        return "outcome unknown"
    raise Wrong(f"the answer is {text!r}")


def main() -> int:
    """Kill, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=20, help="kills at random times, besides those of the log")
    parser.add_argument("--every", type=int, default=1, help="which of the log's moments: every so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="a last line with the figures")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="runkills-") as place:
        whole, _, appends = begin(_folder(place, "whole"))
        moments = [f"{number}{after}" for number in range(1, appends + 1) for after in ("", "+")][:: args.every]
        lives = [(moment, None) for moment in moments]
        lives += [("", chance.uniform(0.8, SLOW_RUN_S)) for _ in range(args.random)]
        outcomes: Counter[str] = Counter()
        problems: list[str] = []
        for number, (moment, after_s) in enumerate(lives):
            folder = _folder(place, str(number))
            name = f"before append {moment}" if after_s is None else f"after {after_s:.2f} s"
            name = name.replace("before", "after").rstrip("+") if moment.endswith("+") else name
            try:
                seen, code, _ = begin(folder, moment, kill_after_s=after_s)
                if code not in (KILLED, 0):
                    raise Wrong(f"it ended with {code}")  # noqa: TRY301
                resume(folder)
                # How often it appends depends on how the engine's tokens come: the last moments may not be reached.
                outcome = check(folder, seen, whole) if code == KILLED else "came to its end first"
            except Wrong as wrong:
                outcome = f"WRONG: {wrong}"
                problems.append(f"{name}: {wrong}")
            outcomes[outcome if outcome[:5] != "WRONG" else "wrong"] += 1
            print(f"kill {number + 1:3} {name:24} {outcome}", flush=True)
    print(f"\n{len(lives)} kills over a log of {appends} appends: {dict(outcomes)}")
    print("\n".join(problems) or "no text was contradicted, and nothing was booked twice")
    if args.json:
        print(json.dumps({"kills": len(lives), "appends": appends, "problems": len(problems), "outcomes": outcomes}))
    return 1 if problems else 0


def _folder(place: str, name: str) -> Path:
    folder = Path(place) / name
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(to_the_end(main))
