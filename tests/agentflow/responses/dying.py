"""Processes that die by SIGKILL before each write of what they do with a response; the program that `died` starts.

They are forked from one that has imported everything, and nothing else runs in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow.responses.ids import run_of
from agentflow.service import Service
from dataplane.state.store import StateStore
from tests.agentflow.agents.agencies import BodyTool, benched, call
from tests.agentflow.responses.test_between import pay, words
from tests.agentflow.responses.test_responses import asked, opened

ROOT = Path(__file__).parents[3]
RULES = {"paid Ann": "Ann is paid.", "go": call("pay", '{"to": "Ann"}'), "hello": "Hi."}
WRITES = ("put", "delete", "append_ahead", "drop_stream")


@asynccontextmanager
async def living(folder: Path) -> AsyncIterator[tuple[Service, StateStore]]:
    """A service whose data lies in the folder."""
    plane = await opened(folder)
    async with benched(folder, RULES, [BodyTool("pay", pay, approval=True, idempotent=True)], plane=plane) as it:
        yield it.service, plane.state
    await plane.close()


def died(folder: Path, what: str) -> list[Path]:
    """The folders of processes that did `what`, each killed before its next write, and of one that came to the end."""
    command = [sys.executable, "-m", __name__, str(folder), what]
    done = subprocess.run(command, cwd=ROOT, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
    return [Path(name) for name in json.loads(done.stdout)]


def die_before(number: int) -> None:
    """From here on, the process dies before its write of that number, counted from 1."""
    made = 0

    def dying(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def written(*arguments: Any, **more: Any) -> Any:
            nonlocal made
            made += 1
            if made == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return await write(*arguments, **more)

        return written

    for name in WRITES:
        setattr(StateStore, name, dying(getattr(StateStore, name)))


async def live(folder: Path, what: str, number: int) -> None:
    """Begin a response, go on with one by a person's word, or delete one, in a conversation; die meanwhile."""
    async with living(folder) as (service, _):
        responses = service.responses
        where = {"conversation": (await responses.conversations.create("default", {}, ())).id}
        if what == "begin":
            die_before(number)
            await (await responses.create(asked("hello", "agent/a", **where))).finish()
        else:
            text = "go" if what == "go_on" else "hello"
            first = await (await responses.create(asked(text, "agent/a", **where))).finish()
            run = service.agents.live("default", run_of(first.record.id))
            if what == "go_on":
                assert run is not None
                new = words(run.progress.waiting[0].id, **where)
                die_before(number)
                await (await responses.create(new)).finish()
            else:
                await service.agents.drain()
                die_before(number)
                await responses.delete("default", first.record.id)
        await service.agents.drain()


def main() -> None:
    """Fork, until one comes to its end."""
    place, what, folders = Path(sys.argv[1]), sys.argv[2], []
    while True:
        folder = place / str(len(folders) + 1)
        folder.mkdir()
        folders.append(str(folder))
        child = os.fork()
        if child == 0:
            asyncio.run(live(folder, what, len(folders)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            assert status == 0
            break
    print(json.dumps(folders))


if __name__ == "__main__":
    main()
