"""`acu` commands as processes of their own that need not import first: each is forked from one that has.

Most of what a short command costs is the import of its modules, and the tests run hundreds. A command forked here has its
own environment, working directory, standard streams and end, as one that was started; the interpreter's start alone is not
repeated. Tests of that start, of signals and of closed streams run the `acu` of tests/acu/running.py.

The server (`python -m tests.acu.warm FD`) has one thread, and imports no library that keeps what the environment says. A
request is one datagram on its socket: {"words", "environ"}, and as descriptors the command's standard input, output and
error, and a pipe for the reply: the command's process id, then its wait status, a line each. For each request it forks one
process that waits for the command, so that several may run at once. It ends when its socket does: with the tests.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from acu import __main__ as program
from acu.cli import COMMANDS
from tests.acu.running import ROOT, START_S, isolated_environ

MOST_BYTES = 1 << 17  # of a request: the environment, mostly
PIPE_BYTES = 1 << 16  # what a pipe holds that nobody reads yet


def acu(*words: str, environ: Mapping[str, str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run an `acu` command to its end."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given = _given(stdin)
        reply, replying = os.pipe()
        request = json.dumps({"words": words, "environ": dict(environ)}).encode()
        socket.send_fds(_server()[1], [request], [given, output.fileno(), errors.fileno(), replying])
        os.close(given)
        os.close(replying)
        with os.fdopen(reply) as told:
            command = int(told.readline())
            if not select.select([told], [], [], START_S)[0]:
                os.kill(command, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, START_S)
            code = os.waitstatus_to_exitcode(int(told.readline()))
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, output.read().decode(), errors.read().decode())


def end() -> None:
    """End the server, if there is one."""
    if _server.cache_info().currsize:
        process, ours = _server()
        ours.close()
        process.wait()
        _server.cache_clear()


def _given(stdin: str | None) -> int:
    """A descriptor from which a command reads `stdin` and its end."""
    if stdin is None:
        return os.open(os.devnull, os.O_RDONLY)
    assert len(stdin.encode()) < PIPE_BYTES
    given, giving = os.pipe()
    with os.fdopen(giving, "w") as file:
        file.write(stdin)
    return given


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its, tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.acu.warm", str(its.fileno())],
            cwd=ROOT,
            env=isolated_environ(Path(home)),
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    return process, ours


def serve(requests: socket.socket) -> None:
    """Fork a command for each request, until nobody can send one any more."""
    for command in COMMANDS.values():
        importlib.import_module(command.module)
    gc.freeze()  # what is here is for all, and looked at by none
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _wait_for_command(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_command(request: dict[str, dict[str, str]], given: int, output: int, errors: int, replying: int) -> None:
    for number, descriptor in enumerate((given, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    command = os.fork()
    if command == 0:
        os.close(replying)
        _become(list(request["words"]), request["environ"])
    os.write(replying, f"{command}\n".encode())
    _, status = os.waitpid(command, 0)
    os.write(replying, f"{status}\n".encode())
    os._exit(0)


def _become(words: list[str], environ: dict[str, str]) -> NoReturn:
    """End as `python -m acu WORDS` would."""
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.argv = [str(ROOT / "acu" / "__main__.py"), *words]
    sys.exit(program.main())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        serve(ours)
