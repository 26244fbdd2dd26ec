"""Server: one server process under measurement, with its children, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from acu.errors import AcuError
from benchmarks.ending import tied
from benchmarks.report import NotMeasured

OBSTACLES = (NotMeasured, AcuError, OSError, subprocess.SubprocessError, psutil.Error)
"""What may keep a benchmark from measuring."""


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """A process that serves; `ready_path` answers 200 once it does. The front is the process itself, not its children."""

    name: str
    command: list[str]
    port: int
    ready_path: str
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; see `wait`."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                tied(self.command),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 240.0) -> None:
        """Block until the server is ready. Raises NotMeasured with the end of its log."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready_path}", timeout=5) as answer,
            ):
                if answer.status == 200:
                    return
            time.sleep(0.5)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        raise NotMeasured(f"{self.name} did not become ready:\n{tail}")

    @property
    def front(self) -> psutil.Process:
        """The process that talks to clients."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    def cpu_s(self) -> float:
        """User + system seconds of the front process so far, its threads included and its children not."""
        times = self.front.cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        """Resident memory of the front process in MiB."""
        return float(self.front.memory_info().rss) / 2**20

    def load(self, model: str, concurrency: int, requests: int, tokens: int) -> dict[str, Any]:
        """One round of load by a process of its own: what it saw (see loadgen.Result), and `cpu_s` of the front."""
        before = self.cpu_s()
        with self.begin_load(model, concurrency, requests, tokens) as client:
            seen = self.end_load(client, requests * tokens)
        return seen | {"cpu_s": self.cpu_s() - before}

    def begin_load(self, model: str, concurrency: int, requests: int, tokens: int) -> subprocess.Popen[str]:
        """Start the load; see `end_load`."""
        command = [
            *(sys.executable, "-m", "benchmarks.loadgen", "--port", str(self.port), "--model", model),
            *("--concurrency", str(concurrency), "--requests", str(requests), "--max-tokens", str(tokens)),
        ]
        return subprocess.Popen(tied(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end_load(self, client: subprocess.Popen[str], asked: int) -> dict[str, Any]:
        """Wait for a load that asks for `asked` tokens in all: what it saw. Raises NotMeasured if that is not all of them."""
        try:
            output, errors = client.communicate(timeout=600)
        except BaseException:
            client.kill()
            raise
        if client.returncode:
            raise NotMeasured(f"the load on {self.name} failed:\n{output[-500:]}{errors[-2000:]}")
        seen: dict[str, Any] = json.loads(output.splitlines()[-1])
        if seen["errors"] or seen["tokens"] != asked:
            raise NotMeasured(f"{self.name}: {seen['errors']} errors, {seen['tokens']} tokens of {asked}")
        return seen

    def _tree(self) -> list[psutil.Process]:
        return [self.front, *self.front.children(recursive=True)]

    def pause(self) -> None:
        """Stop the whole tree, so that it costs a peer under measurement nothing."""
        for process in self._tree():
            process.suspend()

    def resume(self) -> None:
        """Let the tree go on."""
        for process in self._tree():
            process.resume()

    def stop(self) -> None:
        """End the tree, in order first, by force after 30 s; its children too, which have ten more to clear up after them."""
        if self.process is None:
            return
        if self.process.poll() is None:
            with contextlib.suppress(psutil.Error):  # of a child that ends meanwhile; the others are ended below
                self.resume()
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        deadline = time.monotonic() + 10
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, 0)  # the session that `start` made, while anybody is left of it
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
