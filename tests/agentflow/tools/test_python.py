"""Python functions as tools: in processes, and in the daemon where both sides agree."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentflow.tools.errors import InvalidArguments, InvalidTool, ToolFailed
from agentflow.tools.function import Function, functions_of, tool
from agentflow.tools.handles import HandleStore
from agentflow.tools.python import ProcessTool, PythonTools, TrustedTool
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.tool import CallContext, Content, Tool
from agentflow.tools.toolbox import CallId, Toolbox

on_one_loop = pytest.mark.asyncio(loop_scope="module")
EXAMPLE = Path(__file__).with_name("example_tools.py")
ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    import sys

    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trusting() -> AsyncIterator[dict[str, Tool]]:
    opened = await PythonTools.open(PythonSource(module=str(EXAMPLE), trusted=True, warm=0), ENVIRONMENT)
    yield {each.spec.name: each for each in opened.tools}
    await opened.close()


async def call(called: Tool, place: Path, **arguments: Any) -> str | Content:
    context = CallContext(
        tenant="ann", run_id="r", call_id="c", key="k", deadline_at=time.monotonic() + 60, result_path=place
    )
    return (await called.call(arguments, context)).content


async def test_a_module_that_is_not_trusted_never_runs_here(tmp_path: Path) -> None:
    opened = await PythonTools.open(PythonSource(module=str(EXAMPLE), warm=0), ENVIRONMENT)
    try:
        assert all(isinstance(each, ProcessTool) for each in opened.tools)
        (here,) = [each for each in opened.tools if each.spec.name == "here"]
        text = await call(here, tmp_path / "result")
        assert isinstance(text, str)
        assert not text.startswith(f"{os.getpid()} ")
    finally:
        await opened.close()
        await opened.close()


@on_one_loop
async def test_only_functions_that_ask_for_it_run_in_a_daemon_that_trusts_them(
    trusting: dict[str, Tool], tmp_path: Path
) -> None:
    place = tmp_path / "result"
    assert isinstance(trusting["greet"], ProcessTool)
    assert await call(trusting["greet"], place, whom="Ann") == "Hello, Ann."
    assert await call(trusting["here"], place) == f"{os.getpid()} tool-here_0"
    assert await call(trusting["here_async"], place, text="a") == f"{os.getpid()} {threading.current_thread().name} a"
    assert await call(trusting["here_for"], place) == await call(trusting["here_async_for"], place) == "k"
    kept = tmp_path / "kept"
    kept.write_text("from a file")
    text = await call(trusting["here_async"], place, text=Content(kept, 11))
    assert text == f"{os.getpid()} {threading.current_thread().name} from a file"


@on_one_loop
@pytest.mark.parametrize(
    ("how", "sentence"), [("stop", "failed: StopIteration"), ("exit", "ended itself"), ("politely", "^No.$")]
)
async def test_what_a_trusted_function_raises_fails_its_call(
    trusting: dict[str, Tool], tmp_path: Path, how: str, sentence: str
) -> None:
    with pytest.raises(ToolFailed, match=sentence):
        await call(trusting["here_failing"], tmp_path / "result", how=how)


async def test_a_trusted_function_that_is_cancelled_is_left_alone(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    @tool(trusted=True, concurrency=2)
    def slow() -> bytes:
        begun.set()
        ended.append(go_on.wait(20))
        return b"done"

    (function,) = functions_of(_module(slow)).values()
    trusted = TrustedTool(function)
    running = asyncio.create_task(call(trusted, tmp_path / "first"))
    await asyncio.to_thread(begun.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    assert await call(trusted, tmp_path / "second") == Content(tmp_path / "second", 4, "application/octet-stream")
    trusted.close()


async def test_an_async_trusted_function_that_is_cancelled_stops() -> None:
    stopped = asyncio.Event()

    @tool(trusted=True)
    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    trusted = TrustedTool(_only(forever))
    running = asyncio.create_task(call(trusted, Path("/none")))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stopped.is_set()
    trusted.close()


async def test_wrong_arguments_of_a_trusted_function_are_named() -> None:
    @tool
    async def double(a: int) -> int:
        return 2 * a

    trusted = TrustedTool(_only(double))
    with pytest.raises(InvalidArguments, match="'a' is wrong"):
        await call(trusted, Path("/none"), a="x")
    assert await call(trusted, Path("/none"), a=2.0) == "4"
    trusted.close()


async def test_a_long_result_of_one_function_is_the_argument_of_the_next(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path / "handles")
    await handles.open()
    opened = await PythonTools.open(PythonSource(module=str(EXAMPLE), warm=0), ENVIRONMENT)
    try:
        box = Toolbox(opened.tools, handles)
        given = await box.run(
            box.prepare("ann", "give", '{"what": "list", "size": 50000}'), CallId("ann", "r", "1"), 60
        )
        assert given.handle is not None
        for field, beginning in (
            ("rows", '[null,null,"",[0,1,2,'),
            ("text", '[null,"[0,1,2,'),
            ("blob", '[[288891,"[0,1,2,'),
        ):
            prepared = box.prepare("ann", "take", f'{{"{field}": "{given.handle}"}}')
            taken = await box.run(prepared, CallId("ann", "r", "2"), 60)
            assert not taken.is_error
            assert taken.text.startswith(beginning)
        failed = await box.run(box.prepare("ann", "die", '{"how": "exit"}'), CallId("ann", "r", "3"), 60)
        assert failed.is_error
        assert failed.attempts == 1
        assert failed.text.startswith("The tool die did not end its work: its process ended by itself (exit code 7).")
    finally:
        await opened.close()


async def test_a_function_sees_the_same_key_whenever_its_call_is_tried_again(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path / "handles")
    await handles.open()
    opened = await PythonTools.open(PythonSource(module=f"{EXAMPLE}:once", warm=0), ENVIRONMENT)
    try:
        box = Toolbox(opened.tools, handles)
        prepared = box.prepare("ann", "once", f'{{"kept": "{tmp_path}/kept"}}')
        told = await box.run(prepared, CallId("ann", "run", "c1"), 60)
    finally:
        await opened.close()
    assert (told.text, told.attempts) == ("True ann run c1 True", 2)
    assert (tmp_path / "kept").read_text().split() == ["run/c1", "run/c1"]


async def test_processes_can_be_had_before_a_call(tmp_path: Path) -> None:
    opened = await PythonTools.open(PythonSource(module=f"{EXAMPLE}:greet", warm=0), ENVIRONMENT)
    try:
        await opened.warm(2)
        assert [each.spec.name for each in opened.tools] == ["greet"]
    finally:
        await opened.close()


async def test_a_module_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidTool, match="missing.py: there is no such file"):
        await PythonTools.open(PythonSource(module=str(tmp_path / "missing.py")), ENVIRONMENT)


def _only(function: Any) -> Function:
    (found,) = functions_of(_module(function)).values()
    return found


def _module(function: Any) -> Any:
    import types

    module = types.ModuleType("made")
    module.function = function  # type: ignore[attr-defined]
    return module
