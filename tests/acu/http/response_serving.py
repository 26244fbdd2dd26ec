"""A face whose responses and conversations are stored in a folder, which can be served again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.engine.script import Rule, Script
from agentflow.tools.builtin import builtin_tools
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext
from agentflow.tools.toolbox import Toolbox
from dataplane import DataPlane, DataPlaneConfig, StateStore
from tests.acu.http.library_serving import two_tenants
from tests.acu.http.serving import Served, serving
from tests.agentflow.agents.agencies import BodyTool, call

SCRIPT = Script(
    rules=(
        Rule(match="42", answer="It is 42."),
        Rule(match="It broke", answer="The tool is broken."),
        Rule(match="found it", answer="Here it is."),
        Rule(match="used up", answer="I do without."),
        Rule(match="sum", answer="Let me see. " + call("calculator", '{"expression": "6*7"}')),
        Rule(
            match="both",
            answer="I do both. " + call("weather", '{"city": "Paris"}') + call("calculator", '{"expression": "6*7"}'),
        ),
        Rule(match="twice", answer=call("pay", '{"to": "Ann"}') + call("pay", '{"to": "Bob"}')),
        Rule(match="mixed", answer=call("weather", '{"city": "Paris"}') + call("pay", '{"to": "Ann"}')),
        Rule(match="not allowed", answer="Then not."),
        Rule(match="rather", answer="As you like."),
        Rule(match="paid", answer="It is paid."),
        Rule(match="pay", answer=call("pay", '{"to": "Ann"}')),
        Rule(match="break", answer=call("broken")),
        Rule(match="search", answer=call("file_search", '{"query": "opening hours"}')),
        Rule(
            match="weather",
            answer="I ask. " + call("weather", '{"city": "Paris"}') + call("weather", '{"city": "Rome"}'),
        ),
        Rule(match="sunny", answer="It is sunny in both."),
        Rule(match="hello", answer="Hi there"),
        Rule(match="count", answer="0123456789" * 20, tokens_per_delta=4),
        Rule(match="slow", answer="s" * 10_000, tokens_per_s=200),
        Rule(match="die", answer="x" * 50, tokens_per_s=500, die_after_tokens=5),
        Rule(match="(?s)My name is Ann.*recall", within="prompt", answer="Ann"),
        Rule(match="be a pirate", within="prompt", answer="Arr"),
    ),
    answer="I do not know.",
)


def tools() -> list[Any]:
    async def broken(_: dict[str, Any], __: CallContext) -> str:
        raise RuntimeError("It broke.")

    async def search(_: dict[str, Any], __: CallContext) -> str:
        return "found it"

    async def pay(_: dict[str, Any], __: CallContext) -> str:
        return "paid"

    return [
        *builtin_tools(),
        BodyTool("broken", broken),
        BodyTool("file_search", search),
        BodyTool("pay", pay, approval=True),
    ]


@asynccontextmanager
async def serving_responses(folder: Path, *, stored: bool = True) -> AsyncIterator[Served]:
    """The agent `desk` has all tools, `hasty` one step, and `led` a router. `stored`: there is a data plane."""
    handles = HandleStore(folder / "handles")
    await handles.open()
    agents = {
        "desk": AgentConfig(tools=("*",), instructions="You are a desk.", routing=False),
        "led": AgentConfig(tools=("calculator",)),
        "hasty": AgentConfig(tools=("*",), limits=AgentLimits(steps=1), routing=False),
    }
    async with AsyncExitStack() as stack:
        plane = await DataPlane.open(DataPlaneConfig(hot_layer_mem_mb=64), folder / "plane") if stored else None
        if plane is not None:
            stack.push_async_callback(plane.close)

        async def state() -> StateStore:
            assert plane is not None
            return plane.state

        agency = Agency(agents, Toolbox(tools(), handles), state if stored else None)
        served = await stack.enter_async_context(
            serving(keys=two_tenants(folder), script=SCRIPT, agency=agency, restart_backoff_s=0.01)
        )
        try:
            yield served
        finally:
            await served.service.leave_runs()
