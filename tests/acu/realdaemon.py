"""The real appliance as tests see it: a daemon with the real vLLM, its agents, and the real `openai` client."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil

from acu.errors import DaemonUnreachable
from acu.terminal.client import Client, Target
from tests.acu.running import ROOT, until
from tests.examples.loading import served

START_S = 400.0  # about 30 s on a machine that does nothing else
TELLER = {"routing": False, "sampling": {"temperature": 0.0}, "limits": {"tokens": 400}}
"""An agent without tools, which says the same whenever it is asked the same."""


@dataclass
class RealDaemon:
    """A daemon with real models, the travel desk and `teller`; `log` is its standard error."""

    process: subprocess.Popen[bytes]
    port: int
    unix: Path
    log: Path

    def get(self, path: str) -> Any:
        return Client(Target(sockets=(self.unix,)), 30.0).get(path, accept=(200, 503))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return Client(Target(sockets=(self.unix,)), 30.0).post(path, body)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(DaemonUnreachable):
            return bool(self.get("/readyz")["ready"])
        return False

    def engine(self) -> Any:
        """The chat model's engine, as /acu/v1/status shows it."""
        models = self.get("/acu/v1/status")["service"]["models"]
        return next(model["engines"][0] for model in models if model["role"] == "chat")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    @contextlib.contextmanager
    def client(self, *, over_unix: bool = False) -> Iterator[openai.OpenAI]:
        base = "http://localhost/v1" if over_unix else f"http://127.0.0.1:{self.port}/v1"
        http = openai.DefaultHttpxClient(transport=httpx2.HTTPTransport(uds=str(self.unix) if over_unix else None))
        with openai.OpenAI(base_url=base, api_key="none", timeout=START_S, max_retries=0, http_client=http) as client:
            yield client


@contextlib.contextmanager
def real_daemon(folder: Path, cache: Path, models: dict[str, Any], *, wait: bool = True) -> Iterator[RealDaemon]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "acu.yaml"
    document = served("travel", folder / "data")
    document["agents"] |= {"teller": TELLER}
    document |= {
        "network": {"bind_addr": f"127.0.0.1:{port}", "unix_socket": str(folder / "acu.sock")},
        "gpu": {"model_cache_dir": str(cache)},
        "models": models,
        "scheduler": {"restart_backoff_s": 0.2, "deadline_s": START_S},
    }
    config.write_text(json.dumps(document))
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "acu", "serve", "-c", str(config)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    daemon = RealDaemon(process, port, folder / "acu.sock", log)
    try:
        if wait:
            until(daemon.ready, "the daemon is ready", START_S)
        yield daemon
    finally:
        if process.poll() is None:
            children = daemon.children()
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, log.read_text()
            _, alive = psutil.wait_procs(children, timeout=5)
            assert not alive, f"children are left: {alive}"
            assert not daemon.unix.exists()
