"""How fast the daemon comes, lets go and leaves, with the scripted engine: what a supervisor and a client would wait for.

Each figure is of a daemon of its own or of a fresh connection, over several rounds:

- `listen_ms`: from exec to the first connection that the unix socket takes (to reach: under 500);
- `answer_ms`: from exec to the first answer, of `/healthz`;
- `abort_ms`: from the moment a client closes its connection in mid-stream until the daemon reports no running
  sequence, the round trip of asking included (to reach: the abort leaves within 20);
- `exit_ms`: from SIGTERM, with nothing running, to the end of the process.

    python -m benchmarks.lifecycle [--rounds 10] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from acu.terminal.client import Client, Target
from benchmarks.ending import start_tied, to_the_end
from benchmarks.report import NotMeasured, last_line, spread, table
from benchmarks.server import OBSTACLES

ABORTS = 5  # a daemon
TIMEOUT_S = 10.0
STATUS = "/acu/v1/status"
REQUEST = json.dumps(
    {"model": "large", "messages": [{"role": "user", "content": "go on"}], "stream": True, "ignore_eos": True}
).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def connected(path: Path) -> socket.socket:
    """A connection to the unix socket, as soon as one is taken. Raises NotMeasured."""
    deadline = time.perf_counter() + TIMEOUT_S
    while time.perf_counter() < deadline:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(TIMEOUT_S)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(str(path))
            return connection
        connection.close()
        time.sleep(0.001)
    raise NotMeasured(f"nobody listens on {path}")


def read_until(connection: socket.socket, wanted: bytes) -> None:
    """Read until `wanted` came. Raises NotMeasured when the answer ends before that, OSError when it takes too long."""
    seen = b""
    while wanted not in seen:
        if not (part := connection.recv(65536)):
            raise NotMeasured(f"the answer was {seen[:200]!r}")
        seen += part


def abort_ms(path: Path) -> float:
    """Begin a stream that would last for minutes, close it, and wait until nothing runs."""
    client = Client(Target(sockets=(path,)), TIMEOUT_S)
    with connected(path) as stream:
        stream.sendall(HEAD % len(REQUEST) + REQUEST)
        read_until(stream, b"data: ")
        if client.get(STATUS)["service"]["running"] != 1:
            raise NotMeasured("the stream does not run")
    closed = time.perf_counter()
    while client.get(STATUS)["service"]["running"]:
        if time.perf_counter() - closed > TIMEOUT_S:
            raise NotMeasured("the stream of a client that is gone goes on")
    return (time.perf_counter() - closed) * 1000


def measure(folder: Path, figures: dict[str, list[float]]) -> None:
    """One daemon's life."""
    path = folder / "acu.sock"
    config = folder / "acu.yaml"
    script = folder / "script.yaml"
    script.write_text(json.dumps({"rules": [{"answer": "on and on ", "tokens_per_s": 50}]}))
    model = {"model": "scripted", "engine": "scripted", "script": str(script)}
    network = {"bind_addr": None, "unix_socket": str(path)}
    config.write_text(json.dumps({"network": network, "models": {"large": model}}))
    command = [sys.executable, "-m", "acu", "serve", "-c", str(config)]
    daemon, started = start_tied(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with daemon:
        try:
            with connected(path) as first:
                figures["listen_ms"].append((time.perf_counter() - started) * 1000)
                first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                read_until(first, b"200 OK")
                figures["answer_ms"].append((time.perf_counter() - started) * 1000)
            for _ in range(ABORTS):
                figures["abort_ms"].append(abort_ms(path))
            asked = time.perf_counter()
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(30)
            figures["exit_ms"].append((time.perf_counter() - asked) * 1000)
            if code or path.exists():
                raise NotMeasured(
                    f"the daemon ended with {code}, its socket {'still' if path.exists() else 'not'} there"
                )
        finally:
            daemon.kill()


def main() -> int:
    """Measure, print the table, and with --json one line of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    figures: dict[str, list[float]] = defaultdict(list)
    try:
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory(prefix="acu-bench-") as name:
                measure(Path(name), figures)
    except OBSTACLES as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    goals = {"listen_ms": "under 500", "answer_ms": "", "abort_ms": "under 20", "exit_ms": ""}
    rows = [[key, spread(values, ".1f"), goals[key]] for key, values in figures.items()]
    print(table("A daemon's life, in milliseconds", ["figure", "median (lowest to highest)", "to reach"], rows))
    if args.json:
        print(last_line({key: statistics.median(values) for key, values in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
