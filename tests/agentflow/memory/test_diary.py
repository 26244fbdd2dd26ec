"""A page that was promised is written, whatever becomes of the process, and one that cannot be written keeps no other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentflow.errors import ContextLengthExceeded, EngineUnavailable
from agentflow.library.embedderid import EmbedderId
from agentflow.memory.diary import KIND, Diary, Page
from agentflow.memory.memories import Memories, Wanted
from agentflow.memory.rows import Entry
from dataplane import DataPlane, StateStore
from tests.agentflow.memory.rooms import PATIENCE_S, config

LONGEST = 40
ENTRY = Entry(id="m_1", kind="note", text="The cat sleeps.", agent="a", run_id="run_1", at=1)


class Words:
    """An embedder whose vectors are counts of letters. `away`: how many calls it refuses."""

    def __init__(
        self, away: int = 0, *, hangs: bool = False, width: int = 26, model: str = "letters", first: int = 97
    ) -> None:
        self.model = model
        self.first = first
        self.away = away
        self.hangs = hangs
        self.width = width

    async def __call__(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            self.away -= 1
            raise EngineUnavailable("The model e is loading.", retry_after_s=1.0)
        if any(len(text) > LONGEST for text in texts):
            raise ContextLengthExceeded("too long")
        found = [[1.0 + text.lower().count(chr(self.first + n % 26)) for n in range(self.width)] for text in texts]
        return np.array(found, dtype=np.float32)


def diary_on(plane: DataPlane, words: Words) -> tuple[Diary, Memories]:
    async def opened() -> DataPlane:
        return plane

    async def state() -> StateStore:
        return plane.state

    async def embedder_id() -> EmbedderId:
        return EmbedderId(model=words.model)

    memories = Memories(opened, words, embedder_id)
    return Diary(memories, state, retry_s=0.01), memories


async def written(diary: Diary) -> None:
    worker = asyncio.create_task(diary.run())
    async with asyncio.timeout(PATIENCE_S):
        while diary.due:
            await asyncio.sleep(0.005)
    worker.cancel()
    await asyncio.wait([worker])


async def found(memories: Memories, tenant: str = "acme", name: str = "a") -> list[str]:
    findings = await memories.search(tenant, name, Wanted("cat", 20, PATIENCE_S))
    return sorted(memory.id for memory in findings.memories)


async def hang(folder: Path) -> None:
    """Promise a page, and hang in the middle of writing it. In a process that is killed."""
    plane = await DataPlane.open(config(folder))
    diary, _ = diary_on(plane, Words(hangs=True))
    worker = asyncio.create_task(diary.run())
    await diary.put("acme", "run_1", Page(name="a", entries=(ENTRY,)))
    print("promised", flush=True)
    await worker


def kill_in_the_middle(folder: Path) -> None:
    program = f"import asyncio, pathlib; from {__name__} import hang; asyncio.run(hang(pathlib.Path({str(folder)!r})))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "promised\n"
        os.kill(process.pid, signal.SIGKILL)


async def test_a_page_survives_a_kill_and_is_written_by_the_next_process(tmp_path: Path) -> None:
    await asyncio.to_thread(kill_in_the_middle, tmp_path)
    plane = await DataPlane.open(config(tmp_path))
    try:
        diary, memories = diary_on(plane, Words(away=2))
        assert await diary.take_up(["acme", "other"]) == 1
        await written(diary)
        assert await found(memories) == ["m_1"]
        assert await plane.state.scan("acme", KIND) == []
        await diary.put("acme", "run_1", Page(name="a", entries=(ENTRY,)))  # a crash before the page was removed
        await written(diary)
        assert await found(memories) == ["m_1"]
    finally:
        await plane.close()


async def test_a_page_that_cannot_be_written_keeps_no_other(tmp_path: Path) -> None:
    plane = await DataPlane.open(config(tmp_path))
    try:
        words = Words()
        diary, memories = diary_on(plane, words)
        long = "The cat sleeps on the sofa. " * 20
        second = Entry(id="m_2", kind="turn", text=long, agent="a", run_id="run_2", at=2)
        await diary.put("acme", "run_1", Page(name="a", entries=(ENTRY, second)))
        await written(diary)
        assert await found(memories) == ["m_1", "m_2"]
        (row,) = await plane.get("acme", "memory/a", ["m_2"])
        assert row is not None
        assert row.text == long  # its vector is that of its beginning
        words.width = 30  # another model
        other = Entry(id="m_3", kind="note", text="A cat.", agent="a", run_id="run_3", at=3)
        await plane.state.put("acme", KIND, "run_4", b"no page")
        await diary.put("acme", "run_3", Page(name="a", entries=(other,)))
        await diary.put("acme", "run_5", Page(name="b", entries=(other,)))
        assert await diary.take_up(["acme"]) == 3
        await written(diary)
        assert await found(memories, name="b") == ["m_3"]
        assert await plane.state.scan("acme", KIND) == []
    finally:
        await plane.close()


async def test_a_page_that_is_put_anew_while_its_rows_are_written_is_written_too(tmp_path: Path) -> None:
    class PutAnew(Words):
        async def __call__(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
            if pages:
                await diary.put("acme", "run_1", pages.pop())
            return await super().__call__(tenant, texts, background)

    second = Entry(id="m_2", kind="note", text="The cat is awake.", agent="a", run_id="run_1", at=2)
    pages = [Page(name="a", entries=(second,))]
    plane = await DataPlane.open(config(tmp_path))
    try:
        diary, memories = diary_on(plane, PutAnew())
        await diary.put("acme", "run_1", Page(name="a", entries=(ENTRY,)))
        await written(diary)
        assert pages == []
        assert await found(memories) == ["m_1", "m_2"]
        assert await plane.state.scan("acme", KIND) == []
    finally:
        await plane.close()
