"""The peers of the data plane, each in processes of its own on .venv-bench's Python.

These are raw hnswlib (rawgraph.py), Chroma's server over HTTP, Qdrant's local mode and LanceDB (peerstore.py). They answer
commands (commands.py), and are stopped (SIGSTOP) in between, so that they cost whatever else is measured nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.ending import tied
from benchmarks.report import NotMeasured
from benchmarks.server import Server, free_port

NAMES = ("chroma", "qdrant", "lancedb")
FILL_TIMEOUT_S = 1800.0
QUIET = {"ANONYMIZED_TELEMETRY": "False", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Peer:
    """One store, filled and stopped between its turns."""

    name: str
    folder: Path
    command: list[str]
    server: Server | None = None
    process: subprocess.Popen[bytes] | None = None
    answers: bytearray = field(default_factory=bytearray)

    def start(self) -> None:
        """Start it and wait until it answers. Raises NotMeasured."""
        if self.server is not None:
            self.server.start()
            self.server.wait(120)
        with (self.folder / "errors.log").open("wb") as errors:
            self.process = subprocess.Popen(
                tied(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **QUIET, "HOME": str(self.folder)},
                bufsize=0,
            )
        self._answer(120)
        self._suspend()

    def ask(self, timeout_s: float = 300.0, **command: object) -> dict[str, Any]:
        """One command and its answer, while it and its server run; afterwards they are stopped. Raises NotMeasured."""
        with self._running():
            assert self.process is not None
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: its log, which the answer's absence shows, says why
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
            return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.answers:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise NotMeasured(f"{self.name} does not answer for {timeout_s:.0f} s")
            if not (part := self.process.stdout.read(65536)):
                tail = "\n".join((self.folder / "errors.log").read_text(errors="replace").splitlines()[-15:])
                raise NotMeasured(f"{self.name} ended:\n{tail}")
            self.answers += part
        line, _, rest = bytes(self.answers).partition(b"\n")
        self.answers[:] = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _processes(self) -> list[psutil.Process]:
        found = [] if self.process is None else [psutil.Process(self.process.pid)]
        if self.server is not None and self.server.process is not None:
            found.append(self.server.front)
        return [*found, *(child for process in found for child in process.children(recursive=True))]

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        for process in self._processes():
            process.resume()
        try:
            yield
        finally:
            self._suspend()

    def _suspend(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self._processes():
                process.suspend()

    def stop(self) -> None:
        """End it and its server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        if self.server is not None:
            self.server.stop()


def peer(name: str, folder: Path, python: Path, vectors: Path, texts: Path) -> Peer:
    """A store, not yet started, that keeps its data in `folder`. Raises NotMeasured without .venv-bench."""
    if name != "chroma":
        return _peer(name, folder, python, "peerstore", name, "--dir", folder, "--vectors", vectors, "--texts", texts)
    port = free_port()
    made = _peer(name, folder, python, "peerstore", name, "--dir", folder, "--vectors", vectors, "--texts", texts,
                 "--port", port)  # fmt: skip
    serve = [str(python.parent / "chroma"), "run", "--path", str(folder / "data"), "--host", "127.0.0.1"]
    env = {**QUIET, "HOME": str(folder)}
    made.server = Server(name, [*serve, "--port", str(port)], port, "/api/v2/heartbeat", folder / "server.log", env)
    return made


def raw_graph(folder: Path, python: Path, vectors: Path) -> Peer:
    """hnswlib alone, not yet started. Raises NotMeasured without .venv-bench."""
    return _peer("hnswlib", folder, python, "rawgraph", "--vectors", vectors)


def _peer(name: str, folder: Path, python: Path, module: str, *arguments: object) -> Peer:
    if not python.is_file():
        raise NotMeasured(f"no {python}: run scripts/setup --bench first")
    folder.mkdir()
    return Peer(name, folder, [str(python), "-m", f"benchmarks.{module}", *map(str, arguments)])


@contextlib.contextmanager
def started(peers: list[Peer]) -> Iterator[None]:
    """All of them run, and are stopped until they are asked; they end at the end."""
    try:
        for each in peers:
            each.start()
        yield
    finally:
        for each in peers:
            each.stop()


def fill(peers: list[Peer], rows: int, say: Callable[[str], None]) -> None:
    """Fill the stores with the first `rows` rows. Raises NotMeasured."""
    for each in peers:
        took = each.ask(FILL_TIMEOUT_S, do="fill", rows=rows)["fill_s"]
        say(f"{each.name}: filled, {rows / took:.0f} rows/s")
