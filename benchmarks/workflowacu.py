"""ACU's side of the headline: the daemon's configuration, what it is filled with, and requests as a user makes them.

The daemon is the whole one (workflowhost.py): audit log, metrics, stored runs, tools in worker processes. A request is one chat
completion with `agent/desk`, streamed over HTTP/1.1 on the loopback. What happened in it is read afterwards from
/acu/v1/runs, outside of the measured time. The vector store is filled over /v1/files; the
lookups' values are noted by an agent of the same memory, with `memory_write`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import msgspec
import psutil

from benchmarks.agentscript import Forced, Tap
from benchmarks.report import NotMeasured
from benchmarks.server import Server, free_port
from benchmarks.serving import ENGINE_ARGS, MODEL
from benchmarks.workflowscript import (
    CALLS,
    CLOSING,
    EXTERNAL,
    LOOKUPS,
    TABLE_CALLS,
    TEXTS,
    Parts,
    call,
    documents,
    parts,
    question,
    values,
)
from benchmarks.workflowservice import DOCUMENT
from benchmarks.workflowtables import SIZES
from benchmarks.workflowtools import PLACE

CONTEXT: Final = 8192
KV_GIB: Final = 2  # eight requests of SmolLM2 do not fit into one
EMBEDDER: Final = "all-minilm-l6-v2"
AGENT: Final = "agent/desk"
CLERK: Final = "agent/clerk"
TOOLS: Final = ("memory_read", "file_search", EXTERNAL, "collect", *TABLE_CALLS)
CHUNK: Final = 100  # tokens
_FILL_TIMEOUT_S: Final = 300.0


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the run that answered it, when it was asked and over (`time.monotonic()`), and its answer's bytes."""

    run: str
    span: tuple[float, float]
    received: int


def models(model: Path) -> dict[str, Any]:
    """The configuration's models: one that speaks, in vLLM with the benchmarks' arguments, and one that embeds."""
    served = {
        "model": str(model),
        "served_name": MODEL,
        "max_running": ENGINE_ARGS["max_num_seqs"],
        "kv_cache_mb": KV_GIB * 1024,
        "engine_args": ENGINE_ARGS | {"max_model_len": CONTEXT},
    }
    return {"large": served, "embed": {"model": EMBEDDER}}


def configuration(folder: Path, served: dict[str, Any], port: int, service: int) -> dict[str, Any]:
    """The daemon's. `service`: the port of the external service, whose document is in the folder."""
    limits = {"steps": 12, "tokens": 8192, "parallel_tools": 16}
    memory = {"name": "desk", "remember": "notes"}
    agent = {"model": MODEL, "routing": False, "limits": limits, "memory": memory, "sampling": {"temperature": 0.0}}
    http = {
        "document": str(folder / "service.json"),
        "url": f"http://127.0.0.1:{service}",
        "reach": [f"127.0.0.1:{service}"],
        "concurrency": 16,
    }
    module = str(Path(__file__).with_name("workflowtools.py"))
    python = {"module": module, "folders": [str(Path(__file__).parents[1])], "environment": [PLACE], "warm": 4}
    return {
        # A client comes back after the others' turns.
        "network": {
            "bind_addr": f"127.0.0.1:{port}",
            "unix_socket": str(folder / "acu.sock"),
            "idle_timeout_s": 3600.0,
        },
        "models": served,
        "daemon": {"audit_log": str(folder / "audit.log")},
        "data_plane": {"path": str(folder / "data")},
        "tools": {"installed": False, "python": {"tables": python}, "http": {"weather": http}},
        "agents": {"desk": agent | {"tools": list(TOOLS)}, "clerk": agent | {"tools": ["memory_write"]}},
    }


class AcuSide:
    """The daemon, seen from outside. Within `client`, it can be filled and asked."""

    def __init__(self, folder: Path, served: dict[str, Any], table: Path, service: int) -> None:
        self._folder = folder
        self._read = 0
        self._engines: frozenset[int] = frozenset()  # their processes
        self.port = free_port()
        (folder / "service.json").write_text(json.dumps(DOCUMENT))
        (folder / "acu.yaml").write_text(json.dumps(configuration(folder, served, self.port, service)))
        command = [sys.executable, "-m", "benchmarks.workflowhost", str(folder)]
        self.server = Server("acu", command, self.port, "/readyz", folder / "acu.log", {PLACE: str(table)})
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._engines = await self._engine_processes()
        timeout = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=3600)
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    def force(self, *texts: str) -> None:
        """From now on the model says these, one a step."""
        new = self._folder / "forced.new"
        new.write_bytes(msgspec.json.encode(Forced(texts=texts)))
        new.replace(self._folder / "forced.json")

    # Filling

    async def fill(self) -> list[str]:
        """Notes for the lookups, and the vector store, whose passages are returned. Raises NotMeasured."""
        writes = [call("memory_write", name=name, text=text) for name, text in values().items()]
        self.force("\n".join(writes), CLOSING)
        answer = await self._ask(CLERK, "Note this.")
        run = await self._get(f"/acu/v1/runs/{answer.run}")
        if errors := [made["result"] for step in run["steps"] for made in step["calls"] if made["is_error"]]:
            raise NotMeasured(f"ACU did not note what is looked up: {errors[0]}")
        self.taps()
        files = [await self._upload(at, text) for at, text in enumerate(documents())]
        cut = {"type": "static", "static": {"max_chunk_size_tokens": CHUNK, "chunk_overlap_tokens": 0}}
        body = {"name": "notes", "file_ids": files, "chunking_strategy": cut}
        store = (await self._post("/v1/vector_stores", body))["id"]
        deadline = time.monotonic() + _FILL_TIMEOUT_S
        while (counts := (await self._get(f"/v1/vector_stores/{store}"))["file_counts"])["completed"] < len(files):
            if time.monotonic() > deadline or counts["failed"]:
                raise NotMeasured(f"ACU's vector store is not filled: {counts}")
            await asyncio.sleep(0.2)
        pages = [await self._get(f"/v1/vector_stores/{store}/files/{file}/content?limit=1000") for file in files]
        return [part["text"] for page in pages for part in page["data"]]

    async def _upload(self, number: int, text: str) -> str:
        form = aiohttp.FormData({"purpose": "assistants"})
        form.add_field("file", text.encode(), filename=f"notes-{number}.txt", content_type="text/plain")
        return str((await self._post("/v1/files", form))["id"])

    # Asking

    async def play(self, first: int, count: int, at_once: int) -> list[Answered]:
        """So many requests, of which so many at a time; they are numbered from `first`. Raises NotMeasured."""
        self.force(*TEXTS)
        numbers = iter(range(first, first + count))
        answers: list[Answered] = []

        async def user() -> None:
            answers.extend([await self._ask(AGENT, question(number)) for number in numbers])

        async with asyncio.TaskGroup() as users:
            for _ in range(at_once):
                users.create_task(user())
        return answers

    async def _ask(self, agent: str, text: str) -> Answered:
        """One answer, read to its end."""
        assert self._session is not None
        body = {"model": agent, "messages": [{"role": "user", "content": text}], "stream": True}
        began, received, tail = time.monotonic(), 0, b""
        async with self._session.post("/v1/chat/completions", json=body) as answer:
            said = []
            async for line in answer.content:
                received += len(line)
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    said += [choice["delta"].get("content") or "" for choice in chunk.get("choices", ())]
                elif line != b"\n":
                    tail = line
        ended = time.monotonic()
        if answer.status != 200 or not "".join(said).endswith(CLOSING) or tail.strip() != b"data: [DONE]":
            raise NotMeasured(f"ACU answered {answer.status} with {''.join(said)[-300:]!r} {tail[-300:]!r}")
        if "x-acu-run-id" not in answer.headers:
            raise NotMeasured("ACU does not say which run has answered")
        return Answered(run=answer.headers["x-acu-run-id"], span=(began, ended), received=received)

    # Looking back

    async def parts(self, answers: Sequence[Answered]) -> tuple[list[Parts], dict[str, float]]:
        """What these requests consisted of, in their order, and means a request. Raises NotMeasured if one was not whole."""
        clock = time.time() - time.monotonic()
        generations: dict[str, list[Tap]] = defaultdict(list)
        for tap in self.taps():
            generations[tap.id.rpartition("-")[0]].append(tap)
        found = []
        sums = {"prompt_tokens": 0.0, "serialised": 0.0, "engine_s": 0.0}
        for answer in answers:
            run = await self._get(f"/acu/v1/runs/{answer.run}")
            calls = [made for step in run["steps"] for made in step["calls"]]
            self._check(run, calls)
            taps = generations[run["id"]]
            models = [(tap.called, tap.ended) for tap in taps]
            tools = [(made["started_at"] - clock, made["started_at"] - clock + made["seconds"]) for made in calls]
            found.append(parts(answer.span, models, tools))
            sums["prompt_tokens"] += sum(tap.prompt_tokens for tap in taps)
            sums["engine_s"] += sum(tap.ended - tap.called for tap in taps)
            log = await self._bytes(f"/acu/v1/runs/{run['id']}/events?limit=1000")
            sums["serialised"] += len(log) + answer.received
        return found, {name: total / len(answers) for name, total in sums.items()}

    def taps(self) -> list[Tap]:
        """The generations since the last call."""
        lines = (self._folder / "taps.jsonl").read_bytes().splitlines()
        new, self._read = lines[self._read :], len(lines)
        return [msgspec.json.decode(line, type=Tap) for line in new]

    async def _engine_processes(self) -> frozenset[int]:
        """Those that the daemon names, which it tells its own user alone."""
        own = aiohttp.UnixConnector(str(self._folder / "acu.sock"))
        async with aiohttp.ClientSession("http://acu", connector=own) as session, session.get("/acu/v1/status") as told:
            status = json.loads(await _good(told))
        engines = [engine for model in status["service"]["models"] for engine in model["engines"]]
        return frozenset(pid for engine in engines for pid in engine["info"]["pids"])

    def processes(self) -> list[psutil.Process]:
        """The daemon and all that it started, but the processes that it names as its engines'."""
        front = self.server.front
        engine = [child for child in front.children(recursive=True) if child.pid in self._engines]
        gone = {process.pid for child in engine for process in (child, *child.children(recursive=True))}
        return [each for each in (front, *front.children(recursive=True)) if each.pid not in gone]

    def _check(self, run: dict[str, Any], calls: Sequence[dict[str, Any]]) -> None:
        wrong = [made for made in calls if made["is_error"] or made["seconds"] is None]
        if wrong or len(calls) != CALLS or len(run["steps"]) != len(TEXTS):
            raise NotMeasured(f"ACU's agent made {len(calls)} calls of {CALLS}, of which failed: {wrong}")
        for made in calls:
            if made["name"] in SIZES and f"{SIZES[made['name']]:,} bytes" not in made["result"]:
                raise NotMeasured(f"{made['name']} of ACU's agent gave {made['result'][-200:]!r}")
            if made["name"] == "memory_read" and not any(name in made["result"] for name in LOOKUPS):
                raise NotMeasured(f"a lookup of ACU's agent gave {made['result'][:200]!r}")

    async def _get(self, path: str) -> Any:
        return json.loads(await self._bytes(path))

    async def _bytes(self, path: str) -> bytes:
        assert self._session is not None
        async with self._session.get(path) as answer:
            return await _good(answer)

    async def _post(self, path: str, body: Any) -> Any:
        assert self._session is not None
        options = {"data": body} if isinstance(body, aiohttp.FormData) else {"json": body}
        async with self._session.post(path, **options) as answer:
            return json.loads(await _good(answer))


async def _good(answer: aiohttp.ClientResponse) -> bytes:
    data = await answer.read()
    if answer.status != 200:
        raise NotMeasured(f"ACU answered {answer.status} to {answer.url.path}: {data[:300]!r}")
    return data
