"""Tools that do as they are told, and a toolbox's calls of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentflow.tools.tool import CallContext, Content, ToolOutput, ToolSpec
from agentflow.tools.toolbox import CallId, Outcome, Toolbox

Does = Callable[[dict[str, Any], CallContext], Awaitable[Any]]


class Doing:
    """A tool that does as it is told. `contexts`: those of its calls."""

    def __init__(self, does: Does, name: str = "tool", **more: Any) -> None:
        self.spec = ToolSpec(name=name, **more)
        self._does = does
        self.contexts: list[CallContext] = []

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        self.contexts.append(context)
        return await self._does(arguments, context)  # type: ignore[no-any-return]


async def says(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
    return ToolOutput(json.dumps(arguments, default=lambda content: content.read().decode()))


async def hangs(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
    context.result_path.write_bytes(b"half")
    await asyncio.Event().wait()
    raise AssertionError


def raising(error: BaseException) -> Does:
    async def raises(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        raise error.with_traceback(None)  # each time its own

    return raises


def giving(output: object) -> Does:
    async def gives(arguments: dict[str, Any], context: CallContext) -> object:
        return output

    return gives


def writing(data: bytes, media_type: str = "text/plain", size: int = 0) -> Does:
    async def writes(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        context.result_path.write_bytes(data)
        return ToolOutput(Content(context.result_path, size, media_type))

    return writes


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


async def call(
    box: Toolbox, arguments: str = "", name: str = "tool", tenant: str = "ann", within_s: float = 10
) -> Outcome:
    return await box.run(box.prepare(tenant, name, arguments), CallId(tenant, "run-1", "call-1"), within_s)
