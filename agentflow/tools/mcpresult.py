"""What an MCP server's tool gave, as a tool's output.

Its texts are joined, links among them, with what they say of what they lead to. Structured content is given, as JSON, where there
is no text: with text it says the same (the protocol wants that). Images, sounds and other files are attached, FILES at most.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import Final, NamedTuple

import mcp_types as types
import msgspec

from agentflow.tools.errors import ToolFailed
from agentflow.tools.secrets import Secrets
from agentflow.tools.tool import Attachment, ToolOutput

FILES: Final = 16
_PART: Final = 1 << 18
"""Characters of base64 that are decoded at a time, a multiple of 4: meanwhile the loop waits, in whatever thread it is."""
_BINARY: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(r"[a-zA-Z0-9!#$&^_.+-]{1,64}/[a-zA-Z0-9!#$&^_.+-]{1,64}")


class _Encoded(NamedTuple):
    """Base64, and of what."""

    data: str
    media_type: str


async def output(result: types.CallToolResult, secrets: Secrets) -> ToolOutput:
    """Raises ToolFailed where it cannot be read."""
    texts, files = _parts(result)
    if not "".join(texts).strip() and result.structured_content is not None:
        texts = [msgspec.json.encode(result.structured_content).decode()]
    attached = await asyncio.to_thread(_decoded, files[:FILES]) if files else ()
    if len(files) > FILES:
        texts.append(f"[{len(files) - FILES} more files: left out]")
    return ToolOutput(secrets.hide("\n".join(texts)), result.is_error, attached)


def _parts(result: types.CallToolResult) -> tuple[list[str], list[_Encoded]]:
    texts: list[str] = []
    files: list[_Encoded] = []
    for block in result.content:
        if isinstance(block, types.TextContent):
            texts.append(block.text)
        elif isinstance(block, types.ImageContent | types.AudioContent):
            files.append(_Encoded(block.data, block.mime_type))
        elif isinstance(block, types.ResourceLink):
            texts.append(_link(block))
        elif isinstance(block.resource, types.TextResourceContents):
            texts.append(block.resource.text)
        else:
            files.append(_Encoded(block.resource.blob, block.resource.mime_type or _BINARY))
    return texts, files


def _link(link: types.ResourceLink) -> str:
    """In one line, without characters that are not written: it is the server's to say what, and ours to say how."""
    size = None if link.size is None or link.size < 0 else f"{link.size:,} bytes"
    said = [str(link.uri), link.mime_type, size, link.description]
    text = f"[{link.title or link.name}: {', '.join(filter(None, said))}]"
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _decoded(files: list[_Encoded]) -> tuple[Attachment, ...]:
    """What is no media type is called one for anything: the model reads it."""
    decoded = []
    for file in files:
        media_type = file.media_type if _MEDIA_TYPE.fullmatch(file.media_type) else _BINARY
        try:
            decoded.append(Attachment(_bytes(file.data), media_type))
        except (binascii.Error, ValueError) as error:
            raise ToolFailed(f"The tool gave a file ({media_type}) that is no base64.") from error
    return tuple(decoded)


def _bytes(data: str) -> bytes:
    """Raises ValueError for what is no base64."""
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    if any(part.endswith("=") for part in parts[:-1]):
        raise ValueError("it ends before its end")
    return b"".join(base64.b64decode(part, validate=True) for part in parts)
