"""What MCP servers' tools give, as outputs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult

from agentflow.tools.errors import ToolFailed
from agentflow.tools.mcpresult import output
from agentflow.tools.secrets import Secrets
from agentflow.tools.tool import CallContext, Content, ToolOutput

PNG = base64.b64encode(b"\x89PNG\0").decode()
TEXT = {"type": "text", "text": "here"}
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
SOUND = {"type": "audio", "data": PNG, "mimeType": "audio/wav"}


async def given(folder: Path, *content: dict[str, Any], **more: Any) -> ToolOutput:
    context = CallContext(
        tenant="ann", run_id="r", call_id="c", key="r/c", deadline_at=0.0, result_path=folder / "result"
    )
    result = CallToolResult.model_validate({"content": content} | more)
    return await output(result, context, Secrets({}, ["k3y-0f-k1ngs"]))


async def test_texts_are_joined_and_secrets_are_not_in_them(tmp_path: Path) -> None:
    link = {"type": "resource_link", "name": "notes", "uri": "file:///notes"}
    resource = {"type": "resource", "resource": {"uri": "a://b", "text": "the key is k3y-0f-k1ngs"}}
    assert await given(tmp_path, TEXT, link, resource) == ToolOutput(
        "here\n[notes: file:///notes]\nthe key is [secret]"
    )
    assert await given(tmp_path) == ToolOutput("")
    assert await given(tmp_path, TEXT, isError=True) == ToolOutput("here", is_error=True)


async def test_structured_content_is_given_where_there_is_no_text(tmp_path: Path) -> None:
    assert await given(tmp_path, structuredContent={"a": ["é"]}) == ToolOutput('{"a":["é"]}')
    assert await given(tmp_path, TEXT, structuredContent={"a": 1}) == ToolOutput("here")


@pytest.mark.parametrize(
    ("block", "media_type"),
    [
        (IMAGE, "image/png"),
        (SOUND, "audio/wav"),
        ({"type": "resource", "resource": {"uri": "a://b", "blob": PNG}}, "application/octet-stream"),
        ({"type": "resource", "resource": {"uri": "a://b", "blob": PNG, "mimeType": "a/b"}}, "a/b"),
    ],
)
async def test_a_file_is_content(tmp_path: Path, block: dict[str, Any], media_type: str) -> None:
    assert await given(tmp_path, block) == ToolOutput(Content(tmp_path / "result", 5, media_type))
    assert (tmp_path / "result").read_bytes() == b"\x89PNG\0"


async def test_a_file_beside_text_is_told_of(tmp_path: Path) -> None:
    told = "[image/png, about 6 bytes: left out beside the text]"
    assert await given(tmp_path, TEXT, IMAGE) == ToolOutput(f"here\n{told}")
    assert await given(tmp_path, IMAGE, isError=True) == ToolOutput(told, is_error=True)
    assert not (tmp_path / "result").exists()


async def test_a_file_that_is_no_base64_fails_the_call(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="no base64"):
        await given(tmp_path, IMAGE | {"data": "é!"})
