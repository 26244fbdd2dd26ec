"""The built-in tools, called as an agent calls them: through the toolbox."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentflow.tools.builtin import Calculator, CurrentTime, builtin_tools
from agentflow.tools.errors import InvalidArguments
from agentflow.tools.handles import HandleStore
from agentflow.tools.toolbox import CallId, Outcome, Toolbox


async def called(folder: Path, name: str, arguments: str) -> Outcome:
    clock = CurrentTime(lambda: datetime(2026, 1, 31, 12, 5, tzinfo=UTC))
    box = Toolbox([clock, Calculator()], HandleStore(folder))
    return await box.run(box.prepare("ann", name, arguments), CallId("ann", "run-1", "call-1"), 10.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "2026-01-31 12:05:00 UTC (UTC+00:00), Saturday, in UTC"),
        ('{"zone": "Europe/Paris"}', "2026-01-31 13:05:00 CET (UTC+01:00), Saturday, in Europe/Paris"),
        ('{"zone": "Asia/Kolkata"}', "2026-01-31 17:35:00 IST (UTC+05:30), Saturday, in Asia/Kolkata"),
        ('{"zone": " "}', "2026-01-31 12:05:00 UTC (UTC+00:00), Saturday, in UTC"),
    ],
)
async def test_the_time_is_told_in_the_zone_that_is_asked_for(tmp_path: Path, arguments: str, text: str) -> None:
    outcome = await called(tmp_path, "current_time", arguments)
    assert (outcome.text, outcome.is_error) == (text, False)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Shanghai", "Did you mean Asia/Shanghai"),
        ("europe/pariss", "Europe/Paris"),
        ("New York", "America/New_York"),
        ("Atlantis", "There is no time zone 'Atlantis'"),
        ("../../etc/passwd", "There is no time zone"),
        ("America", "There is no time zone"),
        ("/etc/localtime", "There is no time zone"),
    ],
)
async def test_an_unknown_zone_is_told_and_names_near_ones(tmp_path: Path, zone: str, hint: str) -> None:
    outcome = await called(tmp_path, "current_time", f'{{"zone": "{zone}"}}')
    assert outcome.is_error
    assert hint in outcome.text


async def test_the_calculator_answers_or_says_why_not(tmp_path: Path) -> None:
    assert (await called(tmp_path, "calculator", '{"expression": "17 * 23"}')).text == "391"
    refused = await called(tmp_path, "calculator", '{"expression": "9**9**9"}')
    assert (refused.text, refused.is_error, refused.attempts) == ("The result is too large.", True, 1)


async def test_a_handle_is_neither_a_zone_nor_an_expression(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run-1", b"1 + 1", "text/plain")
    box = Toolbox(builtin_tools(), handles)
    for name, field in (("calculator", "expression"), ("current_time", "zone")):
        prepared = box.prepare("ann", name, f'{{"{field}": "{handle}"}}')
        outcome = await box.run(prepared, CallId("ann", "run-1", "call-1"), 10.0)
        assert outcome.is_error
        assert "not a handle" in outcome.text


def test_the_calculator_needs_an_expression(tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments, match=r"expression \(string\) missing"):
        Toolbox(builtin_tools(), HandleStore(tmp_path)).prepare("ann", "calculator", "{}")
