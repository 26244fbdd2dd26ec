"""A real face on real sockets, over a real service with scripted engines: what the tests of acu/http talk to."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from acu.http.app import Face
from acu.http.audit import Hooks
from acu.http.auth import Keys
from acu.http.library import LibrarySource, no_library
from acu.http.server import FaceRunner, make_runner
from acu.http.settings import HttpSettings
from agentflow.agents.agency import Agency
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer

SCRIPT = Script(
    rules=(
        Rule(match="^hello$", answer="Hi there"),
        Rule(match="^die$", answer="x" * 100, tokens_per_s=500, die_after_tokens=10),
        Rule(match="^die at once$", answer="x" * 100, die_after_tokens=0),
        Rule(match="^long$", answer="0123456789" * 100_000),
        Rule(match="^slow$", answer="s" * 10_000, tokens_per_s=50),
        Rule(match="^quote$", answer='"\\\n\u2603'),
    ),
    dimensions=8,
)


SETTINGS = HttpSettings(
    max_body_bytes=10 << 20,
    header_timeout_s=10.0,
    body_timeout_s=30.0,
    idle_timeout_s=75.0,
    slow_reader_s=60.0,
    max_connections=4096,
    allowed_hosts=(),
)


def limits(**changed: Any) -> HttpSettings:
    """The tests' usual limits, with some of them changed."""
    return replace(SETTINGS, **changed)


class Served:
    """A running face: where it listens, what is behind it, and what it recorded."""

    def __init__(self, face: Face, runner: FaceRunner, service: Service, port: int, unix: Path) -> None:
        self.face = face
        self.runner = runner
        self.service = service
        self.port = port
        self.unix = unix
        self.url = f"http://127.0.0.1:{port}"
        self.clients: list[asyncio.StreamWriter] = []
        self.records: list[dict[str, Any]] = []
        self.responses: list[tuple[str, int]] = []

    async def connect(
        self, *, unix: bool = False, limit: int = 2**16, **tls: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection. Whatever a test leaves open is cut when the server ends."""
        if unix:
            reader, writer = await asyncio.open_unix_connection(self.unix, limit=limit)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit, **tls)
        self.clients.append(writer)
        return reader, writer

    async def idle(self) -> None:
        """Return when no run waits or runs."""
        async with asyncio.timeout(5):
            while (status := self.service.status()).running or status.queued:
                await asyncio.sleep(0.005)

    async def recorded(self, count: int) -> list[dict[str, Any]]:
        """The records, once there are `count` of them."""
        async with asyncio.timeout(5):
            while len(self.records) < count:
                await asyncio.sleep(0.005)
        return self.records


@asynccontextmanager
async def serving(
    settings: HttpSettings = SETTINGS,
    *,
    keys: Keys | None = None,
    script: Script = SCRIPT,
    hooks: Hooks | None = None,
    shutdown_timeout: float = 2.0,
    max_running: int = 64,
    ready: bool = True,
    tls: ssl.SSLContext | None = None,
    library: LibrarySource = no_library,
    agency: Agency | None = None,
    **scheduler: Any,
) -> AsyncIterator[Served]:
    """Start everything, wait until it is ready (unless `ready` is False), and leave nothing behind."""
    records: list[dict[str, Any]] = []
    responses: list[tuple[str, int]] = []
    hooks = replace(
        hooks or Hooks(),
        audit=lambda line: records.append(msgspec.json.decode(line)),
        on_response=lambda route, status: responses.append((route, status)),
    )
    service = Service(_models(script, max_running), SchedulerConfig(**scheduler), lambda run: None, agency=agency)
    face = Face(settings, service, keys, hooks, library)
    runner = make_runner(face, shutdown_timeout=shutdown_timeout)
    await runner.setup()
    with tempfile.TemporaryDirectory() as folder:
        unix = Path(folder) / "acu.sock"
        tcp_socket, unix_socket = _sockets(unix)
        await runner.listen(tcp_socket, None if tls is None else lambda: tls)
        await runner.listen(unix_socket)
        async with asyncio.TaskGroup() as tasks:
            await service.start(tasks)
            served = Served(face, runner, service, tcp_socket.getsockname()[1], unix)
            served.records = records
            served.responses = responses
            try:
                async with asyncio.timeout(10):
                    while ready and not service.status().ready:
                        await asyncio.sleep(0.005)
                yield served
            finally:
                for client in served.clients:
                    client.transport.abort()
                await runner.cleanup()
                await service.stop()


def _models(script: Script, max_running: int) -> tuple[ServedModel, ...]:
    return (
        ServedModel(
            name="scripted",
            aliases=("large",),
            role="chat",
            config=ModelConfig(model="scripted", engine="scripted"),
            path=None,
            created=1_700_000_000,
            tokenizer=ByteTokenizer,
            engines=(lambda: ScriptedEngine(script, max_model_len=32_768, max_running=max_running),),
        ),
        ServedModel(
            name="scripted-embed",
            aliases=("embed",),
            role="embed",
            config=ModelConfig(model="scripted", engine="scripted", role="embed"),
            path=None,
            created=1_700_000_000,
            tokenizer=ByteTokenizer,
            engines=(lambda: ScriptedEmbedder(script),),
        ),
    )


def _sockets(unix: Path) -> tuple[socket.socket, socket.socket]:
    tcp_socket = socket.socket(socket.AF_INET)
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp_socket.bind(("127.0.0.1", 0))
    unix_socket = socket.socket(socket.AF_UNIX)
    unix_socket.bind(str(unix))
    return tcp_socket, unix_socket
