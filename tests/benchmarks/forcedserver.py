"""A small OpenAI server that says what it is told: `python tests/benchmarks/forcedserver.py --port N`.

It streams chat completions of what `structured_outputs` gives as the only choice, its calls as vLLM's server tells them, and
counts its generations in /metrics under vLLM's name, each as GENERATION_S, a moment after it has told its end, as vLLM does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import Any

from aiohttp import web

GENERATION_S = 0.5  # as counted; it takes none
COUNTED_LATER_S = 0.2
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class Forced:
    """The server, and what it has counted."""

    def __init__(self) -> None:
        self.generations = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """One generation."""
        asked = await request.json()
        (text,) = asked["structured_outputs"]["choice"]
        calls = [json.loads(found) for found in CALL.findall(text)]
        deltas: list[dict[str, Any]] = [{"tool_calls": [told(at, call)]} for at, call in enumerate(calls)]
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for delta in [{"role": "assistant", "content": ""}, *(deltas or [{"content": text}])]:
            await answer.write(event(asked, choices=[{"index": 0, "delta": delta, "finish_reason": None}]))
        reason = "tool_calls" if calls else "stop"
        await answer.write(event(asked, choices=[{"index": 0, "delta": {}, "finish_reason": reason}]))
        await answer.write(
            event(asked, choices=[], usage={"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101})
        )
        await answer.write(b"data: [DONE]\n\n")
        asyncio.get_running_loop().call_later(COUNTED_LATER_S, self.count)
        return answer

    def count(self) -> None:
        """One more."""
        self.generations += 1

    async def metrics(self, _: web.Request) -> web.Response:
        """As vLLM's server tells them."""
        name, labels = "vllm:e2e_request_latency_seconds", '{engine="0",model_name="bench"}'
        lines = [
            f"# HELP {name} Histogram of e2e request latency in seconds.",
            f"# TYPE {name} histogram",
            f'{name}_bucket{{engine="0",le="+Inf",model_name="bench"}} {self.generations}.0',
            f"{name}_count{labels} {self.generations}.0",
            f"{name}_sum{labels} {self.generations * GENERATION_S}",
        ]
        return web.Response(text="\n".join(lines) + "\n")


def told(at: int, call: dict[str, Any]) -> dict[str, Any]:
    """A call as the API has it."""
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {"index": at, "id": f"call-{at}", "type": "function", "function": function}


def event(asked: dict[str, Any], **fields: Any) -> bytes:
    """A line of the stream."""
    chunk = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": asked["model"], **fields}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def ready(_: web.Request) -> web.Response:
    """That it answers."""
    return web.Response()


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    forced, app = Forced(), web.Application()
    app.add_routes([web.post("/v1/chat/completions", forced.complete), web.get("/metrics", forced.metrics)])
    app.add_routes([web.get("/health", ready)])
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port, print=None)


if __name__ == "__main__":
    main()
