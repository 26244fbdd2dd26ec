"""The real daemon as tests see it: a process with its addresses and its log; and running `acu` commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from acu.errors import DaemonUnreachable
from acu.terminal.client import Client, Target

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0  # a bound for a machine that does many other things
STOP_S = 60.0


@dataclass
class RunningDaemon:
    """A daemon's process. `url` is its TCP address, `log` the file with its standard error."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path
    config: Path
    environ: dict[str, str]
    url: str = ""
    checked: bool = field(default=False, repr=False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def client(self, timeout_s: float | None = 30.0) -> Client:
        """A client over the unix socket."""
        return Client(Target(sockets=(self.socket,)), timeout_s)

    def status(self) -> dict[str, Any]:
        """What /acu/v1/status tells."""
        report: dict[str, Any] = self.client().get("/acu/v1/status")
        return report

    def running(self) -> int:
        """How many runs are on an engine."""
        return int(self.status()["service"]["running"])

    def log_lines(self) -> list[dict[str, Any]]:
        """The log so far, one object a line."""
        return [
            json.loads(line)
            for line in self.log.read_text().splitlines()
            if line.startswith("{") and line.endswith("}")
        ]

    def events(self) -> list[str]:
        """What the log says happened."""
        return [line["event"] for line in self.log_lines()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it has ended; nothing of it may be left then."""
        code = self.process.wait(STOP_S)
        self.checked = True
        assert not self.socket.exists(), f"{self.socket} is left"
        return code

    def stop(self) -> None:
        """SIGTERM, an orderly end, and nothing left."""
        children = psutil.Process(self.pid).children(recursive=True)
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log.read_text()
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive, f"children are left: {alive}"


DaemonFactory = Callable[..., RunningDaemon]


def acu(*words: str, environ: Mapping[str, str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run an `acu` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "acu", *words],
        cwd=ROOT,
        env=dict(environ),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def isolated_environ(folder: Path) -> dict[str, str]:
    """An environment in which no configuration, socket or model of the user is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACU_", "XDG_", "LISTEN_"))}
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return kept | {
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
    }


def wait_until_it_answers(running: RunningDaemon, *, ready: bool) -> None:
    """Wait for /readyz, and (ready) for it to say 200. Fills `url`."""
    give_up_at = time.monotonic() + START_S
    while True:
        if running.process.poll() is not None:
            running.checked = True
            pytest.fail(f"the daemon did not start: {running.log.read_text()}")
        with contextlib.suppress(DaemonUnreachable):
            readiness = running.client().get("/readyz", accept=(200, 503))
            if readiness["ready"] or not ready:
                addresses = running.status()["daemon"]["addresses"]
                running.url = next((f"http://{a}" for a in addresses if not a.startswith("unix:")), "")
                return
        assert time.monotonic() < give_up_at, f"the daemon is not ready: {running.log.read_text()}"
        time.sleep(0.05)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Wait for something that must happen."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, f"did not happen in {timeout_s} s: {what}"
        time.sleep(0.02)
