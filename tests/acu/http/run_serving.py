"""A face with agents behind it, whose runs are stored on the disk: what the tests of acu/http/runs.py talk to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig
from agentflow.engine.script import Rule, Script
from agentflow.errors import AgentFlowError, Draining
from agentflow.messages import Caller, ChatRequest, Message
from agentflow.tools.builtin import builtin_tools
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext
from agentflow.tools.toolbox import Toolbox
from dataplane import DataPlane, DataPlaneConfig, StateStore
from tests.acu.http.library_serving import key_of, two_tenants
from tests.acu.http.serving import Served, serving
from tests.agentflow.agents.agencies import BodyTool, call

RUNS = "/acu/v1/runs"
SCRIPT = Script(
    rules=(
        Rule(match="42", answer="It is 42."),
        Rule(match="paid", answer="It is paid."),
        Rule(match="not allowed", answer="Then not."),
        Rule(match="pay", answer=call("pay")),
        Rule(match="waited", answer="I waited."),
        Rule(match="again", answer="Once more. " + call("wait")),
        Rule(match="hurry", answer="I hurry."),
        Rule(match="sum", answer="Let me see. " + call("calculator", '{"expression": "6*7"}')),
        Rule(match="wait", answer="I wait. " + call("wait")),
        Rule(match="hello", answer="Hello."),
    )
)


class Gate:
    """What the tool `wait` waits for; calls say the answers one after the other, and the last again and again."""

    def __init__(self) -> None:
        self.calls = 0
        self.open = asyncio.Event()
        self.answers = ["waited"]

    async def body(self, _: dict[str, Any], __: CallContext) -> str:
        self.calls += 1
        await self.open.wait()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Desk:
    """The face, what is behind it, and who asks."""

    def __init__(self, served: Served, plane: DataPlane | None, gate: Gate) -> None:
        self.served = served
        self.plane = plane
        self.gate = gate
        self.answers: list[asyncio.Task[None]] = []

    @property
    def state(self) -> StateStore:
        assert self.plane is not None
        return self.plane.state

    def client(self, name: str = "alice") -> httpx2.AsyncClient:
        """A client with the key of a tenant."""
        headers = {"authorization": f"Bearer {key_of(name)}"}
        return httpx2.AsyncClient(base_url=self.served.url, headers=headers, timeout=20)

    async def begin(
        self,
        text: str,
        *,
        tenant: str = "alice",
        agent: str = "desk",
        store: bool = True,
        fails: str | None = None,
    ) -> str:
        """Begin a run, and return its id; its answer is read to the end meanwhile. `fails`: with which words, if it does."""
        before = set(self.served.service.agents.ids(tenant))
        request = ChatRequest(
            id="req",
            model=f"agent/{agent}",
            messages=(Message("user", text),),
            store=store,
            caller=Caller(tenant=tenant, name=tenant),
        )
        stream = await self.served.service.chat(request)
        (run_id,) = set(self.served.service.agents.ids(tenant)) - before

        async def read() -> None:
            async with aclosing(stream):
                with nullcontext() if fails is None else pytest.raises(AgentFlowError, match=fails):
                    async for _ in stream:
                        pass

        self.answers.append(asyncio.create_task(read()))
        return run_id

    async def run(self, text: str, **more: Any) -> str:
        """A run, once it is over and noted."""
        run_id = await self.begin(text, **more)
        await self.answers[-1]
        await self.served.service.agents.drain()
        return run_id

    async def waiting(self, calls: int = 1) -> None:
        """Return when so many calls of `wait` were made."""
        async with asyncio.timeout(30):
            while self.gate.calls < calls:
                await asyncio.sleep(0.005)


async def _paid(_: dict[str, Any], __: CallContext) -> str:
    return "paid"


@asynccontextmanager
async def serving_runs(folder: Path, *, stored: bool = True) -> AsyncIterator[Desk]:
    """Agents `desk` and `other`, which have a calculator, `wait`, and `pay`, which needs approval; tenants alice and bob.

    `stored`: there is a data plane.
    """
    gate = Gate()
    handles = HandleStore(folder / "handles")
    await handles.open()
    tools = [*builtin_tools(), BodyTool("wait", gate.body), BodyTool("pay", _paid, approval=True)]
    toolbox = Toolbox(tools, handles)
    agent = AgentConfig(tools=("calculator", "wait", "pay"), routing=False)
    async with AsyncExitStack() as stack:
        plane = await DataPlane.open(DataPlaneConfig(hot_layer_mem_mb=64), folder / "plane") if stored else None
        if plane is not None:
            stack.push_async_callback(plane.close)

        async def state() -> StateStore:
            assert plane is not None
            return plane.state

        agency = Agency({"desk": agent, "other": agent}, toolbox, state if stored else None)
        served = await stack.enter_async_context(serving(keys=two_tenants(folder), script=SCRIPT, agency=agency))
        desk = Desk(served, plane, gate)
        try:
            yield desk
        finally:
            gate.open.set()
            await served.service.leave_runs()
            ends = await asyncio.gather(*desk.answers, return_exceptions=True)
            assert [end for end in ends if end is not None and not isinstance(end, Draining)] == []


async def log_of(web: httpx2.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    page = (await web.get(f"{RUNS}/{run_id}/events?limit=1000")).json()
    assert page["object"] == "list"
    return page["data"]  # type: ignore[no-any-return]


async def events_of(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, whose `id` lines must be their numbers, until [DONE]."""
    number = -1
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            number = int(line[4:])
        elif line == "data: [DONE]":
            return
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            assert event["sequence_number"] == number
            yield event
    raise AssertionError("the stream has no end")


def refused(response: httpx2.Response) -> tuple[int, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"]
