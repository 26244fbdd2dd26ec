"""AgentBench: what the parts of the agents' benchmark share, where their figures go, and the host that they ask."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.agentscript import Forced, Tap
from benchmarks.report import NotMeasured
from benchmarks.server import Server, free_port

MIXED = (3.0, 1.0, 0.3)
"""Seconds of the three tools of the headline's answer, in the order of their calls."""


@dataclass(frozen=True)
class AgentBench:
    """How much is asked for. `mixed` and `durations`: seconds of the tools, of the headline's answer and of equal ones.

    `figures`: by key, one a round; `tables` and `notes` are for people.
    """

    folder: Path
    smollm2: Path
    peers_python: Path
    rounds: int
    mixed: tuple[float, ...] = MIXED
    durations: tuple[float, ...] = ()
    ways: tuple[str, ...] = ()
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, str] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, **values: float) -> None:
        """One more round's figures."""
        for key, value in values.items():
            self.figures[key].append(float(value))

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {what}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def host(self, model: Path, max_model_len: int) -> Iterator[AgentHost]:
        """ACU over a real engine with `model`, ready, until the end. Raises NotMeasured."""
        with tempfile.TemporaryDirectory(prefix="host-", dir=self.folder) as name:
            host = AgentHost(Path(name), model, max_model_len)
            host.force("ready")
            try:
                host.server.start()
                host.server.wait(600)
                self.say(f"ACU is ready with {model.name}")
                yield host
            finally:
                host.server.stop()


class AgentHost:
    """The process of agenthost.py, seen from outside."""

    def __init__(self, folder: Path, model: Path, max_model_len: int) -> None:
        self.folder = folder
        self._read = 0
        self.port = free_port()
        command = [
            *(sys.executable, "-m", "benchmarks.agenthost", "--folder", str(folder), "--model", str(model)),
            *("--port", str(self.port), "--max-model-len", str(max_model_len)),
        ]
        self.server = Server("acu", command, self.port, "/readyz", folder / "acu.log")

    def force(self, *texts: str, salted: bool = False, scripts: tuple[tuple[str, ...], ...] = ()) -> None:
        """From now on the model says these, one a step, or (`scripts`) each run others."""
        new = self.folder / "forced.new"
        new.write_bytes(msgspec.json.encode(Forced(texts=texts, salted=salted, scripts=scripts)))
        new.replace(self.folder / "forced.json")

    def taps(self, count: int) -> list[Tap]:
        """The generations since the last call, of which there must be `count`. Raises NotMeasured."""
        new = self.new_taps()
        if len(new) != count:
            raise NotMeasured(f"the model spoke {len(new)} times, and should have done so {count} times")
        return new

    def new_taps(self) -> list[Tap]:
        """The generations since the last call, however many."""
        lines = (self.folder / "taps.jsonl").read_bytes().splitlines()
        new, self._read = lines[self._read :], len(lines)
        return [msgspec.json.decode(line, type=Tap) for line in new]
