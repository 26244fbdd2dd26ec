"""What is wrong with the tools of a configuration is told with its field, and nothing of them is left or was started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from agentflow.tools.config import ToolsConfig
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.secrets import SecretFile
from agentflow.tools.survey import survey
from tests.agentflow.tools.test_suite import DOCUMENT, MODULE

ENVIRONMENT = {"PATH": os.defpath}
URL = "https://shop.test/api"
MARK = """
from pathlib import Path
Path(__file__).with_suffix(".started").touch()
"""


async def test_what_is_right_is_found_and_no_server_is_started(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "server.py").write_text(MARK)
    config = ToolsConfig(
        python={"mine": PythonSource(module=str(tmp_path / "mine.py"))},
        http={"shop": HttpSource(document="shop.yaml", url=URL)},
        mcp={
            "local": McpSource(command=(sys.executable, str(tmp_path / "server.py"))),
            "far": McpSource(url="https://mcp.test/"),
        },
        installed=False,
    )
    children = set(psutil.Process().children(recursive=True))
    found = await survey(config, ENVIRONMENT, {"shop": DOCUMENT})
    assert found.problems == ()
    assert {tool.spec.name for tool in found.tools} == {"double", "list_things"}
    assert not (tmp_path / "server.started").exists()
    assert set(psutil.Process().children(recursive=True)) <= children


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, "mine.py"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("def f(:", "mine.py"),
        (MODULE, "thrice"),
    ],
)
async def test_a_module_that_gives_no_tools_is_told(tmp_path: Path, module: str | None, told: str) -> None:
    if module is not None:
        (tmp_path / "mine.py").write_text(module)
    only = ":thrice" if module == MODULE else ""
    source = PythonSource(module=f"{tmp_path / 'mine.py'}{only}")
    (problem,) = (await survey(ToolsConfig(python={"mine": source}, installed=False), ENVIRONMENT, {})).problems
    assert problem.startswith("tools.python.mine: ")
    assert told in problem


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (HttpSource(document="d", url=URL, operations=("buy",)), "buy"),
        (HttpSource(document="d", url="ftp://shop.test"), "http:// or https://"),
        (HttpSource(document="d", url=URL, headers={"authorization": SecretFile("/nowhere/key")}), "/nowhere/key"),
        (HttpSource(document="d", url=URL, reach=("no port",)), "no port"),
        (HttpSource(document="d", url="http://127.0.0.1:18485"), 'add reach: ["127.0.0.1:18485"] to tools.http.shop.'),
    ],
)
async def test_an_api_that_cannot_be_called_is_told(source: HttpSource, told: str) -> None:
    config = ToolsConfig(http={"shop": source}, installed=False)
    (problem,) = (await survey(config, ENVIRONMENT, {"shop": DOCUMENT})).problems
    assert problem.startswith("tools.http.shop: ")
    assert told in problem


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (McpSource(command=("no-such-server", "--fast")), "'no-such-server' on the PATH"),
        (McpSource(command=("sh",), variables={"PATH": "/nowhere"}), "'sh' on the PATH"),
        (McpSource(command=("sh",), variables={"KEY": SecretFile("/nowhere/key")}), "/nowhere/key"),
        (McpSource(command=("sh",), folder="/nowhere"), "/nowhere"),
        (McpSource(url="https://mcp.test/", headers={"key": SecretFile("/nowhere/key")}), "/nowhere/key"),
        (McpSource(url="mcp.test"), "http:// or https://"),
        (McpSource(url="http://localhost/"), 'add reach: ["localhost:80"] to tools.mcp.notes.'),
        (McpSource(command=("./sh",), folder="/etc"), "'./sh'"),
        (McpSource(), "either a command or a url"),
        (McpSource(command=("sh",), url="https://mcp.test/"), "either a command or a url"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_told(source: McpSource, told: str) -> None:
    config = ToolsConfig(mcp={"notes": source}, installed=False)
    (problem,) = (await survey(config, ENVIRONMENT, {})).problems
    assert problem.startswith("tools.mcp.notes: ")
    assert told in problem


async def test_a_program_with_a_relative_path_is_looked_for_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("#!/bin/sh\n")
    (tmp_path / "server").chmod(0o700)
    config = ToolsConfig(mcp={"notes": McpSource(command=("./server",), folder=str(tmp_path))}, installed=False)
    assert (await survey(config, ENVIRONMENT, {})).problems == ()


async def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    config = ToolsConfig(
        python={"mine": PythonSource(module=str(tmp_path / "mine.py"))},
        mcp={"notes": McpSource(command=("no-such-server",))},
        http={"unread": HttpSource(document="d", url=URL), "shop": HttpSource(document="d", url="nowhere")},
        installed=False,
    )
    found = await survey(config, ENVIRONMENT, {"shop": DOCUMENT})
    fields = ["tools.python.mine", "tools.http.shop", "tools.mcp.notes"]
    assert [problem.partition(": ")[0] for problem in found.problems] == fields
