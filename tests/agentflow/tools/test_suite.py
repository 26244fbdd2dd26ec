"""All kinds of tools in one toolbox: what is wrong with one is told by its name, and nothing is left of any."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from agentflow.tools.config import ToolsConfig
from agentflow.tools.errors import InvalidTool, UnknownTool
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.suite import ToolSuite
from agentflow.tools.toolbox import CallId, Outcome

HERE = Path(__file__).parent
ENVIRONMENT = {"PATH": os.defpath}
MODULE = '''
from agentflow.tools.function import tool

@tool(idempotent=True)
def double(n: int) -> int:
    """Doubles."""
    return 2 * n
'''
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "t", "version": "1"},
    "paths": {"/things": {"get": {"operationId": "list_things", "responses": {"200": {"description": "ok"}}}}},
}


def config(folder: Path, *, module: str = MODULE, **more: Any) -> ToolsConfig:
    (folder / "mine.py").write_text(module)
    source = PythonSource(module=str(folder / "mine.py"), warm=1)
    return ToolsConfig(python={"mine": source}, installed=False, **more)


@asynccontextmanager
async def connected(folder: Path, wanted: ToolsConfig, **more: Any) -> AsyncGenerator[ToolSuite, None]:
    suite = await ToolSuite.open(wanted, folder / "results", ENVIRONMENT, **more)
    async with asyncio.TaskGroup() as group:
        suite.connect(group)
        try:
            yield suite
        finally:
            await suite.close()


def names(suite: ToolSuite) -> set[str]:
    return {spec.name for spec in suite.toolbox.specs()}


async def until(suite: ToolSuite, name: str) -> None:
    async with asyncio.timeout(60):
        while name not in names(suite):
            await asyncio.sleep(0.02)


async def call(suite: ToolSuite, name: str, arguments: str) -> Outcome:
    prepared = suite.toolbox.prepare("t", name, arguments)
    return await suite.toolbox.run(prepared, CallId("t", "run_1", "call_1"), 60.0)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_functions_operations_and_a_servers_tools_are_in_one_toolbox(tmp_path: Path) -> None:
    before = children()
    wanted = config(
        tmp_path,
        mcp={"example": McpSource(command=(sys.executable, str(HERE / "mcp_example.py")))},
        http={"things": HttpSource(document="things.yaml", url="http://127.0.0.1:9/")},
    )
    async with connected(tmp_path, wanted, documents={"things": DOCUMENT}) as suite:
        assert {"double", "list_things", "calculator"} <= names(suite)
        assert suite.toolbox.specs(("add",)) == ()  # it may come yet
        await until(suite, "add")
        assert (await call(suite, "add", '{"a": 2, "b": 3}')).text == "5"
        assert (await call(suite, "double", '{"n": 4}')).text == "8"
        refused = await call(suite, "list_things", "{}")
        assert refused.is_error
        assert 'add reach: ["127.0.0.1:9"] to tools.http.things.' in refused.text
        pid = int((await call(suite, "pid", "{}")).text)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while (again := await call(suite, "pid", "{}")).is_error:
                await asyncio.sleep(0.05)
        assert int(again.text) != pid
    assert children() <= before


async def test_a_module_that_cannot_be_imported_is_told_with_its_place_and_ends_all(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(InvalidTool, match=r"(?s)tools\.python\.mine: .*mine\.py.*1"):
        await ToolSuite.open(config(tmp_path, module="import no_such_module"), tmp_path / "results", ENVIRONMENT)
    assert children() <= before


async def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTool, match="Two tools are called calculator"):
        await ToolSuite.open(
            config(tmp_path, module=MODULE.replace("double", "calculator")), tmp_path / "results", ENVIRONMENT
        )


async def test_without_servers_a_name_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    async with connected(tmp_path, config(tmp_path)) as suite:
        with pytest.raises(UnknownTool, match="Did you mean 'double'"):
            suite.toolbox.specs(("doubel",))


async def test_a_start_that_is_cancelled_ends_what_was_ready(tmp_path: Path) -> None:
    before = children()
    ready = tmp_path / "ready"
    wanted = config(tmp_path, module=MODULE + f"open({str(ready)!r}, 'a').close()\n")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    slow = PythonSource(module=str(tmp_path / "slow.py"), warm=1)
    opening = asyncio.ensure_future(
        ToolSuite.open(replace(wanted, python={**wanted.python, "slow": slow}), tmp_path / "results", ENVIRONMENT)
    )
    async with asyncio.timeout(60):
        while not ready.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)  # the module's process says what it has, and waits for calls
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert children() <= before


async def test_without_the_sdk_servers_are_not_there_and_all_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "agentflow.tools.mcp", None)
    source = McpSource(command=(sys.executable, str(HERE / "mcp_example.py")))
    with caplog.at_level(logging.ERROR):
        async with connected(tmp_path, config(tmp_path, mcp={"example": source})) as suite:
            async with asyncio.timeout(60):
                while not caplog.records:
                    await asyncio.sleep(0.02)
            assert (await call(suite, "double", '{"n": 21}')).text == "42"
    (told,) = caplog.records
    assert "install ACU with all of its requirements" in told.__dict__["why"]
