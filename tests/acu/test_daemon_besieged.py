"""The real daemon among clients that say nothing, read nothing, or stay for ever."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.acu.certificates import make_certificate
from tests.acu.http.hostile import chat, request
from tests.acu.running import DaemonFactory, RunningDaemon, until

SILENT = 400
OPEN_FILES = 300  # fewer than there are silent clients


def test_silent_tls_connections_starve_nobody(daemon: DaemonFactory, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    running = daemon({"network": {**files, "max_connections": 50, "header_timeout_s": 1.0}})
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    address = urlsplit(running.url)
    assert address.hostname is not None
    assert address.port is not None
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT):
            silent.enter_context(socket.create_connection((address.hostname, address.port)))
        for _ in range(20):
            assert running.client().get("/healthz") == {"status": "ok"}
        until(lambda: codes(running).count("handshake_timeout") == SILENT, "every handshake is given up", 60)
        assert running.client().get("/healthz") == {"status": "ok"}
    until(lambda: len(list(Path(f"/proc/{running.pid}/fd").iterdir())) < 64, "every descriptor is given back")
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    with (
        socket.create_connection((address.hostname, address.port)) as plain,
        context.wrap_socket(plain) as client,
    ):
        client.sendall(request(method="GET", path="/healthz"))
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def codes(running: RunningDaemon) -> list[str]:
    """Why connections were cut, as the log tells."""
    return [line["code"] for line in running.log_lines() if line["event"] == "connection cut"]


def read_nothing(running: RunningDaemon, stack: contextlib.ExitStack, raw: bytes) -> None:
    """A client that asks and does not read."""
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(str(running.socket))
    client.sendall(raw)


@pytest.mark.parametrize("signals", [1, 2])
def test_who_does_not_read_makes_no_end_a_forced_one(daemon: DaemonFactory, signals: int) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 0.5 if signals == 1 else 600}})
    model, embedder = (model["name"] for model in running.status()["service"]["models"][:2])
    inputs = json.dumps({"model": embedder, "input": ["x"] * 2048}).encode()
    stream = chat(model=model, stream=True, n=16, max_tokens=500, ignore_eos=True, logprobs=True, top_logprobs=20)
    with contextlib.ExitStack() as stack:
        read_nothing(running, stack, request(inputs, path="/v1/embeddings") * 3)
        read_nothing(running, stack, request(stream))
        until(lambda: running.running() > 0, "the stream waits for its reader")
        running.signal(signal.SIGTERM)
        until(lambda: "draining" in running.events(), "the drain")
        if signals == 2:
            running.signal(signal.SIGTERM)
        assert running.wait() == 0, running.log.read_text()
    assert "ended by force" not in running.log.read_text()


def test_the_audit_log_follows_its_path_on_sighup(daemon: DaemonFactory, tmp_path: Path) -> None:
    path, moved = tmp_path / "audit", tmp_path / "audit.1"
    running = daemon({"daemon": {"audit_log": str(path)}})

    def reload(event: str) -> dict[str, Any]:
        running.signal(signal.SIGHUP)
        until(lambda: event in running.events(), event)
        return next(line for line in running.log_lines() if line["event"] == event)

    path.rename(moved)
    path.mkdir()
    kept = reload("nothing was reloaded")["kept"]
    assert kept == {"the audit log and its old file": f"{path}: Is a directory"}
    running.client().get("/v1/models")
    until(lambda: b"/v1/models" in moved.read_bytes(), "a line in the old file")
    path.rmdir()
    assert reload("reloaded")["renewed"] == ["the audit log"]
    running.client().get("/healthz")
    until(lambda: path.exists() and b"/healthz" in path.read_bytes(), "a line in the new file")
    before = moved.stat().st_size
    running.stop()
    assert moved.stat().st_size == before
