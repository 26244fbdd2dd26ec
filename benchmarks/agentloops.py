"""A client's ways to one answer with calls, over ACU: its agent, and two loops that run the tools themselves.

A loop waits for the whole answer, runs the tools one after the other or all at once, and asks again. Its tools are the least
that can be: they sleep on the client's own loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from benchmarks.report import NotMeasured
from benchmarks.serving import MODEL

QUESTION = "What do the services say?"
WAIT: Any = {
    "type": "function",
    "function": {
        "name": "wait",
        "description": "Ask a service that takes a while.",
        "parameters": {
            "type": "object",
            "properties": {"seconds": {"type": "number"}},
            "required": ["seconds"],
            "additionalProperties": False,
        },
    },
}


class Answered(NamedTuple):
    """When the answer was asked for and when it was whole (`time.monotonic()`); its text; and what tools gave, in order."""

    started: float
    ended: float
    text: str
    results: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


@asynccontextmanager
async def client(port: int) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client for a server on the loopback. Nothing is tried again: it would be measured."""
    async with AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=600
    ) as opened:
        yield opened


async def ask_agent(openai: AsyncOpenAI, agent: str, question: str = QUESTION) -> Answered:
    """ACU's agent, streamed to its end. Raises NotMeasured if a tool failed."""
    started = time.monotonic()
    messages: Any = [{"role": "user", "content": question}]
    options: Any = {"include_acu_events": True}
    stream = await openai.chat.completions.create(
        model=f"agent/{agent}", messages=messages, stream=True, stream_options=options
    )
    texts, results = [], []
    async for chunk in stream:
        texts += [choice.delta.content or "" for choice in chunk.choices]
        activity = (chunk.model_extra or {}).get("acu")
        if activity is not None and activity["type"] == "tool.ended":
            if activity.get("is_error"):
                raise NotMeasured(f"a tool of ACU's agent failed: {activity['output']}")
            results.append(activity["output"])
    return Answered(started, time.monotonic(), "".join(texts), tuple(results))


async def ask_loop(openai: AsyncOpenAI, *, at_once: bool) -> Answered:
    """The loop that everybody writes, over the direct path. `seed` tells the tapped engine which step it is."""
    started = time.monotonic()
    messages: Any = [{"role": "user", "content": QUESTION}]
    step = 0
    while True:
        completion = await openai.chat.completions.create(model=MODEL, messages=messages, tools=[WAIT], seed=step)
        message: Any = completion.choices[0].message
        if not message.tool_calls:
            return Answered(started, time.monotonic(), message.content or "")
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
        calls = [_result(call) for call in message.tool_calls]
        messages += await asyncio.gather(*calls) if at_once else [await call for call in calls]
        step += 1


async def _result(call: Any) -> dict[str, str]:
    seconds = json.loads(call.function.arguments)["seconds"]
    await asyncio.sleep(seconds)
    return {"role": "tool", "tool_call_id": call.id, "content": f"answered after {seconds:g} s"}
