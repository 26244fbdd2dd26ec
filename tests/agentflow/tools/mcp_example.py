"""`python mcp_example.py [stdio | http PORT]`: an MCP server, by the official SDK, with tools that do what tests want."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("example", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(structured_output=False)
def pid() -> str:
    """The server's process."""
    return str(os.getpid())


def write(note: Path, text: str) -> None:
    with note.open("a") as file:
        file.write(text)


@server.tool(structured_output=False)
async def sleep(seconds: float, note: str) -> str:
    """Sleeps; it writes into the file `note` that it began, and that it was cancelled."""
    write(Path(note), "began ")
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        write(Path(note), "cancelled")
        raise
    return "slept"


@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool(structured_output=False)
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "(unset)")


@server.tool(structured_output=False)
def picture() -> Image:
    """An image."""
    return Image(data=b"\x89PNG\r\n\x00\xff", format="png")


@server.tool(structured_output=False)
async def learn(context: Context) -> str:
    """Adds a tool, and tells."""
    server.add_tool(learned, name="learned", structured_output=False)
    await context.notify_tools_changed()
    return "learned"


@server.tool(name="odd name/é", structured_output=False)
def odd() -> str:
    """Its name is none that a model may use."""
    return "odd"


def learned() -> str:
    """What was learned."""
    return "knows"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
