"""The log of Python functions' calls: which line raised, and what was printed, bounded and without secrets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentflow.tools.errors import InvalidArguments, ToolDied, ToolFailed, ToolTimeout
from agentflow.tools.printed import OUTPUT_KEPT
from agentflow.tools.python import PythonTools
from agentflow.tools.result import TRACE_MAX, trace_of
from agentflow.tools.toollog import TRACE_SHOWN
from agentflow.tools.workers import Workers
from tests.agentflow.tools.pools import ENVIRONMENT, Pool, source
from tests.agentflow.tools.test_python import call

MODULE = """
import os
import time

from agentflow.tools.errors import ToolFailed
from agentflow.tools.function import tool

print("imported")


@tool
def count(lines: int, then: str) -> str:
    for number in range(lines):
        print("line", number)
    if then == "raise":
        raise RuntimeError("the desk is closed")  # this line
    if then == "refuse":
        raise ToolFailed("There is no such desk.")
    if then == "exit":
        os._exit(3)
    if then == "hang":
        time.sleep(60)
    if then == "shout":
        raise RuntimeError("x" * 1_000_000)
    return "counted"


@tool
async def later(then: str) -> str:
    try:
        raise ValueError(os.environ["DESK_TOKEN"])
    except ValueError as error:
        raise RuntimeError(os.environ["DESK_TOKEN"]) from error


@tool
def say(size: int) -> str:
    print("é" * size + os.environ["DESK_TOKEN"])
    return "said"


@tool(trusted=True)
def here(then: str) -> str:
    return count.code(0, then)
"""
TOKEN = "t0ken-0f-the-desk"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("desk") / "desk.py"
    path.write_text(MODULE)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(module: Path) -> AsyncIterator[Workers]:
    workers = Workers(source(module, workers=1, environment=("DESK_TOKEN",)), ENVIRONMENT | {"DESK_TOKEN": TOKEN})
    yield workers
    await workers.close()


@pytest.fixture
def pool(workers: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Pool:
    caplog.set_level(logging.INFO)
    return Pool(workers, tmp_path)


def entries(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What was logged of calls."""
    return [vars(record) for record in caplog.records if getattr(record, "run", None) == "run"]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_a_function_raised_is_logged_with_its_line_and_the_head_of_what_it_printed(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ToolFailed, match="^The tool count failed: RuntimeError: the desk is closed$"):
        await pool.call("count", lines=20_000, then="raise")
    (entry,) = entries(caplog)
    assert (entry["levelname"], entry["msg"]) == ("WARNING", "a call of a tool failed")
    assert (entry["tool"], entry["run"], entry["call"]) == ("count", "run", "call")
    assert entry["why"] == "The tool count failed: RuntimeError: the desk is closed"
    line = MODULE[: MODULE.index("# this line")].count("\n") + 1
    first, where, *_, last = entry["exception"].splitlines()
    assert first == "Traceback (most recent call last):"
    assert where.endswith(f'desk.py", line {line}, in count')
    assert last == "RuntimeError: the desk is closed"
    printed = "".join(f"line {number}\n" for number in range(20_000))
    shown = OUTPUT_KEPT - len(TOKEN) + 1  # what lies behind could be the beginning of a secret
    assert entry["output"] == printed[:shown]
    assert entry["output_left_out_bytes"] == len(printed) - shown


async def test_what_a_module_prints_when_it_is_imported_is_logged_by_its_name(
    module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(source(module), ENVIRONMENT)
    caplog.set_level(logging.INFO)
    try:
        await workers.describe()
    finally:
        await workers.close()
    (entry,) = [vars(record) for record in caplog.records if record.message == "a tool printed"]
    assert (entry["tool"], entry["output"]) == (str(module), "imported\n")


async def test_what_a_good_call_printed_is_logged_and_nothing_of_one_that_printed_nothing(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    assert await pool.call("count", lines=2, then="return") == "counted"
    (entry,) = entries(caplog)
    assert (entry["levelname"], entry["msg"], entry["output"]) == ("INFO", "a tool printed", "line 0\nline 1\n")
    assert "output_left_out_bytes" not in entry
    caplog.clear()
    assert await pool.call("count", lines=0, then="return") == "counted"
    assert entries(caplog) == []


async def test_a_refusal_and_wrong_arguments_are_logged_without_a_traceback(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ToolFailed):
        await pool.call("count", lines=0, then="refuse")
    with pytest.raises(InvalidArguments):
        await pool.call("count", lines="many", then="refuse")
    assert [(entry["levelname"], "exception" in entry) for entry in entries(caplog)] == [("INFO", False)] * 2
    assert entries(caplog)[0]["why"] == "There is no such desk."


@pytest.mark.parametrize(
    ("then", "error", "why"),
    [
        ("exit", ToolDied, "The tool count did not end its work: its process ended by itself (exit code 3)."),
        ("hang", ToolTimeout, "The tool count took too long, and was ended."),
    ],
)
async def test_a_call_whose_process_ended_is_logged_once(
    pool: Pool, caplog: pytest.LogCaptureFixture, then: str, error: type[Exception], why: str
) -> None:
    await pool.workers.warm(1)
    with pytest.raises(error):
        await pool.call("count", within_s=1.0, lines=1, then=then)
    assert [(entry["why"], entry["output"]) for entry in entries(caplog)] == [(why, "line 0\n")]


async def test_an_entry_is_bounded_whatever_the_function_raises(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ToolFailed):
        await pool.call("count", lines=0, then="shout")
    (entry,) = entries(caplog)
    assert "desk.py" in entry["exception"]
    longest = TRACE_MAX - len(TOKEN) + 1
    assert entry["exception"].endswith(f"[cut here: {longest - TRACE_SHOWN:,} characters more]")
    assert len(entry["exception"]) < TRACE_SHOWN + 50
    assert len(entry["why"]) < 700


async def test_a_secret_that_the_function_was_given_is_not_logged(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ToolFailed):
        await pool.call("later", then="")
    (entry,) = entries(caplog)
    assert entry["exception"].count("ValueError: [secret]\n") == 1
    assert entry["exception"].endswith("\nRuntimeError: [secret]")
    assert entry["why"] == "The tool later failed: RuntimeError: [secret]"
    caplog.clear()
    # The end of what is kept goes through it.
    await pool.call("say", size=OUTPUT_KEPT // 2 - 4)
    (entry,) = entries(caplog)
    assert set(entry["output"]) == {"é"}
    assert len(entry["output"].encode()) + entry["output_left_out_bytes"] == OUTPUT_KEPT - 8 + len(TOKEN) + 1


async def test_what_a_trusted_function_raised_is_logged_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = tmp_path / "trusted_desk.py"
    module.write_text(MODULE.replace("return count.code(0, then)", "raise RuntimeError(then)"))
    tools = await PythonTools.open(source(module, trusted=True), ENVIRONMENT)
    try:
        (here,) = [tool for tool in tools.tools if tool.spec.name == "here"]
        with pytest.raises(ToolFailed):
            await call(here, tmp_path / "result", then="no")
    finally:
        await tools.close()
    (entry,) = [vars(record) for record in caplog.records if record.message == "a call of a tool failed"]
    _, where, *_, last = entry["exception"].splitlines()
    assert where.endswith("in here")
    assert last == "RuntimeError: no"


async def test_an_error_that_cannot_be_told_has_no_trace() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert trace_of(Odd()).endswith("<exception str() failed>")
    assert trace_of(ValueError("\ud800")) == "ValueError: \\ud800"
