"""Results of tools that hold for a while only are marked in what comes back to the model later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.record import CallEnded
from agentflow.responses.items import Item, MessageItem, ToolItem
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import BodyTool, benched, call
from tests.agentflow.responses.test_responses import asked

AT = 1_700_000_000_000
RULES = {"price is 7": "It is 7.", "go": call("price"), "again": "I look."}


async def price(_: dict[str, Any], __: CallContext) -> str:
    return "the price is 7"


TOOLS = [BodyTool("price", price, fresh_for_s=60.0)]


@pytest.mark.parametrize("name", ["price", "forecast"])
async def test_an_old_result_in_a_conversation_is_marked_for_the_model(tmp_path: Path, name: str) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    items: list[Item] = [
        MessageItem(id="msg_1", role="user", texts=("How much?",)),
        ToolItem(id="mcp_1", name=name, arguments="{}", output="7", at=AT),
        MessageItem(id="msg_2", role="assistant", texts=("It is 7.",)),
    ]
    async with benched(tmp_path, RULES, TOOLS, plane=plane) as it:
        conversation = await it.service.responses.conversations.create("default", {}, items)
        await (await it.service.responses.create(asked("again", "agent/a", conversation=conversation.id))).finish()
        prompt = bytes(it.ended[-1].prompt_token_ids).decode()
        assert ("(This result is of 2023-11-14 22:13 UTC, and may not hold any more.)\n7" in prompt) == (
            name == "price"
        )
    await plane.close()


@pytest.mark.parametrize("through", ["conversation", "previous_response_id"])
async def test_a_result_comes_back_with_its_moment(
    tmp_path: Path, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    async with benched(tmp_path, RULES, TOOLS, plane=plane) as it:
        responses, archive = it.service.responses, await it.service.agents.archive()
        settings = {}
        if through == "conversation":
            settings = {"conversation": (await responses.conversations.create("default", {}, ())).id}
        stream = await responses.create(asked("go", "agent/a", **settings))
        state = await stream.finish()
        await it.service.agents.drain()
        (ended,) = [each for _, each in await archive.events("default", stream.run_id) if isinstance(each, CallEnded)]
        seen: list[int] = []

        def is_old(_: str, at_ms: int, __: object, ___: int) -> bool:
            seen.append(at_ms)
            return True

        monkeypatch.setattr("agentflow.agents.aging.is_old", is_old)
        if through == "previous_response_id":
            settings = {"previous_response_id": state.record.id}
        await (await responses.create(asked("again", "agent/a", **settings))).finish()
        assert set(seen) == {ended.at}
        assert b"may not hold any more.)\nthe price is 7" in bytes(it.ended[-1].prompt_token_ids)
    await plane.close()
