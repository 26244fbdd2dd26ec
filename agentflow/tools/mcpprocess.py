"""McpProcess: the process of an MCP server that speaks over its standard input and output.

Begun in a thread of the servers' own, with which it would die, below a minder, which ends as it does, after all that it
started (minded.py). It is ended as the protocol has it: its input is closed, then it gets SIGTERM, then SIGKILL, each after a
while.

Nothing here waits for it. What it does not read is kept up to a bound, and passing that is its fault, as is a line that is
longer than a message may be. Of what it writes to standard error the end is kept.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

from agentflow.tools.errors import ToolDied
from agentflow.tools.minded import GRACE_S, Minded

_PROGRAM: Final = Path(__file__).with_name("mcplaunch.py")
_BLOCK: Final = 1 << 16
_TAIL: Final = 4096
_SHOWN: Final = 500
"""Characters of its last words that are told, of both their ends."""
_POLITE_S: Final = 1.0
"""What it has to end, after its input was closed, and again after SIGTERM."""


class _Begun(NamedTuple):
    process: Minded
    to: IO[bytes]
    output: IO[bytes]
    errors: IO[bytes]

    def discard(self) -> None:
        """End it, where nobody takes it on. Blocks for milliseconds."""
        self.process.discard()
        for pipe in self[1:]:
            pipe.close()


class _Tail(asyncio.Protocol):
    """Keeps the end of what comes."""

    def __init__(self) -> None:
        self.kept = bytearray()

    def data_received(self, data: bytes) -> None:
        self.kept += data
        if len(self.kept) > 2 * _TAIL:
            del self.kept[:-_TAIL]


class _Lines(NamedTuple):
    """What leads to it and from it."""

    to: asyncio.WriteTransport
    output: asyncio.StreamReader
    tail: _Tail
    transports: tuple[asyncio.BaseTransport, ...]


class McpProcess:
    """Made by `begin`; `end` it. `most_bytes`: of one line, and of what it has not read."""

    def __init__(self, process: Minded, lines: _Lines, most_bytes: int) -> None:
        self._process = process
        self._most_bytes = most_bytes
        self._input, self._output, self._tail, self._transports = lines
        process.watch(self._over)

    @classmethod
    async def begin(
        cls,
        command: Sequence[str],
        folder: str | None,
        environment: Mapping[str, str],
        thread: Executor,
        most_bytes: int,
    ) -> McpProcess:
        """Start it. `thread` must outlive it. Raises OSError. Where it raises, cancelled or not, it leaves no process."""
        loop = asyncio.get_running_loop()
        beginning = loop.run_in_executor(thread, _begin, tuple(command), folder, dict(environment))
        try:
            begun = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await asyncio.wait([beginning])
            if not beginning.cancelled() and beginning.exception() is None:
                beginning.result().discard()
            raise
        with ExitStack() as undo:
            undo.callback(begun.discard)
            to, _ = await loop.connect_write_pipe(asyncio.Protocol, begun.to)
            undo.callback(to.abort)
            reader, tail = asyncio.StreamReader(_BLOCK), _Tail()
            output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), begun.output)
            undo.callback(output.close)
            errors, _ = await loop.connect_read_pipe(lambda: tail, begun.errors)
            undo.callback(errors.close)
            process = cls(begun.process, _Lines(to, reader, tail, (to, output, errors)), most_bytes)
            undo.pop_all()
        return process

    @property
    def pid(self) -> int:
        """The minder's."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what it wrote to standard error, without its middle where it is long.

        It may hold anything: for the log, and not for a model.
        """
        words = " ".join(self._tail.kept[-_TAIL:].decode("utf-8", "replace").split())
        return words if len(words) <= 2 * _SHOWN else f"{words[:_SHOWN]} ... {words[-_SHOWN:]}"

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """What it says, without line feeds, to its end. Raises ToolDied for a line that is too long."""
        buffer = bytearray()
        while block := await self._output.read(_BLOCK):
            first, *others = block.split(b"\n")
            buffer += first
            for other in others:
                yield bytes(buffer)
                buffer = bytearray(other)
            if len(buffer) > self._most_bytes:
                raise ToolDied(f"it wrote a message of more than {self._most_bytes:,} bytes")

    def send(self, line: bytes) -> None:
        """Say something. Does not wait. Raises ToolDied where it has ended, or does not read."""
        if self._input.is_closing():
            raise ToolDied("it does not read any more")
        self._input.write(line + b"\n")
        if self._input.get_write_buffer_size() > 2 * self._most_bytes:
            raise ToolDied("it does not read what it is sent")

    def kill(self) -> None:
        """At once, with all that it started. `end` it still."""
        self._process.kill()

    async def end(self) -> None:
        """End it, as it likes it or not: it has ended when this returns. Cancelled, it is killed at once. Idempotent."""
        ending = asyncio.get_running_loop().create_task(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            self.kill()
            await asyncio.wait([ending])
            raise

    async def _end(self) -> None:
        if not self._input.is_closing():
            if self._input.get_write_buffer_size():
                self._input.abort()  # it would wait until all is read
            else:
                self._input.close()
        draining = asyncio.get_running_loop().create_task(self._drain())
        for urge in (partial(self._process.signal, signal.SIGTERM), self._process.kill):
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLITE_S):
                    await self._process.wait()
            urge()
        await self._process.wait()
        draining.cancel()
        await asyncio.wait([draining])
        self._close()

    async def _drain(self) -> None:
        """So that it does not wait for us to read its last words."""
        while True:
            try:
                if not await self._output.read(_BLOCK):
                    return
            except RuntimeError:  # who read them is being cancelled, and reads still
                await asyncio.sleep(0)

    def _over(self) -> None:
        # Its last words may be in the pipe; and who took the pipe along never closes it.
        asyncio.get_running_loop().call_later(GRACE_S, self._close)

    def _close(self) -> None:
        for transport in self._transports:
            transport.close()


def _begin(command: tuple[str, ...], folder: str | None, environment: dict[str, str]) -> _Begun:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder or "/",
        env=environment,
        bufsize=0,
        start_new_session=True,  # a ctrl-C at the terminal is the daemon's to answer
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    return _Begun(Minded(process), process.stdin, process.stdout, process.stderr)
