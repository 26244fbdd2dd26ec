"""The real engine, started once for all tests that need one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from acu import models
from agentflow.config import ModelConfig
from agentflow.engine.vllm.engine import VllmEngine
from tests.agentflow.engine.machine import this_machine

CHAT_MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def chat_model(real_model_cache: Path) -> Path:
    """The folder of a small chat model, pulled if it is not there."""
    return models.pull(CHAT_MODEL, real_model_cache).path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_engine(chat_model: Path) -> AsyncIterator[VllmEngine]:
    """A started VllmEngine. Its tests run in the session's event loop."""
    config = ModelConfig(
        model=CHAT_MODEL, max_model_len=1024, max_running=32, kv_cache_mb=256, engine_args={"enforce_eager": True}
    )
    engine = VllmEngine(chat_model, config, this_machine, 10)
    try:
        await engine.start(lambda _: None)
        yield engine
    finally:
        await engine.stop(10)
