"""MCP servers: real ones, in processes of their own, that work, misbehave and are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from agentflow.tools.errors import InvalidTool, ToolDied, ToolFailed, ToolUnavailable
from agentflow.tools.handles import HandleStore
from agentflow.tools.mcp import McpServers, offered_names
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.secrets import SecretFile
from agentflow.tools.tool import Attachment, CallContext, Content, ToolOutput
from agentflow.tools.toolbox import CallId, Toolbox

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON = sys.executable
PICTURE = Attachment(b"\x89PNG\r\n\x00\xff", "image/png")
ENVIRONMENT = {"PATH": os.defpath, "KEPT": "no", "GIVEN": "yes"}


def example(**more: object) -> McpSource:
    return McpSource(command=(PYTHON, str(HERE / "mcp_example.py")), **more)  # type: ignore[arg-type]


def plain(notes: Path, *modes: str, **more: object) -> McpSource:
    return McpSource(command=(PYTHON, "-S", str(HERE / "mcp_plain.py"), str(notes), *modes), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def running(sources: Mapping[str, McpSource]) -> AsyncGenerator[McpServers, None]:
    async with asyncio.TaskGroup() as group:
        servers = await McpServers.open(sources, ENVIRONMENT, group)
        try:
            yield servers
        finally:
            await servers.close()


async def call(servers: McpServers, folder: Path, name: str, /, **arguments: object) -> ToolOutput:
    tool = next(tool for tool in servers.tools() if tool.spec.name == name)
    context = CallContext(
        tenant="ann",
        run_id="r",
        call_id="c",
        key="r/c",
        deadline_at=time.monotonic() + 30,
        result_path=folder / "result",
    )
    return await tool.call(arguments, context)


def names(servers: McpServers) -> list[str]:
    return [tool.spec.name for tool in servers.tools()]


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def until_gone(*pids: int) -> None:
    while any(alive(pid) for pid in pids):
        await asyncio.sleep(0.01)


def read(notes: Path) -> str:
    return notes.read_text() if notes.exists() else ""


async def noted(notes: Path, text: str) -> str:
    while text not in read(notes):
        await asyncio.sleep(0.01)
    return read(notes)


# A real server


async def test_a_real_server_over_stdio_answers_hears_and_is_there_again_after_it_was_killed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t-value\n")
    source = example(variables={"TOKEN": SecretFile(str(secret))}, environment=("GIVEN",))
    async with running({"example": source}) as servers:
        assert servers.problems == {}
        assert names(servers)[:2] == ["add", "pid"]
        assert names(servers)[-1] == "odd_name__"
        specs = {tool.spec.name: tool.spec for tool in servers.tools()}
        assert specs["add"].idempotent
        assert not specs["pid"].idempotent
        assert specs["add"].description == "Adds two numbers."
        assert specs["add"].parameters["required"] == ["a", "b"]

        assert await call(servers, tmp_path, "add", a=2, b=3) == ToolOutput("5")
        assert await call(servers, tmp_path, "odd_name__") == ToolOutput("odd")
        assert await call(servers, tmp_path, "picture") == ToolOutput("", attached=(PICTURE,))

        assert await call(servers, tmp_path, "variable", name="GIVEN") == ToolOutput("yes")
        assert await call(servers, tmp_path, "variable", name="KEPT") == ToolOutput("(unset)")
        assert await call(servers, tmp_path, "variable", name="TOKEN") == ToolOutput("[secret]")

        (tmp_path / "text").write_text("é" * 1000)
        handle = Content(tmp_path / "text", 2000)
        assert await call(servers, tmp_path, "echo", text=handle) == ToolOutput("é" * 1000)
        big = "x" * 1_000_000
        assert await call(servers, tmp_path, "echo", text=big) == ToolOutput(big)

        changed = asyncio.Event()
        servers.on_change(changed.set)
        assert await call(servers, tmp_path, "learn") == ToolOutput("learned")
        await changed.wait()
        assert await call(servers, tmp_path, "learned") == ToolOutput("knows")

        note = tmp_path / "note"
        cancelled = asyncio.create_task(call(servers, tmp_path, "sleep", seconds=60, note=str(note)))
        await noted(note, "began")
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await noted(note, "cancelled") == "began cancelled"

        first = await call(servers, tmp_path, "pid")
        sleeping = asyncio.create_task(call(servers, tmp_path, "sleep", seconds=60, note=str(tmp_path / "other")))
        await noted(tmp_path / "other", "began")
        os.kill(int(str(first.content)), signal.SIGKILL)
        with pytest.raises(ToolDied, match="example was gone before sleep was done: it ended"):
            await sleeping
        second = await call(servers, tmp_path, "pid")
        assert first != second


# The older protocol, and servers that misbehave


async def test_pages_are_followed_changes_heard_and_what_cannot_be_offered_is_left_out(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with running({"plain": plain(notes, "rubbish")}) as servers:
        assert names(servers) == ["answer", "hang", "flood", "lines", "blanks", "grow", "deaf", "quit", "nonsense"]
        assert [tool.spec.idempotent for tool in servers.tools()][:2] == [True, False]
        changed = asyncio.Event()
        servers.on_change(changed.set)
        assert await call(servers, tmp_path, "grow") == ToolOutput("grow done")
        await changed.wait()
        assert names(servers)[0] == "grown"
        with pytest.raises(ToolFailed, match="cannot be used"):
            await call(servers, tmp_path, "nonsense")
        hanging = asyncio.create_task(call(servers, tmp_path, "hang"))
        await noted(notes, "call hang")
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        await noted(notes, "notifications/cancelled")
        assert await call(servers, tmp_path, "answer") == ToolOutput("answer done")


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("flood", "more than 1,048,576 bytes"),
        ("lines", "what is no message"),
        ("blanks", "what is no message"),
        ("quit", "it ended"),
    ],
)
async def test_a_server_that_floods_or_ends_fails_that_call_and_the_next_one_works(
    tmp_path: Path, tool: str, reason: str
) -> None:
    before = psutil.Process().memory_info().rss
    async with running({"plain": plain(tmp_path / "notes", message_bytes=1 << 20)}) as servers:
        with pytest.raises(ToolDied, match=reason):
            await call(servers, tmp_path, tool)
        assert await call(servers, tmp_path, "answer") == ToolOutput("answer done")
        assert psutil.Process().memory_info().rss - before < 50 << 20


async def test_a_server_that_reads_nothing_cannot_make_us_keep_all_that_it_is_sent(tmp_path: Path) -> None:
    async with running({"plain": plain(tmp_path / "notes", message_bytes=1 << 16)}) as servers:
        calls = [asyncio.create_task(call(servers, tmp_path, "deaf"))]
        await noted(tmp_path / "notes", "call deaf")
        calls += [asyncio.create_task(call(servers, tmp_path, "answer", text="x" * 30_000)) for _ in range(12)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ToolDied}
        assert "does not read what it is sent" in str(outcomes[0])
        assert await call(servers, tmp_path, "answer") == ToolOutput("answer done")


async def test_servers_that_do_not_come_up_are_told_and_harm_no_other(tmp_path: Path) -> None:
    sources = {
        "silent": plain(tmp_path / "silent", "silent", start_timeout_s=0.5),
        "closes": McpSource(command=("true",)),
        "missing": McpSource(command=("no-such-program",)),
        "nowhere": McpSource(command=("true",), folder="/no/such/folder"),
        "secretless": McpSource(command=("true",), variables={"KEY": SecretFile("/no/such/file")}),
        "good": plain(tmp_path / "good"),
    }
    async with running(sources) as servers:
        assert set(servers.problems) == {"silent", "closes", "missing", "nowhere", "secretless"}
        assert servers.problems["silent"] == "it did not answer in time"
        assert servers.problems["closes"] == "it ended"
        assert "there is no program 'no-such-program'" in servers.problems["missing"]
        assert "cannot be started" in servers.problems["nowhere"]
        assert "/no/such/file" in servers.problems["secretless"]
        assert await call(servers, tmp_path, "answer") == ToolOutput("answer done")
        silent = int((await noted(tmp_path / "silent", "pid")).split()[1])
    await until_gone(silent)


async def test_a_call_of_a_server_that_is_gone_for_good_fails_soon(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {PYTHON} -S {HERE / 'mcp_plain.py'} {tmp_path / 'notes'}\n")
    program.chmod(0o700)
    async with running({"plain": McpSource(command=(str(program),))}) as servers:
        program.unlink()
        with pytest.raises(ToolDied):
            await call(servers, tmp_path, "quit")
        with pytest.raises(ToolUnavailable, match="plain is not there now: there is no program"):
            await call(servers, tmp_path, "answer")


# Names


def test_names_are_plain_different_and_short() -> None:
    assert offered_names([("a", "find"), ("b", "find"), ("b", "get")], {"get"}) == ["a__find", "b__find", "b__get"]
    assert offered_names([("a", "tools/list it")]) == ["tools_list_it"]
    long = offered_names([("a", "x" * 100), ("a", "x" * 101), ("a", "")])
    assert len(set(long)) == 3
    assert all(0 < len(name) <= 64 for name in long)
    twins = offered_names([("a", "é"), ("a", "è")])
    assert len(set(twins)) == 2


async def test_two_servers_with_the_same_tools_are_told_apart_in_a_toolbox(tmp_path: Path) -> None:
    sources = {"one": plain(tmp_path / "1", tools=("answer",)), "two": plain(tmp_path / "2", tools=("answer",))}
    async with running(sources) as servers:
        assert names(servers) == ["one__answer", "two__answer"]
        handles = HandleStore(tmp_path / "handles")
        await handles.open()
        box = Toolbox(servers.tools(), handles)
        outcome = await box.run(box.prepare("ann", "two__answer", "{}"), CallId("ann", "r", "c"), 10.0)
        assert (outcome.text, outcome.is_error) == ("answer done", False)


async def test_a_source_is_either_a_program_or_an_address() -> None:
    async with asyncio.TaskGroup() as group:
        for source in (McpSource(), McpSource(command=("a",), url="http://b/"), McpSource(url="ftp://b/")):
            with pytest.raises(InvalidTool):
                await McpServers.open({"wrong": source}, {}, group)


async def test_a_server_that_ends_is_warned_of_with_its_last_words_which_no_model_sees(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("k3y-0f-k1ngs")
    key: dict[str, str | SecretFile] = {"KEY": SecretFile(str(tmp_path / "key"))}
    source = McpSource(command=("sh", "-c", "echo no $KEY in $PWD >&2"), folder=str(tmp_path), variables=key)
    async with running({"gone": source}) as servers:
        assert servers.problems == {"gone": "it ended"}
        record = next(record for record in caplog.records if record.levelname == "WARNING")
        assert record.message == "an MCP server is not connected: it ended"
        assert vars(record)["last_words"] == f"no [secret] in {tmp_path}"


# Ends


async def test_a_server_that_will_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with running({"plain": plain(notes, "stubborn")}):
        _, child, _, pid = (await noted(notes, "pid")).split()[:4]
        assert alive(int(pid))
        assert alive(int(child))
    await until_gone(int(pid), int(child))


DAEMON = """
import asyncio, sys, uvloop
from agentflow.tools.mcp import McpServers
from agentflow.tools.mcpsource import McpSource

async def main():
    async with asyncio.TaskGroup() as group:
        await McpServers.open({"plain": McpSource(command=tuple(sys.argv[1:]))}, {}, group)
        print("up", flush=True)

uvloop.run(main())
"""


async def test_kill_9_of_the_daemon_ends_its_servers_and_what_they_started(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = [PYTHON, "-c", DAEMON, *plain(notes, "stubborn").command]
    daemon = await asyncio.to_thread(subprocess.Popen, command, cwd=ROOT, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    with daemon, daemon.stdout:
        assert await asyncio.to_thread(daemon.stdout.readline) == b"up\n"
        _, child, _, pid = (await noted(notes, "pid")).split()[:4]
        assert alive(int(pid))
        assert alive(int(child))
        daemon.kill()
        daemon.wait()
    await until_gone(int(pid), int(child))
