"""The daemon under systemd's protocols: activation, readiness, status, watchdog and the end, with real sockets."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from acu.reloading import LONGEST_LINE
from acu.terminal.client import Client, Target
from tests.acu.running import ROOT, DaemonFactory, until
from tests.acu.test_daemon import SLOW, Reader, open_stream


class Manager:
    """What systemd does at its end of a notification socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.seen: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def receive(self) -> list[dict[str, str]]:
        """Everything that was told so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(4096).decode().splitlines()
                self.seen.append(dict(line.partition("=")[::2] for line in lines))
        return self.seen

    def count(self, name: str) -> int:
        """How often `name` was told."""
        return sum(name in message for message in self.receive())

    def values(self, name: str) -> list[str]:
        """Every value of `name`, in order."""
        return [message[name] for message in self.receive() if name in message]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A notification socket that receives."""
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


def test_ready_is_told_while_the_model_still_loads_and_status_follows_it(
    daemon: DaemonFactory, manager: Manager
) -> None:
    running = daemon(script={"start_s": 3.0}, environ={"NOTIFY_SOCKET": manager.address}, ready=False)
    until(lambda: manager.count("READY") == 1, "READY")
    assert manager.receive()[0]["MAINPID"] == str(running.pid)
    assert running.client().get("/readyz", accept=(503,))["ready"] is False
    until(lambda: any("not ready" in status for status in manager.values("STATUS")), "the loading status")
    until(lambda: any(status.startswith("serving scripted") for status in manager.values("STATUS")), "serving")
    running.stop()
    until(lambda: manager.count("STOPPING") == 1, "STOPPING")
    assert int(manager.values("EXTEND_TIMEOUT_USEC")[0]) > 60e6


def test_a_reload_is_told_from_its_beginning_to_its_end(daemon: DaemonFactory, manager: Manager) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address})
    running.signal(signal.SIGHUP)
    until(lambda: manager.count("RELOADING") == 1, "RELOADING")
    until(lambda: manager.count("READY") == 2, "READY again")
    stamp = int(manager.values("MONOTONIC_USEC")[0])
    assert abs(stamp / 1e6 - time.clock_gettime(time.CLOCK_MONOTONIC)) < 60
    assert "reloaded" in manager.values("STATUS")


def test_a_reload_that_is_refused_is_told_with_its_reason_for_as_long_as_it_is_so(
    daemon: DaemonFactory, manager: Manager
) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address})
    good = running.config.read_text()
    running.config.write_text(good + "daemn: {}\n")
    running.signal(signal.SIGHUP)
    until(lambda: manager.count("READY") == 2, "READY again")
    (ended,) = [message["STATUS"] for message in manager.receive()[1:] if "READY" in message]
    assert ended.startswith("nothing was reloaded; the running settings stay: daemn: unknown key; did you mean daemon?")
    until(
        lambda: manager.values("STATUS")[-1] == f"serving scripted, scripted-embed; 0 running, 0 waiting; {ended}", "it"
    )
    running.config.write_text(good)
    running.signal(signal.SIGHUP)
    until(lambda: manager.values("STATUS")[-1] == "serving scripted, scripted-embed; 0 running, 0 waiting", "the end")


def test_a_configuration_that_holds_anything_does_not_end_the_daemon(daemon: DaemonFactory, manager: Manager) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address})
    good = running.config.read_text()
    running.config.write_text(good + "".join(f'"\\ud800\\e[2J{number}": 1\n' for number in range(1000)))
    running.signal(signal.SIGHUP)
    until(lambda: manager.count("READY") == 2, "READY again")
    (ended,) = [message["STATUS"] for message in manager.receive()[1:] if "READY" in message]
    assert ended.startswith(r"nothing was reloaded; the running settings stay: \ud800\x1b[2J0: ")
    assert len(ended) == LONGEST_LINE
    running.config.unlink()
    os.mkfifo(running.config)
    running.signal(signal.SIGHUP)
    until(lambda: manager.count("READY") == 3, "READY after a file that nobody writes")
    assert running.status()["service"]["ready"]


def test_a_reload_during_the_drain_is_too_late_to_be_told(daemon: DaemonFactory, manager: Manager) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address}, script=SLOW)
    reader = Reader(open_stream(running))
    until(lambda: running.running() == 1, "the run")
    running.signal(signal.SIGTERM)
    until(lambda: manager.count("STOPPING") == 1, "STOPPING")
    running.signal(signal.SIGHUP)
    reader.join()
    assert running.wait() == 0
    assert manager.count("RELOADING") == 0
    assert manager.values("STATUS")[-1] == "draining"
    assert "reloaded" not in running.events()


def test_the_watchdog_is_fed_while_the_loop_goes_on_and_not_while_it_stands(
    daemon: DaemonFactory, manager: Manager
) -> None:
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    running = daemon(environ=environ)
    until(lambda: manager.count("WATCHDOG") >= 5, "five meals")
    running.signal(signal.SIGSTOP)  # as a loop that is stuck
    until(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED, "the stop")
    before = manager.count("WATCHDOG")
    time.sleep(1.0)  # longer than the watchdog would wait
    assert manager.count("WATCHDOG") == before
    running.signal(signal.SIGCONT)
    until(lambda: manager.count("WATCHDOG") > before, "the next meal")


def test_no_watchdog_is_fed_that_was_not_asked_for(daemon: DaemonFactory, manager: Manager) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address})
    until(lambda: running.status()["daemon"]["loop_lag_p99_ms"] > 0, "beats of the pulse, which feeds it at each")
    assert manager.count("WATCHDOG") == 0


def test_nothing_of_the_hand_over_reaches_the_daemons_children(daemon: DaemonFactory, manager: Manager) -> None:
    running = daemon(environ={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000"})
    assert running.status()["service"]["ready"]
    # The environment block of a process does not change in /proc; that take_over removes it is tested with it.
    assert "NOTIFY_SOCKET" in Path(f"/proc/{running.pid}/environ").read_text()


ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True)
os.dup2(int(sys.argv[2]), 4); os.set_inheritable(4, True)
os.environ |= {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "unix:http"}
os.execv(sys.executable, [sys.executable, "-m", "acu", "serve", "--engine", "scripted"])
"""


def test_sockets_from_systemd_are_served_and_left_to_it(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    path = tmp_path / "activated.sock"
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(str(path))
        unix.listen()
        # Both wait in the backlog before the daemon even runs: activation serves them.
        fds = [os.dup(unix.fileno()), os.dup(tcp.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, *map(str, fds)],
            cwd=ROOT,
            env=clean_environ,
            pass_fds=fds,
            stderr=subprocess.DEVNULL,
        )
        for fd in fds:
            os.close(fd)
        over_unix = Client(Target(sockets=(path,)))
        over_tcp = Client(Target(url=f"http://127.0.0.1:{tcp.getsockname()[1]}"))
        assert over_unix.get("/healthz") == over_tcp.get("/healthz") == {"status": "ok"}
        addresses = over_unix.get("/acu/v1/status")["daemon"]["addresses"]
        assert addresses == [f"unix:{path}", f"127.0.0.1:{tcp.getsockname()[1]}"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert path.exists(), "systemd's socket is not ours to remove"
    assert not list((tmp_path / "run").iterdir()), "no socket of our own was made beside them"


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed")
def test_systemd_socket_activate_starts_the_daemon_at_the_first_connection(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    path = tmp_path / "activated.sock"
    environ = [f"--setenv={name}" for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "PYTHONPATH")]
    process = subprocess.Popen(
        [
            *("systemd-socket-activate", f"--listen={path}", "--fdname=http", *environ),
            *(sys.executable, "-m", "acu", "serve", "--engine", "scripted", "--no-tcp"),
        ],
        cwd=ROOT,
        env=clean_environ,
        stderr=subprocess.DEVNULL,
    )
    until(path.exists, "the activator listens")
    assert Client(Target(sockets=(path,))).get("/healthz") == {"status": "ok"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
