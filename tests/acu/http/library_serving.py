"""A face with a real library behind it: data plane on the disk, extraction in child processes, a scripted embedder."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from acu.http.auth import Keys
from acu.http.settings import HttpSettings
from agentflow.agents.agency import Agency
from agentflow.engine.script import Script
from agentflow.library.config import LibraryConfig
from agentflow.library.embedder import Embedder
from agentflow.library.embedderid import EmbedderId
from agentflow.library.extraction import Extractor
from agentflow.library.library import Library
from agentflow.library.refusals import DataUnavailable
from agentflow.tools.handles import HandleStore
from agentflow.tools.toolbox import Toolbox
from dataplane import DataPlane, DataPlaneConfig, StateStore
from tests.acu.http.serving import SETTINGS, Served, serving

EMBEDDING = Script(dimensions=64)


class LateLibrary:
    """The source of a library that is opened while the face serves already."""

    def __init__(self) -> None:
        self.library: Library | None = None
        self.stored: StateStore | None = None

    async def __call__(self) -> Library:
        """The library, once it is open."""
        if self.library is None:
            raise DataUnavailable("The data plane is being opened.", retry_after_s=1.0)
        return self.library

    async def state(self) -> StateStore:
        """The data plane's state, as soon."""
        await self()
        assert self.stored is not None
        return self.stored


@asynccontextmanager
async def serving_library(
    folder: Path, settings: HttpSettings = SETTINGS, config: LibraryConfig | None = None, **options: Any
) -> AsyncIterator[Served]:
    """As `serving`, with what is stored in `folder`."""
    source = LateLibrary()
    options.setdefault("agency", Agency({}, Toolbox((), HandleStore(folder / "results")), source.state))
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(settings, library=source, script=EMBEDDING, **options))
        plane = await DataPlane.open(DataPlaneConfig(hot_layer_mem_mb=64), folder / "plane")
        stack.push_async_callback(plane.close)
        extractor = Extractor()
        stack.callback(extractor.close)
        embedder = Embedder(served.service, EmbedderId(model="scripted-embed"), words)
        state = StateStore(plane.rocks, plane.writer)
        library = await Library.open(plane, state, folder / "library", embedder, extractor, config)
        stack.push_async_callback(library.close)
        await stack.enter_async_context(background(library))
        source.library, source.stored = library, state
        yield served


@asynccontextmanager
async def background(library: Library) -> AsyncIterator[None]:
    """The library's background work, until the block ends."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            await library.start(tasks)
            started.set()

    started = asyncio.Event()
    running = asyncio.create_task(run())
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running, waiting])
        if not running.cancelled():
            running.result()


def two_tenants(folder: Path) -> Keys:
    """Keys of alice and of bob, who are tenants of the same names."""
    file = folder / "keys.yaml"
    file.write_text(json.dumps([{"name": name, "key": key_of(name), "tenant": name} for name in ("alice", "bob")]))
    file.chmod(0o600)
    return Keys(file)


def key_of(name: str) -> str:
    """The key of a tenant of `two_tenants`."""
    return f"sk-{name}-0123456789"


def client(served: Served, name: str = "alice") -> AsyncOpenAI:
    """The real client, as it is used by a tenant of `two_tenants`."""
    return AsyncOpenAI(api_key=key_of(name), base_url=f"{served.url}/v1", max_retries=0)


def words(text: str) -> list[tuple[int, int]]:
    """Tokens as words are."""
    return [found.span() for found in re.finditer(r"\S+", text)]


def uploads_left(folder: Path) -> list[Path]:
    """What lies in the library's folder of uploads."""
    return list((folder / "library" / "uploads").iterdir())
