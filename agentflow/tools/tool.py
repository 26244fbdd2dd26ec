"""Tool: the seam between an agent and what it can call. Frozen values, and one protocol.

A tool is a `ToolSpec`, which says what it is, and a `call`, which does it. Python functions, HTTP endpoints, MCP servers' tools
and the built-in ones are all `Tool`s; whatever is the same for all of them (validation, handles, retries, bounds) stands in
front of them, in toolbox.py, and none of them does it again.

**Content.** Megabytes pass from tool to tool as `Content`: a file on this machine that a handle stands for. They are never
in JSON, nor read by the model. A tool that has a large result writes it to `context.result_path` and returns that as Content.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from agentflow import messages
from agentflow.tools.context import Context


class ToolSpec(Struct, frozen=True, kw_only=True):
    """What a tool is, and how it may be called.

    `parameters` is a JSON schema of type object. Times are seconds; `timeout_s` is for one try, waiting for a place
    included. `idempotent`: a second call with the same arguments does no harm, so that it may be tried again (`retries`
    times) and after a crash; a tool that is not is called at most once.
    `fresh_for_s`: a result older than that is fetched again, or marked stale, after a suspension (None: it never ages).
    `result_bytes`: what of a result the model reads; the rest is behind a handle. `concurrency`: calls at a time, over all runs.
    `approval`: a person must allow each call. `examples` (texts of users that want it) and `aliases` are for the router.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    timeout_s: float = 30.0
    retries: int = 1
    concurrency: int = 8
    idempotent: bool = False
    fresh_for_s: float | None = None
    result_bytes: int = 8192
    approval: bool = False
    examples: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def offered(self) -> messages.Tool:
        """What a model is told of it."""
        return messages.Tool(name=self.name, description=self.description or None, parameters=self.parameters)


class Content(Struct, frozen=True):
    """Bytes in a file of this machine: `size` of them, UTF-8 text where `media_type` begins with text/ or is JSON."""

    path: Path
    size: int
    media_type: str = "text/plain"

    def read(self, most: int | None = None) -> bytes:
        """The first `most` bytes, or all. Blocks. Raises OSError."""
        with self.path.open("rb") as file:
            return file.read() if most is None else file.read(most)


class CallContext(Context, frozen=True, kw_only=True):
    """Who calls, and for what. `result_path`: a file that does not exist, which the tool may make for a large result."""

    result_path: Path


class Attachment(Struct, frozen=True):
    """A file that a tool gave beside its text, as bytes in memory."""

    data: bytes
    media_type: str


class ToolOutput(Struct, frozen=True):
    """What a call gave: text, or Content whose file is at the context's `result_path`. `is_error`: the tool says it failed.

    `attached`: files that it gave as well. Each is kept, and the model is told of it.
    """

    content: str | Content
    is_error: bool = False
    attached: tuple[Attachment, ...] = ()


class Tool(Protocol):
    """Something that an agent can call. Used on the event loop, and never blocks it."""

    spec: ToolSpec

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """Do it. `arguments` fit the schema; where the model gave a handle there is the Content that it stands for.

        Raises ToolError. Cancelled at its timeout or when the run is: it then stops what it does, and leaves nothing.
        """
