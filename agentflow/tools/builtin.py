"""The tools that every box has: what time it is, and arithmetic. Neither reaches anything outside of the process."""

from __future__ import annotations

import asyncio
import difflib
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agentflow.tools.calculator import Unanswerable, answer
from agentflow.tools.errors import InvalidArguments, ToolFailed
from agentflow.tools.tool import CallContext, Tool, ToolOutput, ToolSpec


def builtin_tools() -> tuple[Tool, ...]:
    """All of them."""
    return CurrentTime(), Calculator()


class CurrentTime:
    """The time in a zone of the IANA database. `now` gives the time in UTC."""

    spec = ToolSpec(
        name="current_time",
        description="The date and time now, in a time zone.",
        parameters={
            "type": "object",
            "properties": {
                "zone": {
                    "type": "string",
                    "description": "IANA name, such as Europe/Paris. Default: UTC.",
                    "maxLength": 64,
                }
            },
            "additionalProperties": False,
        },
        timeout_s=5.0,
        idempotent=True,
        fresh_for_s=60.0,
        examples=("what time is it?", "what day is today?", "what is the time in Tokyo?"),
        aliases=("time", "date", "clock", "now"),
    )

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """`2026-01-31 13:05:00 CET (UTC+01:00), Saturday, in Europe/Paris`. Raises InvalidArguments."""
        name = arguments.get("zone", "UTC")
        if not isinstance(name, str):
            raise InvalidArguments("zone must be a name, such as Europe/Paris, not a handle.")
        zone = await asyncio.to_thread(_zone, name.strip() or "UTC")
        now = self._now().astimezone(zone)
        offset = now.strftime("%z")
        return ToolOutput(f"{now:%Y-%m-%d %H:%M:%S} {now:%Z} (UTC{offset[:3]}:{offset[3:5]}), {now:%A}, in {zone.key}")


class Calculator:
    """Arithmetic, as calculator.py has it."""

    spec = ToolSpec(
        name="calculator",
        description="Works out arithmetic: + - * / // % **, brackets, sqrt sin cos tan log exp abs round min max, pi, e.",
        parameters={
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "Such as (2 + 3) * sqrt(16)."}},
            "required": ["expression"],
            "additionalProperties": False,
        },
        timeout_s=5.0,
        idempotent=True,
        examples=("what is 17 * 23?", "how much is 15% of 80?", "the square root of 2"),
        aliases=("calculate", "math", "arithmetic"),
    )

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """The value as text. Raises ToolFailed, InvalidArguments."""
        expression = arguments["expression"]
        if not isinstance(expression, str):
            raise InvalidArguments("expression must be arithmetic, not a handle.")
        try:
            return ToolOutput(answer(expression))
        except Unanswerable as error:
            raise ToolFailed(str(error)) from error


def _zone(name: str) -> zoneinfo.ZoneInfo:
    """Reads files. Raises InvalidArguments."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = _near(name)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Give an IANA name, such as Europe/Paris."
        raise InvalidArguments(f"There is no time zone {name!r}. {hint}") from error


def _near(name: str) -> list[str]:
    """Up to three zones that are called, or whose town is called, nearly so."""
    written = name.lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in zoneinfo.available_timezones()}
    towns = {zone.rpartition("/")[2]: zone for zone in sorted(zones)}
    town = written.rpartition("/")[2]
    found = [zones[zone] for zone in difflib.get_close_matches(written, zones, 2)]
    found = [zones[towns[close]] for close in difflib.get_close_matches(town, towns, 2, 0.75)] + found
    return list(dict.fromkeys(found))[:3]
