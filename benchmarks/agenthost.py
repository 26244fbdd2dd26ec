"""ACU's service and HTTP face over a real, tapped engine, as the daemon puts them together; a process of its own.

    python -m benchmarks.agenthost --folder DIR --model DIR --port N [--max-model-len N]

In the folder, `forced.json` (agentscript.Forced) says what the model says, read anew for each generation, and each generation's
Tap is a line of `taps.jsonl`; while there is a file `watched`, `watch.json` has what agentwatch.py sees. The data plane is in it
too: runs are stored, as they are by default. Ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import uvloop

from acu.http.app import Face
from acu.http.server import make_runner
from acu.http.settings import HttpSettings
from acu.process.pulse import settle_memory
from acu.served import machine_facts
from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.protocol import Engine
from agentflow.engine.vllm.engine import VllmEngine
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import FileTokenizer
from agentflow.tools.config import ToolsConfig
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.suite import ToolSuite
from benchmarks.agentscript import Forced, Tap
from benchmarks.agentwatch import watched
from benchmarks.serving import ENGINE_ARGS, KV_GIB, MODEL
from benchmarks.tapped import TappedEngine
from dataplane import StateStore
from dataplane.config import DataPlaneConfig
from dataplane.store import DataPlane

TOOLS = ("wait", "rest", "stamp", "page")
"""Each is the only tool of the agent that has its name."""
SETTINGS = HttpSettings(
    max_body_bytes=10 << 20,
    header_timeout_s=60.0,
    body_timeout_s=60.0,
    idle_timeout_s=3600.0,  # a client comes back after the others' turns
    slow_reader_s=60.0,
    max_connections=512,
    allowed_hosts=(),
)


def agents() -> dict[str, AgentConfig]:
    """An agent for each tool, which reads every turn with its one model: what is measured has no router."""
    limits = AgentLimits(steps=100, tokens=1 << 20, wall_s=3600.0)
    return {name: AgentConfig(model=MODEL, tools=(name,), routing=False, limits=limits) for name in TOOLS}


async def open_tools(folder: Path) -> ToolSuite:
    """The benchmark's tools, with warm workers."""
    source = PythonSource(module=str(Path(__file__).with_name("agenttools.py")), workers=16, warm=4)
    return await ToolSuite.open(ToolsConfig(python={"bench": source}, installed=False), folder / "results", os.environ)


class Host:
    """What the process serves."""

    def __init__(self, folder: Path, model: Path, max_model_len: int) -> None:
        self._folder = folder
        self._model = model
        self._max_model_len = max_model_len

    def served(self) -> ServedModel:
        """The model, in a tapped engine of vLLM's."""
        args = ENGINE_ARGS | {"max_model_len": self._max_model_len}
        config = ModelConfig(model=str(self._model), kv_cache_mb=KV_GIB * 1024, engine_args=args)
        machine = functools.partial(machine_facts, None, self._folder / "compiled")
        return ServedModel(
            name=MODEL,
            aliases=(),
            role="chat",
            config=config,
            path=self._model,
            created=0,
            tokenizer=functools.partial(FileTokenizer.load, self._model),
            engines=(lambda: self.tapped(VllmEngine(self._model, config, machine, 10.0)),),
        )

    def tapped(self, engine: Engine) -> TappedEngine:
        """An engine that says what the folder says, and is written down there."""

        def forced() -> Forced:
            return msgspec.json.decode((self._folder / "forced.json").read_bytes(), type=Forced)

        def seen(tap: Tap) -> None:
            with (self._folder / "taps.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(tap) + b"\n")

        return TappedEngine(engine, forced, seen)

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Serve on the loopback; within, the model is ready."""
        plane = await DataPlane.open(DataPlaneConfig(path=str(self._folder / "data"), hot_layer_mem_mb=256))
        suite = await open_tools(self._folder)

        async def state() -> StateStore:
            return plane.state

        agency = Agency(agents(), suite.toolbox, state)
        service = Service((self.served(),), SchedulerConfig(), lambda _run: None, agency=agency)
        runner = make_runner(Face(SETTINGS, service), shutdown_timeout=5.0)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", port))
        listener.setblocking(False)
        await runner.listen(listener)
        try:
            async with asyncio.TaskGroup() as tasks:
                await service.start(tasks)
                watching = tasks.create_task(watched(service, self._folder))
                try:
                    while not service.status().ready:
                        await asyncio.sleep(0.1)
                    settle_memory()
                    yield
                finally:
                    watching.cancel()
                    await service.leave_runs()
                    await runner.cleanup()
                    await service.stop()
        finally:
            await plane.close()
            await suite.close()

    async def serve(self, port: int) -> None:
        """Until SIGTERM."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with self.serving(port):
            await asyncio.Event().wait()


def main() -> None:
    """Entry point; the guard below is what vLLM's spawned processes need."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, default=ENGINE_ARGS["max_model_len"])
    args = parser.parse_args()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        uvloop.run(Host(args.folder, args.model, args.max_model_len).serve(args.port))


if __name__ == "__main__":
    main()
