"""`python -I worker.py SOCKET DAEMON`: run the Python functions of one module, a call at a time, for a daemon.

SOCKET is the number of an open socket, on which frames go to and fro (wire.py). The first one says what to import. Standard
output and error are pipes that the daemon drains; standard input is empty. DAEMON is its process id. The functions run in a
child of this process, which minds that (minder.py).

Before it imports a stranger's module, the child bounds its address space and its open files. Unlike a file's reader
(agentflow/library/confinement.py) it may open sockets and start threads and processes: tools do. So this keeps an accident
from harming others, and is no prison: a tool runs as the daemon's user.

Ends when the socket does. A function may do anything: raise, exit, never return, write to the socket. The daemon counts on
nothing but that this process can be killed. Started by its path and isolated (-I), so that nothing in the working folder or
in the environment is imported by mistake.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # where `agentflow` is, installed or not

from agentflow.library.confinement import limit
from agentflow.tools import wire
from agentflow.tools.errors import InvalidArguments, ToolError
from agentflow.tools.function import Function
from agentflow.tools.minder import mind
from agentflow.tools.result import failure, finished, trace_of
from agentflow.tools.toolmodule import load_functions
from agentflow.tools.wire import Answered, Call, Described, Failed, Ready, Reply, Start, WireError


def main() -> None:
    """Import the module, answer calls until the socket ends."""
    mind(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # not for what a tool starts
    reader = connection.makefile("rb")
    start = _read(reader)
    if not isinstance(start, Start):
        os._exit(1)
    limit(resource.RLIMIT_AS, start.memory_bytes)
    limit(resource.RLIMIT_NOFILE, start.open_files)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what it printed is there if it is killed
    functions = _load(start, connection)
    while (call := _read(reader)) is not None:
        assert isinstance(call, Call)
        reply = _call(functions, call)
        _send(connection, reply)
    os._exit(0)  # nothing is worth tidying up, and what a tool left running is not waited for


def _load(start: Start, connection: socket.socket) -> dict[str, Function]:
    try:
        functions = load_functions(start.module, start.folders)
    except ToolError as error:
        _send(connection, Failed(str(error), spent=True))
        os._exit(1)
    except MemoryError:
        _send(connection, Failed(f"{start.module}: importing it takes more memory than memory_mb allows: raise it."))
        os._exit(1)
    if any(function.is_async for function in functions.values()):
        _awaited(_nothing())  # so that no call waits for its import
    _send(connection, Ready(tuple(Described(each.spec, each.trusted) for each in functions.values())))
    return functions


def _call(functions: dict[str, Function], call: Call) -> Reply:
    if (function := functions.get(call.name)) is None:
        return Failed(f"The module no longer has the tool {call.name}: restart the daemon.", spent=True)
    path = Path(os.fsdecode(call.result_path))
    try:
        arguments = function.arguments(call.arguments, call.context)
        value = function.code(**arguments)
        if function.is_async:
            value = _awaited(value)
        content = finished(value, call.name, path)
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, and harms its own call alone
        told = failure(error, call.name)
        return Failed(
            str(told),
            again=told.again,
            invalid=isinstance(told, InvalidArguments),
            spent=isinstance(error, MemoryError | SystemExit | KeyboardInterrupt),
            trace="" if told is error else trace_of(error),
        )
    if isinstance(content, str):
        return Answered(content)
    return Answered(None, content.media_type, content.size)


async def _nothing() -> None: ...


def _awaited(coroutine: Any) -> Any:
    import asyncio  # takes longer to import than all else here together, and many modules need none of it

    return asyncio.run(coroutine)


def _send(connection: socket.socket, reply: Reply) -> None:
    try:
        frame = wire.encode(reply)
    except WireError as error:
        frame = wire.encode(Failed(f"The module says what cannot be passed on: {error}: correct it.", spent=True))
    for stream in (sys.stdout, sys.stderr):  # the daemon reads it when it has the reply
        with suppress(Exception):  # a tool may have closed or replaced it
            stream.flush()
    connection.sendall(frame)


def _read(reader: BinaryIO) -> wire.Request | None:
    """The next request, or None at the end."""
    prefix = reader.read(wire.PREFIX.size)
    if len(prefix) < wire.PREFIX.size:
        return None
    return wire.request(reader.read(wire.length(prefix)))


if __name__ == "__main__":
    main()
