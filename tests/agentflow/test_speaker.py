"""What a speaker says is forgotten with its prompt, when the time of both is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.encoding import Encoding
from agentflow.engine.script import Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.messages import Caller, Sampling
from agentflow.model import Model, ServedModel
from agentflow.scheduler import PrefixKeeper, Scheduler
from agentflow.speaker import Speaker, Utterance
from agentflow.tokenizer import ByteTokenizer

CONFIG = SchedulerConfig(idle_prefixes=0)  # all goes at once


class Forgetting(ScriptedEngine):
    """An engine that tells what it was to forget."""

    def __init__(self) -> None:
        super().__init__(Script(answer="Hello, hello."))
        self.forgotten: list[list[int]] = []

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        self.forgotten.append(list(token_ids))
        return await super().forget(token_ids, keep, cache_salt)


async def test_what_was_said_is_forgotten_with_the_prompt() -> None:
    engine = Forgetting()
    scheduler = Scheduler(CONFIG, lambda _: None)
    supervisor = Supervisor("m/0", lambda: engine, SupervisorLimits())
    config = ModelConfig(model="m", engine="scripted", max_model_len=1000)
    served = ServedModel("m", (), "chat", config, None, 0, ByteTokenizer, ())
    model = Model(served, scheduler.add_pool("m", (supervisor,)), (supervisor,), (0.01, 0.01))
    keeper = PrefixKeeper(CONFIG, scheduler)
    encoding = Encoding(CONFIG)
    prompt = list(b"Greet the world.")
    said: list[int] = []
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        keeper.start(tasks)
        await model.load(encoding.threads, asyncio.Event())
        speaker = Speaker(model, await model.spoken(time.monotonic() + 10), scheduler, encoding.run, keeper)
        utterance = Utterance(
            id="u", request_id="r", prompt=prompt, sampling=Sampling(), most_tokens=9, caller=Caller(), deadline_s=10
        )
        async for delta in speaker.speak(utterance):
            said += delta.token_ids
        while not engine.forgotten:
            await asyncio.sleep(0.002)
        keeper.stop()
        await supervisor.stop(1)
    encoding.close()
    assert len(said) == 9
    assert engine.forgotten == [[*prompt, *said]]
