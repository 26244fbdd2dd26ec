"""The real daemon for tests: `python -m acu serve --engine scripted`, started, waited for, stopped and looked after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from acu.client import Client, Target
from acu.errors import DaemonUnreachable

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

    def log_lines(self) -> list[dict[str, Any]]:
        """The log so far, one object a line."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

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
        gone, alive = psutil.wait_procs(children, timeout=5)
        del gone
        assert not alive, f"children are left: {alive}"


def acu(*words: str, environ: Mapping[str, str] | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run an `acu` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "acu", *words],
        cwd=ROOT,
        env=dict(environ or os.environ),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


@pytest.fixture
def clean_environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which no configuration, socket or model of the user is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACU_", "XDG_", "LISTEN_"))}
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    return kept | {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
    }


DaemonFactory = Callable[..., RunningDaemon]


@pytest.fixture
def daemon(tmp_path: Path, clean_environ: dict[str, str]) -> Iterator[DaemonFactory]:
    """Starts daemons; each that still runs at the end of the test is stopped and must leave nothing.

    `config` is laid over the test's own configuration, `script` is the scripted engine's, `flags` are more words of
    the command line. With `ready=False` it returns as soon as the daemon accepts.
    """
    started: list[RunningDaemon] = []

    def start(
        config: Mapping[str, Any] | None = None,
        *,
        script: Mapping[str, Any] | None = None,
        flags: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> RunningDaemon:
        number = len(started)
        socket = tmp_path / f"d{number}" / "acu.sock"
        document: dict[str, Any] = {"network": {"bind_addr": "127.0.0.1:0", "unix_socket": str(socket)}}
        for section, values in (config or {}).items():
            document[section] = document.get(section, {}) | dict(values)
        socket = Path(document["network"]["unix_socket"])
        path = tmp_path / f"acu{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        if script is not None:
            (tmp_path / f"script{number}.yaml").write_text(yaml.safe_dump(dict(script)))
            flags = (*flags, "--script", str(tmp_path / f"script{number}.yaml"))
        log = tmp_path / f"log{number}"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "acu", "serve", "-c", str(path), "--engine", "scripted", *flags],
                cwd=ROOT,
                env={**clean_environ, **(environ or {})},
                stdout=stderr,
                stderr=stderr,
            )
        running = RunningDaemon(process, socket, log, path, {**clean_environ, **(environ or {})})
        started.append(running)
        wait_until_it_answers(running, ready=ready)
        return running

    yield start
    for running in started:
        if running.checked:
            continue
        if running.process.poll() is None:
            running.stop()
        else:
            pytest.fail(f"the daemon ended by itself with {running.process.returncode}: {running.log.read_text()}")


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
