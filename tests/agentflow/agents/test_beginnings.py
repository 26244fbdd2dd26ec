"""What a run begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.agency import Asked
from agentflow.agents.runs import new_run_id
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, benched, request


async def nothing(_: dict[str, Any], __: CallContext) -> str:
    return ""


async def test_a_run_begins_with_its_tools_of_one_moment_though_a_server_s_come_and_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello"}, [BodyTool("pay", nothing, approval=True, fresh_for_s=60.0)]) as it:
        beginnings = it.service.agents._beginnings
        toolbox = beginnings._agency.toolbox

        async def meanwhile(_: object) -> None:
            toolbox.renew([BodyTool("look", nothing, approval=True, fresh_for_s=5.0)])

        monkeypatch.setattr(beginnings, "_check", meanwhile)
        found = await beginnings.of(request("go"), Asked(new_run_id()))
        began = found.began
        assert ([tool.name for tool in began.tools], began.asking) == (["pay"], ("pay",))
        assert found.planner._holds == {"pay": 60.0}
        assert [spec.name for spec in toolbox.specs()] == ["look"]


async def test_a_run_that_is_taken_up_again_marks_results_as_old_as_before(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "hello"}, [BodyTool("look", nothing, fresh_for_s=60.0)]) as it:
        beginnings = it.service.agents._beginnings
        found = await beginnings.of(request("go"), Asked(new_run_id()))
        again = await beginnings.again(found.began, "default")
        assert again.planner._holds == found.planner._holds == {"look": 60.0}
