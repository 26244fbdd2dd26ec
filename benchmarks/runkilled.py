"""A run of an agent in a process that kills itself: what `runkills` starts, again and again.

    python -m benchmarks.runkilled FOLDER begin|resume [MOMENT] [TOKENS_PER_S]

`begin` begins the run and writes what a client sees, a JSON line each, to standard output; at MOMENT, which counts the
appends to the run's log (`3` before the third, whatever of the earlier ones is kept by then, `3+` once the third is kept, and
before anybody sees what it said), it ends by SIGKILL.
`resume` takes up what is open, and ends when it is over. Both make the same five steps: look, look, book (which must never
happen twice, and notes each time in FOLDER/booked), pay, and an answer. Tools are Python functions in processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig
from agentflow.agents.journal import Kept, StoredJournal
from agentflow.agents.record import Event
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.errors import AgentFlowError
from agentflow.events import TextDelta
from agentflow.messages import ChatRequest, Message
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.config import ToolsConfig
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.suite import ToolSuite
from dataplane import DataPlane, DataPlaneConfig, StateStore

TOOLS = '''
import os, time
from agentflow.tools.function import tool

@tool(idempotent=True)
def look(n: int) -> str:
    """Looks."""
    return {1: "first", 2: "second"}[n]

@tool
def book(folder: str) -> str:
    """Books. Not twice!"""
    with open(folder + "/booked", "a") as file:
        file.write(".")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.05)
    return "booked"

@tool(idempotent=True)
def pay() -> str:
    """Pays."""
    return "paid"
'''


def script(folder: Path, tokens_per_s: float) -> Script:
    """What the model says: one step, one call, until all is paid. A rate of 0 is as fast as it is read."""

    def call(name: str, arguments: str = "{}") -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'

    says = {
        "unknown": "I cannot tell whether it is booked.",
        "paid": "All is done. 再见",
        "booked": "Step four. " + call("pay") + " Paying now.",
        "second": "Step three. " + call("book", json.dumps({"folder": str(folder)})) + " Then I pay.",
        "first": "Step two 查. " + call("look", '{"n": 2}'),
        "go": "Step one. " + call("look", '{"n": 1}'),
    }
    rules = tuple(Rule(match=match, answer=answer) for match, answer in says.items())
    return Script(rules=rules, tokens_per_delta=24 if tokens_per_s == 0 else 4, tokens_per_s=tokens_per_s)


class KillingJournal(StoredJournal):
    """Ends the process before an append, or once it is kept."""

    moment = ""
    appends = 0

    async def append(self, events: Sequence[Event], kept: Kept) -> None:
        """As Journal.append, while the process lives."""
        KillingJournal.appends += 1
        number = KillingJournal.appends

        def noted(error: AgentFlowError | None) -> None:
            if KillingJournal.moment == f"{number}+":
                os.kill(os.getpid(), signal.SIGKILL)
            kept(error)

        if KillingJournal.moment == str(number):
            os.kill(os.getpid(), signal.SIGKILL)
        await super().append(events, noted)


async def main(folder: Path, mode: str, moment: str, tokens_per_s: float) -> None:
    """Begin or resume."""
    (folder / "tools.py").write_text(TOOLS)
    plane = await DataPlane.open(DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=64))
    source = PythonSource(module=str(folder / "tools.py"), warm=1)
    suite = await ToolSuite.open(ToolsConfig(python={"t": source}, installed=False), folder / "results", {})

    async def state() -> StateStore:
        return plane.state

    config = ModelConfig(model="m", engine="scripted")
    engine = script(folder, tokens_per_s)
    served = ServedModel("m", ("large",), "chat", config, None, 0, ByteTokenizer, (lambda: ScriptedEngine(engine),))
    agents = {"a": AgentConfig(tools=("look", "book", "pay"), routing=False)}
    service = Service((served,), SchedulerConfig(), lambda _: None, agency=Agency(agents, suite.toolbox, state))
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        if mode == "begin":
            KillingJournal.moment = moment
            request = ChatRequest(id="r", model="agent/a", messages=(Message("user", "go"),))
            stream = await service.chat(request)
            async for event in stream:
                if isinstance(event, TextDelta):
                    print(json.dumps(event.text), flush=True)
            await stream.aclose()
            print(json.dumps({"appends": KillingJournal.appends}), flush=True)
        else:
            await service.agents.resume()
            await service.agents.drain()
        await service.stop(1.0)
    await suite.close()
    await plane.close()


if __name__ == "__main__":
    import agentflow.agents.archive

    agentflow.agents.archive.journal.StoredJournal = KillingJournal  # type: ignore[misc]  # the one that archives hand out
    moment, rate = [*sys.argv[3:], "", "0"][:2] if len(sys.argv) < 5 else sys.argv[3:5]
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], moment, float(rate or 0)))
