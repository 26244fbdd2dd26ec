"""Workers' processes: what functions do to them and find in them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from agentflow.tools.errors import ToolDied, ToolError, ToolTimeout
from agentflow.tools.printed import OUTPUT_KEPT
from agentflow.tools.workers import Workers
from tests.agentflow.tools.pools import ENVIRONMENT, EXAMPLE, Pool, is_running, source, until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    workers = Workers(source(), ENVIRONMENT)
    yield Pool(workers, tmp_path)
    await workers.close()
    assert not workers.pids


# What functions do to their process


async def test_a_process_that_dies_harms_only_its_own_call(pool: Pool) -> None:
    marker = pool.folder / "marker"
    beside = asyncio.create_task(pool.call("hang", marker=str(marker), child=False))
    await until(marker.exists)
    for how, sentence in (
        ("exit", r"ended by itself \(exit code 7\)"),
        ("kill", "was killed from outside"),
        ("segfault", r"crashed \(SIGSEGV\)"),
        ("close", "closed its socket"),
        ("rubbish", "said what it must not: a frame of 4,294,967,295 bytes"),
    ):
        with pytest.raises(ToolDied, match=f"^The tool die did not end its work: its process {sentence}"):
            await pool.call("die", how=how)
    assert not beside.done()
    assert await pool.call("greet", whom="Ann") == "Hello, Ann."
    beside.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beside


async def test_a_hanging_tool_is_killed_at_its_deadline_with_all_that_it_started(pool: Pool) -> None:
    marker = pool.folder / "marker"
    await pool.workers.warm(1)
    with pytest.raises(ToolTimeout, match="^The tool hang took too long, and was ended.$"):
        await pool.call("hang", within_s=1.0, marker=str(marker), child=True)
    pids = list(map(int, marker.read_text().split()))
    assert len(pids) == 5
    assert not any(map(is_running, pids))
    assert await pool.call("greet", whom="Ann") == "Hello, Ann."


async def test_a_cancelled_call_leaves_no_process(pool: Pool) -> None:
    marker = pool.folder / "marker"
    call = asyncio.create_task(pool.call("hang", marker=str(marker), child=True))
    await until(marker.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    pids = list(map(int, marker.read_text().split()))
    assert len(pids) == 5
    assert not any(map(is_running, pids))
    assert not pool.workers.pids


async def test_a_process_that_forked_is_known_to_be_dead_and_its_child_ended(pool: Pool) -> None:
    marker = pool.folder / "marker"
    with pytest.raises(ToolDied, match="exit code 0"):
        await pool.call("fork", marker=str(marker))
    assert not is_running(int(marker.read_text()))


async def test_a_tool_that_ends_its_whole_group_leaves_nothing_either(pool: Pool) -> None:
    marker = pool.folder / "marker"
    call = asyncio.create_task(pool.call("hang", marker=str(marker), child=True))
    await until(marker.exists)
    pids = list(map(int, marker.read_text().split()))
    os.killpg(pids[0], signal.SIGKILL)
    with pytest.raises(ToolDied, match="was killed from outside"):
        await call
    assert not any(map(is_running, pids))


async def test_a_hundred_megabytes_of_output_are_dropped_and_counted_but_for_the_beginning(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "agentflow.tools"):
        assert await pool.call("shout", megabytes=100) == "said"
        assert await pool.call("greet", whom="Ann") == "Hello, Ann."
    (entry,) = [vars(record) for record in caplog.records if "output" in vars(record)]
    assert entry["output"] == "a" * OUTPUT_KEPT
    assert entry["output_left_out_bytes"] == (100 << 20) + 50 + len("the end\n") - OUTPUT_KEPT


async def test_a_worker_that_is_killed_while_it_is_idle_is_not_used(pool: Pool) -> None:
    await pool.workers.warm(1)
    (pid,) = pool.workers.pids
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in pool.workers.pids)
    assert await pool.call("greet", whom="Ann") == "Hello, Ann."


# The room


async def test_a_worker_is_confined_and_sees_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    workers = Workers(source(memory_mb=512, open_files=64), {**ENVIRONMENT, "RATE": "3"})
    try:
        text = await Pool(workers, tmp_path).call("room", names=["PATH", "RATE", "SECRET"])
    finally:
        await workers.close()
    assert isinstance(text, str)
    room = json.loads(text)
    assert room.pop("pid") != os.getpid()
    assert room.pop("variables") <= 4  # Python itself may add LC_CTYPE
    assert room == {
        "environment": {"PATH": os.environ["PATH"], "RATE": "3", "SECRET": None},
        "session": True,
        "thread": "MainThread",
        "folder": "/",
        "oom": "1000",
        "limits": [512 << 20, 64, 0],
        "stdin": "",
        "inherited": False,
    }


# The daemon


def test_workers_run_under_uvloop(tmp_path: Path) -> None:
    async def several() -> list[Any]:
        workers = Workers(source(), ENVIRONMENT)
        pool = Pool(workers, tmp_path)
        try:
            results: list[Any] = [await pool.call("greet", whom="Ann")]
            for name, arguments, within_s in (
                ("die", {"how": "exit"}, 60.0),
                ("fork", {"marker": str(tmp_path / "forked")}, 60.0),
                ("hang", {"marker": str(tmp_path / "hung")}, 0.5),
            ):
                await workers.warm(1)
                try:
                    results.append(await pool.call(name, within_s, **arguments))
                except ToolError as error:
                    results.append(type(error))
            return [*results, await pool.call("shout", megabytes=4)]
        finally:
            await workers.close()

    assert uvloop.run(several()) == ["Hello, Ann.", ToolDied, ToolDied, ToolTimeout, "said"]


DAEMON = """
import asyncio, os, sys, time
from pathlib import Path
from agentflow.tools.tool import CallContext
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.workers import Workers

async def main():
    workers = Workers(PythonSource(module=sys.argv[1], workers=2, warm=0), {"PATH": os.environ["PATH"]})
    await workers.warm(2)
    Path(sys.argv[2] + ".idle").write_text(" ".join(map(str, workers.pids)))
    context = CallContext(tenant="", run_id="", call_id="", key="", deadline_at=time.monotonic() + 60, result_path=Path("/none"))
    await workers.call("hang", {"marker": sys.argv[2], "child": True}, context)

asyncio.run(main())
"""


def started_daemon(marker: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DAEMON, str(EXAMPLE), str(marker)], cwd=ROOT)


async def test_workers_idle_and_busy_and_all_that_they_started_end_when_the_daemon_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    daemon = started_daemon(marker)
    try:
        await until(marker.exists)
        pids = {int(pid) for file in (marker, marker.with_name("marker.idle")) for pid in file.read_text().split()}
        assert len(pids) == 7
        assert all(map(is_running, pids))
    finally:
        daemon.kill()
        daemon.wait()
    await until(lambda: not any(map(is_running, pids)))
