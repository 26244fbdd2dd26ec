"""A tenant that is erased has no runs any more, and nothing of its tools' results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from acu.data import work
from acu.data.work import perform
from acu.http.wire.data import EraseBody
from agentflow.agents.archive import HOUSE, Archive
from agentflow.agents.config import AgentConfig
from agentflow.library.refusals import DataUnavailable
from agentflow.messages import Caller
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from dataplane.care.inspection import silent
from tests.agentflow.agents.agencies import BodyTool, benched, call, request, text_of

AGENT = AgentConfig(tools=("*",), routing=False)


async def long(_: dict[str, Any], __: CallContext) -> str:
    return "long " * 10_000


async def hang(_: dict[str, Any], __: CallContext) -> str:
    await asyncio.sleep(60)
    return ""


async def test_erasing_a_tenant_ends_its_runs_and_removes_their_logs_and_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESULTS", "../handles")
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    archive = Archive(plane.state)
    rules = {"long long": "Read.", "long": call("long"), "hang": call("hang"), "hi": "Hello."}
    tools = [BodyTool("long", long), BodyTool("hang", hang)]
    async with benched(tmp_path, rules, tools, AGENT, plane=plane) as it:
        for tenant in ("acme", "other"):
            assert text_of(await it.ask("long", caller=Caller(tenant))) == "Read."
        await it.service.chat(request("hang", caller=Caller("acme")))
        (going,) = it.service.agents.ids("acme")
        assert len([path for path in (tmp_path / "handles").rglob("h_*") if path.is_file()]) == 2
        refused: list[Exception] = []

        async def begin_within(stage: str) -> None:
            try:
                await it.ask("hi", caller=Caller("acme"))
            except DataUnavailable as error:
                refused.append(error)

        tries: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()

        def told(stage: str, _: int, __: int) -> None:
            loop.call_soon_threadsafe(lambda: tries.append(loop.create_task(begin_within(stage))))

        receipt = await perform(plane, EraseBody(tenant="acme"), told, runs=it.service.agents)
        await asyncio.gather(*tries)
        assert not receipt["left"]
        assert it.service.agents.live("acme", going) is None
        assert await archive.page("acme", None, 10) == []
        assert await archive.events("acme", going) == []
        assert len(await archive.page("other", None, 10)) == 1
        assert [name for name, _ in await plane.state.scan(HOUSE, "tenant")] == ["other"]
        assert len([path for path in (tmp_path / "handles").rglob("h_*") if path.is_file()]) == 1
        assert all("being erased" in str(error) for error in refused)
        assert text_of(await it.ask("hi", caller=Caller("acme"))) == "Hello."
        assert len(await archive.page("acme", None, 10)) == 1
        await perform(plane, EraseBody(tenant="other"), silent)
        assert [path for path in (tmp_path / "handles").rglob("h_*") if path.is_file()] == []
    await plane.close()


async def test_a_run_has_its_tools_results_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "RESULTS", "../handles")
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    there, hanging = [], asyncio.Event()

    def kept() -> int:
        return sum(path.is_file() for path in (tmp_path / "handles").rglob("h_*"))

    async def hang_on(_: dict[str, Any], __: CallContext) -> str:
        hanging.set()
        try:
            await asyncio.sleep(60)
        finally:
            there.append(kept())
        return ""

    tools = [BodyTool("long", long), BodyTool("hang", hang_on)]
    async with benched(tmp_path, {"long long": call("hang"), "long": call("long")}, tools, AGENT, plane=plane) as it:
        await it.service.chat(request("long", caller=Caller("acme")))
        await hanging.wait()
        await perform(plane, EraseBody(tenant="acme"), silent, runs=it.service.agents)
        assert (there, kept()) == ([1], 0)
    await plane.close()
