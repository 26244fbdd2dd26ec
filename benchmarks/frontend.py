"""What the front end alone can carry: ACU with the scripted engine, so that no model costs anything.

Two loads on one daemon: as many tokens and as many requests a second as one core takes, and many open streams at an
agent's pace (20 tokens/s each), with the event loop's lag and the memory that a stream costs. The daemon runs on one
logical CPU and the load generator on the others; where there is one only, both share it. The second load alternates
with a control on the same CPU: a loop that writes constant bytes at the same pace and does nothing else (bare.py),
which tells what is the machine's.

    python -m benchmarks.frontend [--rounds 3] [--streams 1000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from acu.terminal.client import Client, Target
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, last_line, percentile, spread, table
from benchmarks.server import OBSTACLES, Server, free_port

MODEL = "scripted"
PACE = 20  # tokens a second of a paced stream
TOKENS = 300  # of a paced stream: 15 s
OPENING_S = 3.0  # in which every stream must have begun
WINDOW_S = 10.0  # what the daemon's own figure of its lag looks back on

Rounds = dict[str, list[float]]  # by figure, one value a round


@dataclass(frozen=True)
class Bench:
    """Where the servers run and keep their files, and how much is asked of them."""

    folder: Path
    rounds: int
    streams: int
    cpus: tuple[int, ...]

    def daemon(self, name: str, tokens_per_s: float, streams: int) -> Server:
        """ACU, whose scripted engine answers at `tokens_per_s` a stream (0: as fast as it is read)."""
        port = free_port()
        script, config = self.folder / f"{name}-script.yaml", self.folder / f"{name}.yaml"
        script.write_text(json.dumps({"rules": [{"answer": "tokens ", "tokens_per_s": tokens_per_s}]}))
        network = {
            "bind_addr": f"127.0.0.1:{port}",
            "unix_socket": str(self.folder / f"{name}.sock"),
            "max_connections": streams + 64,
        }
        model = {"model": "scripted", "max_running": min(4096, streams + 64), "script": str(script)}
        audit = {"audit_log": str(self.folder / f"{name}-audit.log")}
        config.write_text(json.dumps({"network": network, "models": {"large": model}, "daemon": audit}))
        command = [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "-c", str(config)]
        return self.started(Server(name, command, port, "/readyz", self.folder / f"{name}.log"))

    def bare(self) -> Server:
        """The control."""
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.bare", "--port", str(port), "--pace", str(PACE)]
        return self.started(Server("bare", command, port, "/lag", self.folder / "bare.log"))

    def started(self, server: Server) -> Server:
        """Start it on the first CPU, wait until it is ready, and leave the others to the load generators."""
        try:
            os.sched_setaffinity(0, self.cpus[:1])  # inherited by the server
            server.start()
            os.sched_setaffinity(0, self.cpus[1:] or self.cpus)  # inherited by the load generators
            server.wait(60)
        except BaseException:
            server.stop()
            raise
        return server

    def lag_p99_ms(self, server: Server) -> float:
        """The server's own figure, in milliseconds, over the last ten seconds."""
        if server.name != "bare":
            client = Client(Target(sockets=(self.folder / f"{server.name}.sock",)), 30.0)
            return float(client.get("/acu/v1/status")["daemon"]["loop_lag_p99_ms"])
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/lag", timeout=30) as answer:
            return float(json.load(answer))

    def flat_out(self) -> Rounds:
        """Tokens and requests a second; `cores` below 1 say that it was the load generator that could give no more."""
        figures: Rounds = defaultdict(list)
        server = self.daemon("fast", 0, 128)
        try:
            server.load(MODEL, 64, 64, 64)
            for _ in range(self.rounds):
                for what, requests, tokens in (("tokens", 256, 512), ("requests", 4000, 1)):
                    seen = server.load(MODEL, 64, requests, tokens)
                    figures[f"{what}_s"].append(seen[what] / seen["wall_s"])
                    figures[f"{what}_cpu_s"].append(seen[what] / seen["cpu_s"])
                    figures[f"{what}_cores"].append(seen["cpu_s"] / seen["wall_s"])
        finally:
            server.stop()
        return figures

    def paced(self) -> dict[str, Rounds]:
        """Lag, CPU and memory of the daemon and of the control, while the streams run at PACE on each in turn."""
        servers: list[Server] = []
        figures: dict[str, Rounds] = {"paced": defaultdict(list), "bare": defaultdict(list)}
        try:
            servers.append(self.daemon("paced", PACE, self.streams))
            servers.append(self.bare())
            idle_mb = {}
            for server in servers:
                server.load(MODEL, 16, 16, 8)
                idle_mb[server.name] = server.rss_mb()  # once: what a round took is not all given back before the next
                server.pause()
            for number in range(self.rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    server.resume()
                    for key, value in self.paced_round(server, idle_mb[server.name]).items():
                        figures[server.name][key].append(value)
                    server.pause()
        finally:
            for server in servers:
                server.stop()
        return figures

    def paced_round(self, server: Server, idle_mb: float) -> dict[str, float]:
        """One load on one server; CPU, lag and memory are of the ten seconds after the opening."""
        with server.begin_load(MODEL, self.streams, self.streams, TOKENS) as client:
            time.sleep(OPENING_S)
            before, at = server.cpu_s(), time.monotonic()
            time.sleep(WINDOW_S)
            cores = (server.cpu_s() - before) / (time.monotonic() - at)
            lag_ms = self.lag_p99_ms(server)
            busy_mb = server.rss_mb()
            seen = server.end_load(client, self.streams * TOKENS)
        if max(seen["ttft"]) > OPENING_S:
            raise NotMeasured(f"{server.name}: a stream began after {max(seen['ttft']):.1f} s only")
        return {
            "loop_lag_p99_ms": lag_ms,
            "tokens_s": seen["tokens"] / seen["wall_s"],
            "cores": cores,
            "itl_p50_ms": percentile(seen["itl"], 0.5) * 1000,
            "itl_p99_ms": percentile(seen["itl"], 0.99) * 1000,
            "kib_a_stream": (busy_mb - idle_mb) * 1024 / self.streams,
        }


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    try:
        with tempfile.TemporaryDirectory(prefix="acu-bench-") as name:
            bench = Bench(Path(name), args.rounds, args.streams, cpus)
            fast, slow = bench.flat_out(), bench.paced()
    except OBSTACLES as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1

    title = f"64 streams, flat out, on CPU {cpus[0]} of {len(cpus)} (a second of wall time, and of the daemon's CPU)"
    print(table(title, ["figure", "median (lowest to highest round)"], [[k, spread(v)] for k, v in fast.items()]))
    ours, bare = slow["paced"], slow["bare"]
    title = f"{args.streams} open streams at {PACE} tokens/s each; loop lag to reach: under 10 ms"
    print(table(title, ["figure", "ours", "bare loop"], [[k, spread(ours[k]), spread(bare[k])] for k in ours]))
    if args.json:
        medians = {f"flat_{key}": statistics.median(values) for key, values in fast.items()}
        medians |= {key: statistics.median(values) for key, values in ours.items()}
        medians |= {f"bare_{key}": statistics.median(values) for key, values in bare.items()}
        print(last_line(medians))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
