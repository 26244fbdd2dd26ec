"""The process of an MCP server: begun, spoken with, and ended whatever happens."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from agentflow.tools.errors import ToolDied
from agentflow.tools.mcpprocess import McpProcess

STUBBORN = "trap '' TERM; echo up; while true; do sleep 1; done"


@pytest.fixture
async def thread() -> AsyncGenerator[ThreadPoolExecutor, None]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


async def begin(thread: ThreadPoolExecutor, *command: str, folder: str | None = None) -> McpProcess:
    return await McpProcess.begin(command, folder, {"PATH": os.defpath}, thread, 1000)


def living() -> set[int]:
    """The children of this process, and theirs."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


@pytest.fixture
def others() -> set[int]:
    """What other tests have left running, such as Python's resource tracker."""
    return living()


async def test_a_process_says_lines_to_its_end(thread: ThreadPoolExecutor) -> None:
    process = await begin(
        thread, "sh", "-c", "read line; echo you said $line; pwd; printf '\\nx\\nno end'; echo bad >&2", folder="/tmp"
    )
    process.send(b"hello")
    assert [line async for line in process.lines()] == [b"you said hello", b"/tmp", b"", b"x"]
    await process.end()
    assert process.last_words == "bad"
    with pytest.raises(ToolDied):
        process.send(b"too late")
    await process.end()


async def test_a_line_that_is_too_long_is_an_error(thread: ThreadPoolExecutor) -> None:
    process = await begin(thread, sys.executable, "-S", "-c", "print('x' * 10_000_000)")
    with pytest.raises(ToolDied, match="more than 1,000 bytes"):
        async for _ in process.lines():
            pass
    await process.end()


async def test_a_program_has_its_signals_as_they_were_and_no_descriptors_of_ours(thread: ThreadPoolExecutor) -> None:
    process = await begin(
        thread, "sh", "-c", "grep SigIgn /proc/self/status; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj"
    )
    ignored, descriptors, oom = [line.split() async for line in process.lines()]
    assert int(ignored[1], 16) == 0
    assert int(descriptors[0]) == 4  # three, and the folder that ls reads
    assert oom == [b"1000"]
    await process.end()


async def test_ending_is_not_put_off_by_a_cancellation(thread: ThreadPoolExecutor, others: set[int]) -> None:
    process = await begin(thread, "sh", "-c", STUBBORN)
    assert await anext(process.lines()) == b"up"
    ending = asyncio.create_task(process.end())
    await asyncio.sleep(0.05)
    assert living() - others
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert living() <= others


async def test_a_beginning_that_is_cancelled_leaves_no_process(thread: ThreadPoolExecutor, others: set[int]) -> None:
    beginning = asyncio.create_task(begin(thread, "sh", "-c", STUBBORN))
    await asyncio.sleep(0)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    while living() - others:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("of", ["os.pidfd_open", "asyncio.StreamReader"])
async def test_a_beginning_that_fails_leaves_no_process_and_no_descriptor(
    thread: ThreadPoolExecutor, others: set[int], monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    await (await begin(thread, "true")).end()
    await asyncio.sleep(0)
    descriptors = psutil.Process().num_fds()
    monkeypatch.setattr(of, full)
    with pytest.raises(OSError, match="Too many open files"):
        await begin(thread, "sh", "-c", STUBBORN)
    assert living() <= others
    await asyncio.sleep(0)  # the loop closes transports in its next turn
    assert psutil.Process().num_fds() <= descriptors


async def test_what_cannot_be_started_is_an_error(thread: ThreadPoolExecutor) -> None:
    with pytest.raises(OSError, match="No such file"):
        await begin(thread, "true", folder="/no/such/folder")
    process = await begin(thread, "/no/such/program")
    assert [line async for line in process.lines()] == []
    await process.end()
    assert process.last_words == "/no/such/program: No such file or directory"


async def test_of_long_last_words_both_ends_are_told(thread: ThreadPoolExecutor) -> None:
    words = " ".join(f"word{number:03}" for number in range(300))
    process = await begin(thread, "sh", "-c", f"echo {words} >&2")
    assert [line async for line in process.lines()] == []
    await process.end()
    assert process.last_words.startswith("word000 word001 ")
    assert process.last_words.endswith(" word298 word299")
    assert " ... " in process.last_words
    assert len(process.last_words) == 1005
