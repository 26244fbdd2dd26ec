"""The engine's output: stages of a start, errors, the cause of a failure."""

import asyncio
import contextlib
import fcntl
import logging
import os
import struct
import termios
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from agentflow.engine.vllm.childlog import KEPT_LINES, PIECE_BYTES, PIPE_BYTES, ChildLog

TRACEBACK = """\x1eERROR vllm.v1.engine.core: EngineCore failed to start.
Traceback (most recent call last):
  File "worker.py", line 1, in load
    raise ValueError("no weights")
ValueError: Cannot find any model weights with `/models/x`.

During handling of the above exception, another exception occurred:

RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.fixture
async def stages() -> list[tuple[str, float]]:
    return []


@pytest.fixture
async def log(stages: list[tuple[str, float]]) -> AsyncIterator[ChildLog]:
    log = ChildLog(lambda stage, part: stages.append((stage, part)))
    yield log
    log.close()


async def write(log: ChildLog, text: str) -> None:
    """Write, and let the loop read all of it."""
    os.write(log.writing_fd, text.encode())
    async with asyncio.timeout(5):
        while unread(log):
            await asyncio.sleep(0)


def unread(log: ChildLog) -> int:
    """Bytes in the pipe."""
    return struct.unpack("i", fcntl.ioctl(log.writing_fd, termios.FIONREAD, bytes(4)))[0]  # type: ignore[no-any-return]


async def test_the_cause_is_the_first_error_and_not_its_echo(log: ChildLog) -> None:
    await write(log, TRACEBACK)
    assert log.root_cause() == "Cannot find any model weights with `/models/x`"


async def test_an_error_whose_kind_says_something_is_told_with_it(log: ChildLog) -> None:
    await write(log, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n")
    assert log.root_cause() == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


async def test_silence_and_mere_echoes_have_no_cause(log: ChildLog) -> None:
    assert log.root_cause() is None
    await write(log, "RuntimeError: cancelled\n")
    assert log.root_cause() is None


async def test_log_records_tell_how_far_the_start_is(log: ChildLog, stages: list[tuple[str, float]]) -> None:
    for text in ("Starting to load model /m", "Loading weights took 0.6 seconds", "CPU KV cache size: 46,592 tokens"):
        await write(log, f"\x1eINFO vllm.some.module: {text}\n")
    assert stages == [("loading", 0), ("loaded", 0), ("allocating the KV cache", 0)]


async def test_the_files_of_weights_that_were_read_are_told(log: ChildLog, stages: list[tuple[str, float]]) -> None:
    for done, percent in enumerate((0, 50, 100)):
        bar = f"Loading safetensors checkpoint shards: {percent:3}% Completed | {done}/2 [00:00<00:01,  2.11it/s]"
        await write(log, f"\r{bar}\n")
    assert stages == [("loading", 0), ("loading", 0.5), ("loading", 1)]


async def test_a_line_that_comes_in_pieces_is_read_as_one(log: ChildLog, stages: list[tuple[str, float]]) -> None:
    for piece in ("\x1eINFO vllm.x: Starting", " to load", " model /m", "\n"):
        await write(log, piece)
    assert stages == [("loading", 0)]


async def test_first_lines_of_errors_reach_the_daemons_log_and_the_rest_only_for_debugging(
    log: ChildLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "agentflow.engine.vllm")
    await write(log, "\x1eINFO vllm.x: chatter\n\x1eWARNING vllm.x: a choice\n" + TRACEBACK)
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    quiet = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert loud == ["EngineCore failed to start."]
    assert quiet[:3] == ["chatter", "a choice", "Traceback (most recent call last):"]


async def test_what_is_kept_is_bounded_however_much_comes(log: ChildLog) -> None:
    await write(log, "x" * 40_000)
    await write(log, "\nKeyError: late\n" + "noise\n" * (KEPT_LINES - 2))
    assert log.root_cause() == "KeyError: late"
    await write(log, "noise\n" * KEPT_LINES)
    assert log.root_cause() is None


async def test_a_process_that_writes_without_end_does_not_hold_the_loop(
    log: ChildLog, stages: list[tuple[str, float]]
) -> None:
    line = b"\x1eINFO vllm.x: Starting to load model /m\n"
    os.set_blocking(log.writing_fd, False)
    counts: list[int] = []
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            while os.write(log.writing_fd, line * 100):
                pass  # until the pipe is full again
        await asyncio.sleep(0)
        counts.append(len(stages))
    assert counts[-1] > 0
    assert all(later - earlier <= 1 + PIECE_BYTES // len(line) for earlier, later in pairwise(counts))


async def test_the_cause_is_found_in_all_that_the_pipe_holds(log: ChildLog) -> None:
    noise = b"noise\n" * (PIPE_BYTES // 6 - 10)
    os.write(log.writing_fd, noise + b"KeyError: at the end\n")
    assert log.root_cause() == "KeyError: at the end"


async def test_a_last_line_without_its_end_is_not_lost(make: Callable[[], ChildLog]) -> None:
    log = make()
    os.write(log.writing_fd, b"noise\nKeyError: cut off")
    log.close()
    assert log.root_cause() == "KeyError: cut off"


async def test_closing_reads_what_is_left_and_gives_the_descriptors_back(make: Callable[[], ChildLog]) -> None:
    before = open_descriptors()
    log = make()
    os.write(log.writing_fd, b"KeyError: last words\n")
    log.close()
    log.close()
    assert log.root_cause() == "KeyError: last words"
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def make() -> Callable[[], ChildLog]:
    return lambda: ChildLog(lambda _stage, _part: None)
