"""Descriptors under a flood: clients that ask once over a new connection each and never close it.

The scripted engine, so that the front end alone is met. `--rate` connections a second for `--seconds`, each with one
chat request, over TCP on loopback and then over the unix socket, with a daemon of its own each. While they come, `/healthz` is
asked every 100 ms over connections of its own. The daemon's descriptors are counted in /proc before, every 200 ms, at the
end of the flood, and once `idle_timeout_s` has passed.

- `answered_share`: of the requests, those that got a 200 (`refused`: a 503 with Retry-After; `lost`: anything else);
- `fds_before`, `fds_peak`, `fds_after`, and `fds_bound` = network.max_connections + acu.process.descriptors.SPARE (to reach: the
  peak within it, and after the timeout as many as before);
- `answer_p50_ms`, `answer_p99_ms`: from the connection's begin to the answer's end;
- `healthz_max_ms`, `healthz_failed`: the longest that it took, and how often it was not 200.

    python -m benchmarks.connections [--rate 300] [--seconds 60] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from acu.process.descriptors import SPARE
from acu.terminal.client import Client, Target
from benchmarks.ending import start_tied, to_the_end
from benchmarks.report import NotMeasured, last_line, percentile, table
from benchmarks.server import OBSTACLES, free_port

MAX_CONNECTIONS = 4096  # the default
IDLE_S = 75.0  # the default
START_S = 30.0
ANSWER_S = 30.0
BODY = json.dumps({"model": "large", "messages": [{"role": "user", "content": "hello"}]}).encode()
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass
class Seen:
    """What one flood brought."""

    answers: Counter[str] = field(default_factory=Counter)
    answer_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    unwell: int = 0
    fds: list[int] = field(default_factory=list)
    kept: list[asyncio.StreamWriter] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where the daemon is asked: a port of the loopback, or a unix socket."""

    way: str
    port: int
    path: Path

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        if self.way == "unix":
            return await asyncio.open_unix_connection(self.path)
        return await asyncio.open_connection("127.0.0.1", self.port)


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of an answer, which is read to its end. Raises what a connection that breaks off raises."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return int(head.split()[1])


async def ask_and_stay(place: Place, seen: Seen) -> None:
    """One request over one connection, which stays open on this side for ever."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await place.connect()
            seen.kept.append(writer)
            writer.write(ASK)
            status = await status_of(reader)
    except (OSError, EOFError, TimeoutError) as error:
        seen.answers[type(error).__name__] += 1
        return
    seen.answers[str(status)] += 1
    if status == 200:
        seen.answer_ms.append((time.perf_counter() - began) * 1000)


async def health(place: Place) -> int:
    """The status of `/healthz`; 0 where none came."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await place.connect()
            writer.write(HEALTH)
            status = await status_of(reader)
            writer.close()
            return status
    except (OSError, EOFError, TimeoutError):
        return 0


async def watch(place: Place, pid: int, seen: Seen) -> None:
    """Ask whether it is well, and count its descriptors, until cancelled."""
    while True:
        seen.fds.append(descriptors(pid))
        for _ in range(2):
            began = time.perf_counter()
            status = await health(place)
            seen.health_ms.append((time.perf_counter() - began) * 1000)
            seen.unwell += status != 200
            await asyncio.sleep(0.1)


async def flood(place: Place, pid: int, rate: int, seconds: float, seen: Seen) -> None:
    """Come at the rate, whatever the answers do, and wait for the last of them."""
    watching = asyncio.create_task(watch(place, pid, seen))
    began = time.perf_counter()
    async with asyncio.TaskGroup() as asked:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            asked.create_task(ask_and_stay(place, seen))
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


def descriptors(pid: int) -> int:
    """How many the process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def measure(way: str, folder: Path, rate: int, seconds: float) -> dict[str, float]:
    """One daemon, one flood. Raises NotMeasured."""
    place = Place(way, free_port(), folder / "acu.sock")
    network = {"bind_addr": f"127.0.0.1:{place.port}", "unix_socket": str(place.path)}
    model = {"model": "scripted", "engine": "scripted"}
    config = folder / "acu.yaml"
    document = {"network": network, "models": {"large": model}, "data_plane": {"path": str(folder / "data")}}
    config.write_text(json.dumps(document))
    command = [sys.executable, "-m", "acu", "serve", "-c", str(config)]
    daemon, _ = start_tied(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with daemon:
        try:
            wait_until_ready(place.path)
            seen, before = Seen(), descriptors(daemon.pid)
            asyncio.run(flood_and_keep(place, daemon.pid, rate, seconds, seen))
            after = descriptors(daemon.pid)
        finally:
            daemon.terminate()
            daemon.wait(60)
    asked = sum(seen.answers.values())
    return {
        "asked": asked,
        "answered_share": seen.answers["200"] / asked,
        "refused": seen.answers["503"],
        "lost": asked - seen.answers["200"] - seen.answers["503"],
        "fds_before": before,
        "fds_peak": max(seen.fds),
        "fds_after": after,
        "fds_bound": MAX_CONNECTIONS + SPARE,
        "answer_p50_ms": percentile(seen.answer_ms, 0.5),
        "answer_p99_ms": percentile(seen.answer_ms, 0.99),
        "healthz_max_ms": max(seen.health_ms),
        "healthz_failed": seen.unwell,
    }


async def flood_and_keep(place: Place, pid: int, rate: int, seconds: float, seen: Seen) -> None:
    """The flood, and then silence until the daemon has had the time to let go."""
    await flood(place, pid, rate, seconds, seen)
    deadline = time.perf_counter() + IDLE_S + 5
    while time.perf_counter() < deadline:
        seen.fds.append(descriptors(pid))
        await asyncio.sleep(0.2)
    for writer in seen.kept:
        writer.close()


def wait_until_ready(path: Path) -> None:
    """Until the daemon is ready. Raises NotMeasured."""
    client = Client(Target(sockets=(path,)), ANSWER_S)
    deadline = time.perf_counter() + START_S
    while time.perf_counter() < deadline:
        with contextlib.suppress(*OBSTACLES):
            if client.get("/acu/v1/status")["service"]["ready"]:
                return
        time.sleep(0.05)
    raise NotMeasured("the daemon did not become ready")


def main() -> int:
    """Measure both ways, print the table, and with --json one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=300, help="connections a second (300)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they come (60)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: dict[str, dict[str, float]] = {}
    try:
        if hard != resource.RLIM_INFINITY and args.rate * args.seconds > hard - 256:
            raise NotMeasured(
                f"a process may have {hard} open files here (ulimit -Hn): choose a lower rate, or less time"
            )
        for way in ("tcp", "unix"):
            with tempfile.TemporaryDirectory(prefix="acu-bench-") as name:
                figures[way] = measure(way, Path(name), args.rate, args.seconds)
    except OBSTACLES as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    rows = [[key, *(f"{figures[way][key]:.4g}" if "share" in key else f"{figures[way][key]:.1f}" for way in figures)]
            for key in figures["tcp"]]  # fmt: skip
    print(table(f"{args.rate} connections a second for {args.seconds:g} s, never closed", ["figure", *figures], rows))
    if args.json:
        print(last_line({f"{key}:{way}": value for way, found in figures.items() for key, value in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
