"""How a benchmark ends before its time: real processes and signals, and servers that are stopped meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import ending

BENCHMARK = """
import asyncio, contextlib, os, sys, tempfile, time
from pathlib import Path

import uvloop

from benchmarks.ending import to_the_end
from benchmarks.server import Server


async def on_the_loop():
    with servers():
        print("ready", flush=True)
        await asyncio.sleep(60)


async def in_a_group():
    async def work():
        while True:
            await asyncio.sleep(0)

    with servers():
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(work())
            print("ready", flush=True)


async def in_a_call():
    with servers():
        print("ready", flush=True)
        time.sleep(60)


@contextlib.contextmanager
def servers():
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=sys.argv[2])))
        for name in ("running", "stopped"):
            command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
            server = Server(name, command, 1, "/", folder / name)
            stack.callback(server.stop)
            server.start()
            while not server.log.stat().st_size:
                time.sleep(0.01)
            print(server.front.pid, flush=True)
        server.pause()
        yield


def main():
    try:
        uvloop.run(globals()[sys.argv[1]]())
    except Exception as error:
        print("not measured", error)
        return 1
    return 0


sys.exit(to_the_end(main))
"""


def begun(where: str, folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A benchmark, and its two servers, of which the second is stopped."""
    process = subprocess.Popen([sys.executable, "-c", BENCHMARK, where, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    servers = [psutil.Process(int(process.stdout.readline())) for _ in range(2)]
    assert process.stdout.readline() == "ready\n"
    return process, servers


def ends(process: psutil.Process) -> bool:
    """Whether a process of a benchmark that is gone ends. Whoever inherits it may take long to collect it."""
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    return True


@pytest.mark.parametrize("number", ending.SIGNALS)
@pytest.mark.parametrize("where", ["on_the_loop", "in_a_group", "in_a_call"])
def test_a_signal_ends_the_servers_also_a_stopped_one_and_removes_the_folder(
    where: str, number: signal.Signals, tmp_path: Path
) -> None:
    process, servers = begun(where, tmp_path)
    with process:
        while servers[1].status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)  # does not break off the unwinding
        assert process.wait(60) == 128 + number
    assert not any(server.is_running() for server in servers)
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_that_is_killed_takes_its_servers_with_it(tmp_path: Path) -> None:
    process, servers = begun("on_the_loop", tmp_path)
    with process:
        process.kill()
    assert all(map(ends, servers))


def test_what_goes_wrong_while_it_ends_is_said_and_the_code_is_the_signals(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            raise ValueError("a server that does not end")
        return 0

    assert ending.to_the_end(main) == 128 + signal.SIGTERM
    assert "ValueError: a server that does not end" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "code"), [(0, 0), (1, 1), (None, 0)])
def test_without_a_signal_the_code_is_its_own_and_the_signals_are_as_before(said: int | None, code: int) -> None:
    before = [signal.getsignal(number) for number in ending.SIGNALS]
    assert ending.to_the_end(lambda: said) == code
    assert [signal.getsignal(number) for number in ending.SIGNALS] == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending.to_the_end(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_tied_command_that_is_not_there_says_so() -> None:
    done = subprocess.run(ending.tied(["/no/such/server"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "/no/such/server: No such file or directory\n")
    process, _ = ending.start_tied(["/no/such/server"], stderr=subprocess.PIPE)
    assert (process.communicate()[1], process.returncode) == (b"/no/such/server: No such file or directory\n", 1)


def test_a_tied_command_does_not_begin_where_the_process_that_wanted_it_is_not_its_parent_any_more() -> None:
    command = ending.tied([sys.executable, "-c", "print('begun')"])
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"begun\n"
    done = subprocess.run(["sh", "-c", '"$@"; exit $?', "sh", *command], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_process_whose_start_is_measured_is_its_command_by_the_time_that_is_said() -> None:
    before = time.perf_counter()
    process, began = ending.start_tied(["sleep", "60"])
    with process:
        try:
            assert Path(f"/proc/{process.pid}/exe").resolve() == Path(str(shutil.which("sleep"))).resolve()
            assert before < began < time.perf_counter()
        finally:
            process.kill()


STARTS = {
    "a daemon whose life is measured": "lifecycle.measure(folder, defaultdict(list))",
    "a data plane for minutes": "soak.soak(folder, 1.0, 64)",
    "a data plane to be killed": "crashes.Crashes(folder, 1).live(0)",
    "a data plane whose start is measured": "restart.Child([sys.executable], folder / 'log').line(60)",
    "a run to be killed": "runkills.begin(folder, kill_after_s=60)",
    "a run that is taken up": "runkills.resume(folder)",
    "a load": "server.Server('', [], 1, '', folder).begin_load('model', 1, 1, 1).wait()",
    "an embedder": "corpus.embedded(['a text'], folder, Path(sys.executable))",
}
STARTER = """
import os, sys
from collections import defaultdict
from pathlib import Path

folder = Path(sys.argv[1])
os.environ["PYTHONPATH"] = str(folder)
"""
# Python runs this before all else, but not in tied.py: by then the process is what it is to be.
STARTED = """
import os, time
from pathlib import Path

new = Path(__file__).with_name("new")
new.write_text(str(os.getpid()))
new.rename(new.with_name("pid"))
time.sleep(600)
"""


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_what_a_benchmark_has_started_is_killed_with_it(start: str, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(STARTED)
    begin = f"from benchmarks import {start.split('.', maxsplit=1)[0]}\n{STARTER}{start}"
    with subprocess.Popen([sys.executable, "-c", begin, str(tmp_path)]) as process:
        while not noted.exists():
            assert process.poll() is None
            time.sleep(0.01)
        started = psutil.Process(int(noted.read_text()))
        process.kill()
    try:
        assert ends(started)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.kill()
