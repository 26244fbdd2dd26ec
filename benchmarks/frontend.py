"""What the front end alone can carry: ACU with the scripted engine, so that no model costs anything.

Two loads on one daemon: as many tokens and as many requests a second as one core takes, and many open streams at an
agent's pace (20 tokens/s each), with the event loop's lag and the memory that a stream costs. The daemon has one core to
itself, and the load generator the others. The second load alternates with a control on the same core: a loop that
writes constant bytes at the same pace and does nothing else (bare.py), which tells what is the machine's.

    python -m benchmarks.frontend [--rounds 3] [--streams 1000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from acu.client import Client, Target
from benchmarks.report import last_line, percentile, table
from benchmarks.server import NotMeasured, Server, free_port

MODEL = "scripted"
PACE = 20  # tokens a second of a paced stream
TOKENS = 300  # of a paced stream: 15 s


def start(folder: Path, name: str, tokens_per_s: float, streams: int) -> Server:
    """A daemon whose scripted engine answers at `tokens_per_s` a stream (0: as fast as it is read)."""
    port = free_port()
    script = folder / f"{name}-script.yaml"
    script.write_text(json.dumps({"rules": [{"answer": "tokens ", "tokens_per_s": tokens_per_s}]}))
    config = folder / f"{name}.yaml"
    config.write_text(
        json.dumps(
            {
                "network": {
                    "bind_addr": f"127.0.0.1:{port}",
                    "unix_socket": str(folder / f"{name}.sock"),
                    "max_connections": streams + 64,
                },
                "models": {
                    "large": {"model": "scripted", "max_running": min(4096, streams + 64), "script": str(script)}
                },
                "daemon": {"audit_log": str(folder / f"{name}-audit.log")},
            }
        )
    )
    command = [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "-c", str(config)]
    return on_its_core(Server(name, command, port, "/readyz", folder / f"{name}.log"))


def start_bare(folder: Path) -> Server:
    """The control."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.bare", "--port", str(port)]
    return on_its_core(Server("bare", command, port, "/lag", folder / "bare.log"))


def on_its_core(server: Server) -> Server:
    """Start it on the first core, wait until it is ready, and leave the others to the load generators."""
    front, others = split_cores()
    os.sched_setaffinity(0, front)  # inherited by the server
    server.start()
    os.sched_setaffinity(0, others)  # inherited by the load generators
    server.wait(60)
    return server


def split_cores() -> tuple[set[int], set[int]]:
    """One core for the front end and the others for what loads it; all for both where there is only one."""
    cores = sorted(os.sched_getaffinity(os.getppid()))
    return ({cores[0]}, set(cores[1:])) if len(cores) > 1 else (set(cores), set(cores))


def loop_lag_p99_ms(server: Server, folder: Path) -> float:
    """The server's own figure, in milliseconds, over the last ten seconds."""
    if server.name != "bare":
        client = Client(Target(sockets=(folder / f"{server.name}.sock",)), 30.0)
        return float(client.get("/acu/v1/status")["daemon"]["loop_lag_p99_ms"])
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/lag", timeout=30) as answer:
        return float(json.load(answer))


def flat_out(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Tokens and requests a second that one core of front end carries."""
    figures: dict[str, list[float]] = {"tokens_s": [], "tokens_cpu_s": [], "requests_s": [], "requests_cpu_s": []}
    server = start(folder, "fast", 0, 128)
    try:
        server.load(MODEL, 64, 64, 64)
        for _ in range(rounds):
            seen = server.load(MODEL, 64, 256, 512)
            figures["tokens_s"].append(seen["tokens"] / seen["wall_s"])
            figures["tokens_cpu_s"].append(seen["tokens"] / seen["cpu_s"])
            seen = server.load(MODEL, 64, 4000, 1)
            figures["requests_s"].append(seen["requests"] / seen["wall_s"])
            figures["requests_cpu_s"].append(seen["requests"] / seen["cpu_s"])
    finally:
        server.stop()
    return figures


def paced(folder: Path, rounds: int, streams: int) -> dict[str, dict[str, list[float]]]:
    """The lag, CPU and memory of the daemon and of the control, while `streams` run at PACE on each in turn."""
    servers: list[Server] = []
    figures: dict[str, dict[str, list[float]]] = {"paced": defaultdict(list), "bare": defaultdict(list)}
    try:
        servers.append(start(folder, "paced", PACE, streams))
        servers.append(start_bare(folder))
        for server in servers:
            server.load(MODEL, 16, 16, 8)
            server.pause()
        for number in range(rounds):
            for server in servers if number % 2 == 0 else reversed(servers):
                server.resume()
                for key, value in paced_round(server, folder, streams).items():
                    figures[server.name][key].append(value)
                server.pause()
    finally:
        for server in servers:
            server.stop()
    return figures


def paced_round(server: Server, folder: Path, streams: int) -> dict[str, float]:
    """One load on one server; CPU, lag and memory are of ten seconds in its middle."""
    idle_mb = server.rss_mb()
    command = [
        *(sys.executable, "-m", "benchmarks.loadgen", "--port", str(server.port), "--model", MODEL),
        *("--concurrency", str(streams), "--requests", str(streams), "--max-tokens", str(TOKENS)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        time.sleep(3)  # every stream is open
        before, at = server.cpu_s(), time.monotonic()
        time.sleep(10)
        cores = (server.cpu_s() - before) / (time.monotonic() - at)
        lag_ms = loop_lag_p99_ms(server, folder)
        busy_mb = server.rss_mb()
        output, _ = client.communicate(timeout=120)
    seen = json.loads(output.splitlines()[-1])
    if client.returncode or seen["errors"] or seen["tokens"] != streams * TOKENS:
        raise NotMeasured(f"{server.name}: {seen['errors']} errors, {seen['tokens']} tokens of {streams * TOKENS}")
    return {
        "loop_lag_p99_ms": lag_ms,
        "tokens_s": seen["tokens"] / seen["wall_s"],
        "cores": cores,
        "itl_p50_ms": percentile(seen["itl"], 0.5) * 1000,
        "itl_p99_ms": percentile(seen["itl"], 0.99) * 1000,
        "kib_a_stream": (busy_mb - idle_mb) * 1024 / streams,
    }


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="acu-bench-") as name:
            fast = flat_out(Path(name), args.rounds)
            slow = paced(Path(name), args.rounds, args.streams)
    except (NotMeasured, subprocess.SubprocessError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1

    def row(key: str, *columns: list[float]) -> list[str]:
        return [key, *(f"{statistics.median(c):.2f} ({min(c):.2f} to {max(c):.2f})" for c in columns)]

    header = ["figure", "median (lowest to highest round)"]
    rows = [row(key, values) for key, values in fast.items()]
    print(table("64 streams, flat out (a second of wall time, and of the daemon's CPU)", header, rows))
    ours, bare = slow["paced"], slow["bare"]
    title = f"{args.streams} open streams at {PACE} tokens/s each; loop lag to reach: under 10 ms"
    print(table(title, ["figure", "ours", "bare loop"], [row(key, ours[key], bare[key]) for key in ours]))
    if args.json:
        medians = {f"flat_{key}": statistics.median(values) for key, values in fast.items()}
        medians |= {key: statistics.median(values) for key, values in ours.items()}
        medians |= {f"bare_{key}": statistics.median(values) for key, values in bare.items()}
        print(last_line(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
