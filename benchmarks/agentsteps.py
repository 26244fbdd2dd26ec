"""What the loop itself takes of a step: no model and no tool, but the data plane on a real disk.

The engine says a whole step at once, and the tool answers at once. From the moment at which the step's text is there to the
request for the next one: the parser, the log of what was said, the checkpoint of the call, the call, its result in the log, the
end of the step, the next prompt (with SmolLM2's tokenizer), the next step in the log, and the scheduler. Nothing of it
is subtracted, and nothing can be hidden behind the model, as most of it is in life.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.protocol import Delta, EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.errors import EngineDied, EngineFailure
from agentflow.messages import ChatRequest, Message
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import Tokenizer
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext, ToolOutput, ToolSpec
from agentflow.tools.toolbox import Toolbox
from benchmarks.agentbench import AgentBench
from benchmarks.agentscript import CLOSING, call
from benchmarks.report import percentile
from benchmarks.tapped import step_of
from dataplane import StateStore
from dataplane.config import DataPlaneConfig
from dataplane.store import DataPlane

STEPS = 12  # a run: an agent's default limit
CONTEXT = 8192


class InstantTool:
    """Answers at once, in the daemon."""

    spec = ToolSpec(name="look", description="Looks something up.", idempotent=True,
                    parameters={"type": "object", "properties": {"what": {"type": "string"}}})  # fmt: skip

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """See Tool."""
        return ToolOutput(f"{arguments['what']}: nothing special")


@dataclass(slots=True)
class InstantEngine:
    """Says a step's text as soon as it is asked. `overheads`: seconds from each text to the next step's request."""

    encode: Callable[[str], list[int]]
    overheads: list[float] = field(default_factory=list)
    failure: EngineFailure | None = None
    _said_at: float = 0.0

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Engine.start."""
        return EngineInfo("instant", CONTEXT, 16)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As Engine.generate."""
        step = step_of(request)
        if step:
            self.overheads.append(time.perf_counter() - self._said_at)
        text = f"I shall look up number {step}.\n{call('look', what=f'thing {step}')}" if step < STEPS - 1 else CLOSING
        ids = self.encode(text)
        self._said_at = time.perf_counter()
        yield Delta(text, ids, "stop")

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        """As Engine.forget."""
        return 0

    def stats(self) -> EngineStats:
        """As Engine.stats."""
        return EngineStats()

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Engine.kill."""
        self.failure = reason or EngineDied("the engine was killed")

    async def stop(self, timeout_s: float) -> None:
        """As Engine.stop."""
        self.failure = EngineDied("the engine was stopped")


async def measure(bench: AgentBench, tokenizer: Tokenizer, runs: int) -> None:
    """So many runs, one after the other, and one before them."""
    folder = bench.folder / "steps"
    engine = InstantEngine(functools.partial(tokenizer.encode, add_special_tokens=False))
    handles = HandleStore(folder / "handles")
    await handles.open()
    plane = await DataPlane.open(DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=256))
    try:
        await _play(engine, tokenizer, Toolbox([InstantTool()], handles), plane, runs)
    finally:
        await plane.close()
    ms = [1e3 * each for each in engine.overheads[STEPS - 1 :]]  # the first run makes what is made lazily
    bench.add(step_overhead_p50_ms=percentile(ms, 0.5), step_overhead_p99_ms=percentile(ms, 0.99))
    bench.notes["steps"] = f"{len(ms)} steps, the slowest {max(ms):.1f} ms"
    bench.say("steps: done")


async def _play(engine: InstantEngine, tokenizer: Tokenizer, toolbox: Toolbox, plane: DataPlane, runs: int) -> None:
    async def state() -> StateStore:
        return plane.state

    limits = AgentLimits(steps=STEPS + 1, tokens=1 << 20, wall_s=3600.0)
    agent = AgentConfig(model="m", tools=("look",), routing=False, limits=limits)
    served = ServedModel(
        name="m",
        aliases=(),
        role="chat",
        config=ModelConfig(model="m", max_model_len=CONTEXT),
        path=Path(),
        created=0,
        tokenizer=lambda: tokenizer,
        engines=(lambda: engine,),
    )
    agency = Agency({"steps": agent}, toolbox, state)
    service = Service((served,), SchedulerConfig(), lambda _run: None, agency=agency)
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        try:
            for number in range(runs + 1):
                asked = (Message("user", f"Look up a dozen things, please ({number})."),)
                stream = await service.chat(ChatRequest(id=f"req-{number}", model="agent/steps", messages=asked))
                async for _ in stream:
                    pass
                await stream.aclose()
        finally:
            await service.leave_runs()
            await service.stop(1.0)
