"""What an MCP server's tool gave, as a tool's output.

Its texts are joined. Structured content is given, as JSON, where there is no text: with text it says the same (the protocol wants
that). An image, a sound or a file becomes the call's Content where there is no text; beside a text it is only told of, since a
call gives one or the other.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import Path
from typing import Final, NamedTuple

import mcp_types as types
import msgspec

from agentflow.tools.errors import ToolFailed
from agentflow.tools.secrets import Secrets
from agentflow.tools.tool import CallContext, Content, ToolOutput

_BINARY: Final = "application/octet-stream"


class _Encoded(NamedTuple):
    """Base64, and of what."""

    data: str
    media_type: str


async def output(result: types.CallToolResult, context: CallContext, secrets: Secrets) -> ToolOutput:
    """Raises ToolFailed where it cannot be read, or kept."""
    texts, files = _parts(result)
    text = "\n".join(texts)
    if not text.strip() and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    if not text.strip() and files and not result.is_error:
        size = await asyncio.to_thread(_write, files[0], context.result_path)
        return ToolOutput(Content(context.result_path, size, files[0].media_type))
    notes = [
        f"[{each.media_type}, about {len(each.data) * 3 // 4:,} bytes: left out beside the text]" for each in files
    ]
    return ToolOutput(secrets.hide("\n".join([text, *notes] if text else notes)), is_error=result.is_error)


def _parts(result: types.CallToolResult) -> tuple[list[str], list[_Encoded]]:
    texts: list[str] = []
    files: list[_Encoded] = []
    for block in result.content:
        if isinstance(block, types.TextContent):
            texts.append(block.text)
        elif isinstance(block, types.ImageContent | types.AudioContent):
            files.append(_Encoded(block.data, block.mime_type))
        elif isinstance(block, types.ResourceLink):
            texts.append(f"[{block.name}: {block.uri}]")
        elif isinstance(block.resource, types.TextResourceContents):
            texts.append(block.resource.text)
        else:
            files.append(_Encoded(block.resource.blob, block.resource.mime_type or _BINARY))
    return texts, files


def _write(file: _Encoded, path: Path) -> int:
    try:
        data = base64.b64decode(file.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolFailed(f"The tool gave a file ({file.media_type[:64]}) that is no base64.") from error
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ToolFailed("The result cannot be kept on this machine now.") from error
    return len(data)
