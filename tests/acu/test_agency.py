"""The agents and tools of a configuration: what is wrong with them refuses the start, and says where."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from acu.agency import AgencyRoom, Later, check_tools
from acu.config import AcuConfig, load
from acu.errors import StartRefused
from acu.refusals import Refusals
from agentflow.library.refusals import DataUnavailable

if TYPE_CHECKING:
    from agentflow.service import Service


class Nothing:
    """Runs, of which none is open."""

    async def resume(self) -> int:
        return 0


SERVERS = Path(__file__).parents[1] / "agentflow" / "tools"
ENVIRON = {"PATH": os.defpath}
TOOLS = '''
from agentflow.tools.function import tool

@tool
def greet(name: str) -> str:
    """Greets."""
    return "Hello, " + name
'''


def configured(folder: Path, **sections: Any) -> AcuConfig:
    """A configuration file with these sections, read as the daemon reads it."""
    models = {"large": {"model": "scripted", "engine": "scripted"}, "small": {"model": "tiny", "engine": "scripted"}}
    document = {"data_plane": {"path": str(folder / "data")}, "models": models, **sections}
    file = folder / "acu.yaml"
    file.write_text(json.dumps(document))
    return load({**ENVIRON, "HOME": str(folder)}, file=file, gpu_present=False).config


async def test_agents_get_the_tools_that_they_name_and_the_small_model_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TOOLS)
    config = configured(
        tmp_path,
        tools={"python": {"mine": {"module": "mine.py", "warm": 1}}, "installed": False},
        agents={"desk": {"tools": ["greet", "calc*"]}},
    )
    room = await AgencyRoom.open(config, ENVIRON, Later())
    try:
        agency = room.agency
        assert agency.agents["desk"].small_model == "small"
        assert {tool.name for tool in agency.toolbox.specs(agency.agents["desk"].tools)} == {"greet", "calculator"}
    finally:
        await room.close()


REMEMBERING = {
    "large": {"model": "scripted", "engine": "scripted"},
    "embed": {"model": "scripted-embed", "engine": "scripted"},
}
OWN = {"memory_search", "memory_read", "memory_write", "memory_forget", "file_search"}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["memory_*", "file_search"], OWN),
        (["mem*", "f*"], OWN),
        (["memory_s*", "file_*"], {"memory_search", "file_search"}),
        (["*"], set()),
    ],
)
async def test_the_tools_of_memory_and_of_files_are_there_for_agents_that_name_them(
    tmp_path: Path, names: list[str], found: set[str]
) -> None:
    agents = {
        "desk": {"tools": names, "memory": {"recall": True, "remember": "turns"}},
        "plain": {"tools": ["calculator"]},
    }
    room = await AgencyRoom.open(configured(tmp_path, models=REMEMBERING, agents=agents), ENVIRON, Later())
    try:
        offered = {tool.name for tool in room.agency.toolbox.specs(("*",))}
        assert offered & OWN == found
        assert room.agency.memory is not None
        assert room.agency.memory.recall("desk") is not None
        assert room.agency.memory.recall("plain") is None
    finally:
        await room.close()


async def test_why_open_runs_cannot_be_taken_up_is_told_once_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self) -> None:
            self.reasons = ["in use", "in use", "in use", "damaged"]
            self.done = asyncio.Event()

        async def resume(self) -> int:
            if self.reasons:
                raise DataUnavailable(self.reasons.pop(0), retry_after_s=5.0)
            self.done.set()
            return 0

    monkeypatch.setattr("acu.agency.RETRY_S", 0.0)
    (tmp_path / "data").mkdir()
    room = await AgencyRoom.open(configured(tmp_path), ENVIRON, Later())
    runs = Refusing()
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        room.start(tasks, cast("Service", SimpleNamespace(agents=runs)))
        await runs.done.wait()
        await room.close()
    assert [vars(record)["why"] for record in caplog.records if record.name == "acu.agency"] == ["in use", "damaged"]


async def test_without_agents_nothing_is_made(tmp_path: Path) -> None:
    room = await AgencyRoom.open(configured(tmp_path), ENVIRON, Later())
    await room.close()
    assert room.agency.agents == {}
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"agents": {"desk": {"tools": ["calculater"]}}},
            r"agents\.desk\.tools: There is no tool 'calculater'\. Did you mean 'calculator'\?",
        ),
        (
            {"agents": {"desk": {"tools": ["zzz", "calculater", "zzz"]}}},
            r"(?s)'zzz'\. There are: .*calculator.*'calculater'\. Did you mean 'calculator'\?$",
        ),
        (
            {"agents": {"desk": {"tools": ["memory_wite", "memory_read"]}}, "models": REMEMBERING},
            r"There is no tool 'memory_wite'\. Did you mean 'memory_write'\?",
        ),
        (
            {"agents": {"desk": {}}, "tools": {"python": {"mine": {"module": "nowhere.py"}}}},
            r"(?s)tools\.python\.mine: .*nowhere\.py",
        ),
        (
            {"agents": {"desk": {}}, "tools": {"http": {"shop": {"document": "shop.yaml", "url": "https://x.test"}}}},
            r"tools\.http\.shop\.document: .*/shop\.yaml cannot be read: No such file",
        ),
    ],
)
async def test_what_is_wrong_refuses_the_start(tmp_path: Path, sections: dict[str, Any], told: str) -> None:
    with pytest.raises(StartRefused, match=told):
        await AgencyRoom.open(configured(tmp_path, **sections), ENVIRON, Later())


async def test_a_name_that_begins_no_tool_s_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configured(tmp_path, agents={"desk": {"tools": ["calculater*", "calc*", "*"]}})
    room = await AgencyRoom.open(config, ENVIRON, Later())
    await room.close()
    told = "agents.desk.tools: No tool's name begins with 'calculater'. Did you mean 'calculator'?"
    assert [record.message for record in caplog.records if record.name == "acu.agency"] == [told]
    assert await check_tools(config, ENVIRON, Refusals()) == (told,)
    wrong = configured(tmp_path, agents={"desk": {"tools": ["calculater*", "calculater"]}})
    refusals = Refusals()
    assert await check_tools(wrong, ENVIRON, refusals) == (told,)
    with pytest.raises(StartRefused, match="no tool 'calculater'"):
        refusals.tell()


async def test_a_name_that_no_server_has_is_warned_of_when_all_servers_have_listed_their_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {
        "letters": {"command": [sys.executable, str(SERVERS / "mcp_example.py")]},
        "digits": {"command": [sys.executable, str(SERVERS / "mcp_plain.py"), str(tmp_path / "notes")]},
    }
    agents = {"desk": {"tools": ["calculater", "ad", "add", "answer", "an*", "zz*"]}}
    config = configured(tmp_path, tools={"mcp": servers, "installed": False}, agents=agents)
    unsure = "agents.desk.tools: not checked, may come from MCP server letters or digits: "
    near = [" (did you mean calculator?)", "", "", "", "", ""]
    names = ["calculater", "ad", "add", "answer", "an*", "zz*"]
    refusals = Refusals()
    found = await check_tools(config, ENVIRON, refusals)
    assert found == tuple(f"{unsure}{name}{hint}" for name, hint in zip(names, near, strict=True))
    refusals.tell()

    def warned() -> list[str]:
        return [record.message for record in caplog.records if record.name == "acu.agency"]

    room = await AgencyRoom.open(config, ENVIRON, Later())
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        room.start(tasks, cast("Service", SimpleNamespace(agents=Nothing())))
        try:
            assert warned() == []
            while not warned():
                await asyncio.sleep(0.02)
        finally:
            await room.close()
    assert [text.partition("Did you")[0].partition("There are")[0] for text in warned()] == [
        "agents.desk.tools: There is no tool 'calculater'. ",
        "agents.desk.tools: There is no tool 'ad'. ",
        "agents.desk.tools: No tool's name begins with 'zz'. ",
    ]
    assert warned()[1].endswith("Did you mean 'add'?")


@pytest.mark.parametrize(("content", "told"), [("{[", "neither JSON nor YAML"), ("[1]", "is no OpenAPI document")])
async def test_a_document_that_is_none_is_told(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "shop.yaml").write_text(content)
    sections = {"agents": {"desk": {}}, "tools": {"http": {"shop": {"document": "shop.yaml", "url": "https://x.test"}}}}
    with pytest.raises(StartRefused, match=told):
        await AgencyRoom.open(configured(tmp_path, **sections), ENVIRON, Later())


@pytest.mark.parametrize("field", ["model", "small_model"])
def test_an_agent_s_models_must_be_served_and_must_speak(tmp_path: Path, field: str) -> None:
    with pytest.raises(Exception, match=rf"agents\.desk\.{field}: 'hugh' is not served; models that are: .*large"):
        configured(tmp_path, agents={"desk": {field: "hugh"}})


async def test_a_name_in_the_examples_of_one_tool_that_waits_for_a_person_is_warned_of(tmp_path: Path) -> None:
    module = tmp_path / "hosts.py"
    module.write_text(
        "from agentflow.tools.function import tool\n\n"
        '@tool(approval=True, examples=("Reboot host beta", "Please bounce host beta"))\n'
        'def reboot(host: str) -> str:\n    """Reboot a host."""\n    return host\n\n'
        '@tool(examples=("How is host alpha doing?",))\n'
        'def host_status(host: str) -> str:\n    """How a host is doing."""\n    return host\n'
    )
    agents = {
        "desk": {"tools": ["reboot", "host_status"]},
        "plain": {"tools": ["host_status"]},
        "unrouted": {"tools": ["reboot"], "routing": False},
    }
    config = configured(tmp_path, tools={"python": {"hosts": {"module": str(module)}}}, agents=agents)
    (told,) = await check_tools(config, ENVIRON, Refusals())
    assert told.startswith(
        "agents.desk.tools: 2 examples of reboot, which waits for a person, have 'beta', and no other"
    )
