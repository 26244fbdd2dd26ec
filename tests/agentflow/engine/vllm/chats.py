"""Asking the real engine in its model's own chat format."""

import asyncio
from typing import Any

from tokenizers import Tokenizer

from agentflow.engine.protocol import Delta, GenerateRequest
from agentflow.engine.vllm.engine import VllmEngine
from agentflow.messages import Sampling, Structured

GREEDY = Sampling(temperature=0)
MODEL_EOS = 2


class Chat:
    """Asks the engine in the model's own chat format."""

    def __init__(self, engine: VllmEngine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._number = 0

    def request(self, text: str, sampling: Sampling = GREEDY, max_tokens: int = 40, **more: Any) -> GenerateRequest:
        self._number += 1
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return GenerateRequest(f"t{self._number}", self._tokenizer.encode(prompt).ids, sampling, max_tokens, **more)

    async def deltas(self, text: str, sampling: Sampling = GREEDY, max_tokens: int = 40, **more: Any) -> list[Delta]:
        request = self.request(text, sampling, max_tokens, **more)
        return [delta async for delta in self.engine.generate(request)]

    async def text(self, text: str, sampling: Sampling = GREEDY, max_tokens: int = 40) -> str:
        return "".join(delta.text for delta in await self.deltas(text, sampling, max_tokens))

    def decode(self, deltas: list[Delta]) -> str:
        return self._tokenizer.decode([token for delta in deltas for token in delta.token_ids])


async def until(condition: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def structured(kind: Any, value: Any = None) -> Sampling:
    return Sampling(temperature=0, structured=Structured(kind, value))
