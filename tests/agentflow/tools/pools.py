"""Pools of real workers, as the tests call them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.tool import CallContext, Content
from agentflow.tools.workers import Workers

EXAMPLE = Path(__file__).with_name("example_tools.py")
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/root"}


def source(module: Path = EXAMPLE, **settings: Any) -> PythonSource:
    return PythonSource(**{"module": str(module), "warm": 0, "workers": 2, **settings})


class Pool:
    """Workers, and the calls of a test."""

    def __init__(self, workers: Workers, folder: Path) -> None:
        self.workers = workers
        self.folder = folder

    async def call(self, name: str, within_s: float = 60.0, **arguments: Any) -> str | Content:
        context = CallContext(
            tenant="ann",
            run_id="run",
            call_id="call",
            key="run/call",
            deadline_at=time.monotonic() + within_s,
            result_path=self.folder / "result",
        )
        return (await self.workers.call(name, arguments, context)).content


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
