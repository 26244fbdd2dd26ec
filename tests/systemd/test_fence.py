"""The daemon lives within what its unit leaves open: answers, tools, readers of files, the watchdog, a reload, the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from openai import OpenAI

from tests.acu.running import ROOT, until
from tests.acu.test_daemon_systemd import Manager
from tests.systemd.fence import USER

KEY = "sk-acu-0123456789abcdef"
TOOLS = '''
import ctypes, os, pathlib, socket, subprocess
from agentflow.tools.function import tool

def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return error.strerror
    return "done"

@tool
def attempts() -> str:
    """Attempts what the fence forbids, and what it does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    def unshare():
        if libc.unshare(0x10000000) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    told = {
        "program": outcome(lambda: subprocess.run(["/bin/true"], check=True)),
        "tcp": outcome(lambda: socket.socket()),
        "addresses": outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
        "raw": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "namespace": outcome(unshare),
        "owner": outcome(lambda: os.chown(".", 0, 0)),
        "program's place": outcome(lambda: pathlib.Path(PLACE).write_text("x")),
        "homes": outcome(lambda: pathlib.Path("/root/.bashrc").read_text()),
        "binding": outcome(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0))),
        "own folder": outcome(lambda: pathlib.Path("/var/lib/acu/0/tried").write_text("x")),
        "uid": os.getuid(),
    }
    return ", ".join(f"{name}: {what}" for name, what in told.items())
'''
CALL = '<tool_call>{"name": "attempts", "arguments": {}}</tool_call>'
SCRIPT = {"rules": [{"match": "^try$", "answer": CALL}, {"match": "capital", "answer": "Paris."}]}
CONFIG: dict[str, Any] = {
    "models": {
        "large": {"model": "scripted", "engine": "scripted", "script": "script.yaml"},
        "embed": {"model": "scripted-embed", "engine": "scripted"},
    },
    "data_plane": {"hot_layer_mem_mb": 64},
    "tools": {"python": {"mine": {"module": "mine.py", "warm": 1}}},
    "agents": {"desk": {"tools": ["attempts"], "answer": "result", "routing": False}},
}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace and another user need root"),
    pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd is not installed"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What fence.py is to show the daemon."""
    for name in ("etc", "state", "cache"):
        (tmp_path / name).mkdir(mode=0o755)
    etc = tmp_path / "etc"
    (etc / "0.yaml").write_text(yaml.safe_dump(CONFIG))
    (etc / "script.yaml").write_text(yaml.safe_dump(SCRIPT))
    (etc / "mine.py").write_text(TOOLS.replace("PLACE", repr(str(ROOT / "acu" / "tried"))))
    (etc / "0.keys").write_text(f"- {{name: first, key: {KEY}, scopes: [inference, admin]}}\n")
    (etc / "0.keys").chmod(0o600)
    return tmp_path


@pytest.fixture
def manager() -> Iterator[Manager]:
    """A notification socket in no file system."""
    manager = Manager(f"\0acu-fence-{os.getpid()}")
    yield manager
    manager.close()


class Fenced:
    """The daemon behind sockets that systemd-socket-activate opened, which starts it at the first connection."""

    def __init__(self, folder: Path, manager: Manager) -> None:
        self.socket = folder / "0.sock"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        unit = ":".join(str(ROOT / "systemd" / name) for name in ("acu@.service", "cpu.conf"))
        environ = {
            "NOTIFY_SOCKET": manager.address.replace("\0", "@"),
            "WATCHDOG_USEC": "1000000",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *("systemd-socket-activate", f"--listen={self.socket}", f"--listen=127.0.0.1:{self.port}"),
                    *("--fdname=acu:acu", *(f"--setenv={name}={value}" for name, value in environ.items())),
                    *(sys.executable, str(ROOT / "tests" / "systemd" / "fence.py"), unit, "0", str(folder)),
                    *(sys.executable, "-m", "acu", "-c", "/srv/0.yaml", "serve"),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
                stdout=log,
            )
        until(lambda: self.socket.exists() and self.accepts(), "the activator listens")

    def accepts(self) -> bool:
        """Whether both sockets do, of which the second is opened last."""
        return any(
            each.laddr.port == self.port for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN
        )

    def end(self) -> None:
        """Whatever is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def fenced(folder: Path, manager: Manager) -> Iterator[Fenced]:
    """The daemon, ended after the test."""
    running = Fenced(folder, manager)
    yield running
    running.end()


def test_the_daemon_does_all_its_work_within_the_fence_of_its_unit(
    fenced: Fenced, manager: Manager, folder: Path
) -> None:
    url = f"http://127.0.0.1:{fenced.port}/v1"
    with OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60) as api:
        asked = [{"role": "user", "content": "capital?"}]
        parts = api.chat.completions.create(model="large", messages=asked, stream=True)  # type: ignore[call-overload]
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "Paris."
        answer = api.chat.completions.create(model="agent/desk", messages=[{"role": "user", "content": "try"}])
        told = answer.choices[0].message.content
        assert told is not None
        assert (
            "program: done, tcp: done, addresses: done, raw: Address family not supported by protocol, "
            "namespace: Operation not permitted, owner: Operation not permitted, program's place: Read-only file system, "
            f"homes: {os.strerror(2)}, binding: done, own folder: done, uid: {USER}"
        ) in told
        store = api.vector_stores.create(name="town")
        for name, content in (("hours.md", b"# Hours\n\nOpen from nine."), ("fees.html", b"<p>A card costs 12.</p>")):
            file = api.files.create(file=(name, content), purpose="assistants")
            done = api.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=50)
            assert (done.status, done.last_error) == ("completed", None)
    assert httpx2.get(f"{url}/models", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert (folder / "state" / "data").is_dir(), "StateDirectory= holds the data"
    assert manager.count("READY") == 1
    until(lambda: any(status.startswith("serving") for status in manager.values("STATUS")), "serving")
    until(lambda: manager.count("WATCHDOG") >= 3, "three meals of the watchdog")
    fenced.process.send_signal(signal.SIGHUP)
    until(lambda: manager.count("RELOADING") == 1 and manager.count("READY") == 2, "a reload")
    daemon = psutil.Process(fenced.process.pid)
    assert (daemon.uids().real, daemon.nice()) == (USER, 0)
    children = daemon.children(recursive=True)
    fenced.process.send_signal(signal.SIGTERM)
    assert fenced.process.wait(60) == 0, fenced.log.read_text()
    assert manager.count("STOPPING") == 1
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert fenced.socket.exists(), "systemd's socket is not the daemon's to remove"


def test_over_the_unix_socket_root_needs_no_key(fenced: Fenced) -> None:
    transport = httpx2.HTTPTransport(uds=str(fenced.socket))
    with httpx2.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
        status = client.get("/acu/v1/status").json()
    assert status["daemon"]["addresses"] == [f"unix:{fenced.socket}", f"127.0.0.1:{fenced.port}"]
    assert status["daemon"]["pid"] == fenced.process.pid
    assert json.dumps(status).count("/var/lib/acu/0/data") >= 1
