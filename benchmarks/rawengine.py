"""Raw `AsyncLLM.generate`, with nothing in front of it but a socket: the ceiling for any server in front of vLLM.

It takes the same request from the same load generator, gives the engine the same tokens, and writes each output as one
`data:` line: no routing, no validation, no scheduling, no template engine, no web framework. What it streams is what the
load generator needs to count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import uuid
from typing import Any

import uvloop
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


class Prompt:
    """The model's chat template around a user's message, rendered once."""

    MARK = "MESSAGE"

    def __init__(self, model: str) -> None:
        self.tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
        rendered = AutoTokenizer.from_pretrained(model).apply_chat_template(
            [{"role": "user", "content": self.MARK}], tokenize=False, add_generation_prompt=True
        )
        self.before, self.after = rendered.split(self.MARK)

    def encode(self, message: str) -> list[int]:
        """The token ids of the conversation."""
        ids: list[int] = self.tokenizer.encode(self.before + message + self.after, add_special_tokens=False).ids
        return ids


class Connection(asyncio.Protocol):
    """Reads requests one after the other and streams each answer."""

    def __init__(self, engine: AsyncLLM, prompt: Prompt, tasks: set[asyncio.Task[None]]) -> None:
        self.engine = engine
        self.prompt = prompt
        self.tasks = tasks
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        if head.startswith(b"GET"):
            self.buffer = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(rest) >= length:
            self.buffer = rest[length:]
            task = asyncio.get_running_loop().create_task(self.answer(json.loads(rest[:length])))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, body: dict[str, Any]) -> None:
        ids = self.prompt.encode(body["messages"][0]["content"])
        params = SamplingParams(
            temperature=0.0,
            max_tokens=body["max_tokens"],
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        write = self.transport.write
        write(HEAD)
        count = 0
        async for out in self.engine.generate({"prompt_token_ids": ids}, params, uuid.uuid4().hex):
            choice = out.outputs[0]
            count += len(choice.token_ids)
            write(b'data: {"choices":[{"delta":{"content":' + json.dumps(choice.text).encode() + b"}}]}\n\n")
        write(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % count)


async def serve(port: int, model: str, engine_args: dict[str, Any]) -> None:
    """Serve until cancelled."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **engine_args, disable_log_stats=True))
    prompt = Prompt(model)
    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(engine, prompt, tasks), "127.0.0.1", port
    )
    async with server:
        await server.serve_forever()


def main() -> None:
    """Entry point; the guard below is what vLLM's spawned processes need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine-args", type=json.loads, default={})
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(args.port, args.model, args.engine_args))


if __name__ == "__main__":
    main()
