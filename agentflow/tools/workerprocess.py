"""WorkerProcess: one worker, as the daemon sees it: a process, a socket for frames, and a pipe with what it prints.

Begun in the pool's own thread and not on the loop, for the two reasons that extraction.py gives: a fork would stop the loop,
and the kernel ties the child to the thread that started it.

The process that is begun becomes the worker's minder, and ends as the worker does, after all that the worker started
(minded.py). So it is over when the minder has ended (the socket's end would not tell: a process that a tool forked may hold
that).

Of what it prints the beginning is kept (printed.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from agentflow.tools import wire
from agentflow.tools.errors import ToolDied
from agentflow.tools.minded import GRACE_S, Minded
from agentflow.tools.printed import Printed, Taken
from agentflow.tools.secrets import Secrets
from agentflow.tools.wire import Reply, Request, WireError

_PROGRAM: Final = Path(__file__).with_name("worker.py")
_DRAINED: Final = 64 << 10
"""Bytes of a frame that are sent without waiting for the worker to read them."""
_SHOWN: Final = 300  # characters of its last words in a message


class _Begun(NamedTuple):
    process: Minded
    connection: socket.socket
    output: int


@dataclass(slots=True)
class _Lines:
    """What leads to the process: the frames' two directions, and its output."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    printed: Printed


class WorkerProcess:
    """Made by `begin`. `on_end` is called on the loop, once, when the process has been reaped."""

    def __init__(self, process: Minded, lines: _Lines, on_end: Callable[[WorkerProcess], None]) -> None:
        self._process = process
        self._lines = lines
        self._on_end = on_end
        self._killed = False
        self._asking = False
        process.watch(self._end)

    @classmethod
    async def begin(
        cls, environment: Mapping[str, str], thread: Executor, on_end: Callable[[WorkerProcess], None]
    ) -> WorkerProcess:
        """Start a process; it has said nothing yet. `thread` must outlive it. Raises OSError.

        Cancelled, it leaves no process.
        """
        loop = asyncio.get_running_loop()
        beginning = loop.run_in_executor(thread, _begin, dict(environment))
        try:
            begun = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await asyncio.wait([beginning])
            if beginning.exception() is None:
                begun = beginning.result()
                begun.process.discard()
                begun.connection.close()
                os.close(begun.output)
            raise
        with ExitStack() as undo:
            undo.callback(begun.process.discard)
            printed = Printed(begun.output)
            undo.callback(printed.close)
            undo.callback(begun.connection.close)
            reader, writer = await asyncio.open_unix_connection(sock=begun.connection, limit=wire.FRAME_MAX)
            undo.callback(writer.transport.abort)
            worker = cls(begun.process, _Lines(reader, writer, printed), on_end)
            undo.pop_all()
        return worker

    @property
    def pid(self) -> int:
        """The minder's."""
        return self._process.pid

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it, where that was none of ours."""
        code = self._process.code
        return -code if code is not None and code < 0 and not self._killed else None

    @property
    def alive(self) -> bool:
        """Neither ended nor told to."""
        return not self._killed and not self._process.ended

    async def ask(self, request: bytes | Request) -> Reply:
        """Send a frame, and wait for the answer; one at a time. Raises ToolDied, and WireError for what cannot be sent.

        After an error other than WireError, and after a cancellation, the process is not to be used again: kill it.
        """
        frame = request if isinstance(request, bytes) else wire.encode(request)
        lines = self._lines
        self._asking = True
        try:
            lines.writer.write(frame)
            if len(frame) > _DRAINED:
                await lines.writer.drain()
            size = wire.length(await lines.reader.readexactly(wire.PREFIX.size))
            return wire.reply(await lines.reader.readexactly(size))
        except WireError as error:
            raise ToolDied(f"its process said what it must not: {error}") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            await self.end()
            raise ToolDied(f"its process {self._how()}") from error
        finally:
            self._asking = False

    def printed(self, secrets: Secrets) -> Taken:
        """What it printed since the last time."""
        return self._lines.printed.take(secrets)

    def last_words(self) -> str:
        """The last line that it printed."""
        return self._lines.printed.last_line()[-_SHOWN:]

    def kill(self) -> None:
        """End it, and all that it started. Idempotent; `end` waits until nothing of it is left."""
        if self.alive:
            self._killed = True
            self._process.kill()

    async def end(self) -> None:
        """Kill it, and wait for its end: milliseconds."""
        if not self._process.ended:
            # It may be ending by itself (its socket has ended), and then the reason should be its own, not our kill.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._killed else GRACE_S):
                    await self._process.wait()
        self.kill()
        await self._process.wait()
        self._close()

    def _end(self) -> None:
        if self._asking:  # what it said last may lie in the socket still; and who took the socket along never ends it
            asyncio.get_running_loop().call_later(GRACE_S, self._close)
        else:
            self._close()
        self._on_end(self)

    def _close(self) -> None:
        self._lines.writer.transport.abort()
        self._lines.printed.close()

    def _how(self) -> str:
        code = self._process.code
        if self._killed:
            return "closed its socket"
        if code is None or code >= 0:
            return f"ended by itself (exit code {code})"
        if code == -signal.SIGKILL:
            return "was killed from outside (by the kernel, if memory ran out)"
        return f"crashed ({_signal_name(-code)})"


def _begin(environment: Mapping[str, str]) -> _Begun:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    try:
        with theirs, os.fdopen(write, "wb", 0) as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-X", "utf8", str(_PROGRAM), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a ctrl-C at the terminal is the daemon's to answer
            )
    except BaseException:
        ours.close()
        os.close(read)
        raise
    ours.setblocking(False)
    return _Begun(Minded(process), ours, read)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
