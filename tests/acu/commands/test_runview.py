"""What `acu runs` shows fits 80 columns, says what it should without colours, and never drives the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from acu.commands.runview import Axis, Events, Piece, drawn, event_line, listed, span
from acu.errors import UnknownAnswer

CALL = {
    "id": "call_1", "name": "look", "arguments": '{"what": "box"}', "started_at": 103.0, "ended_at": 105.0,
    "seconds": 1.9, "attempts": 1, "is_error": False, "result": "a hat", "handle": None,
}  # fmt: skip
STEP = {
    "number": 0, "model": "qwen", "routed": None, "forced": None, "began_at": 100.0, "ended_at": 104.0, "prompt_tokens": 900,
    "cached_tokens": 400, "completion_tokens": 30, "queue_s": 1.0, "ttft_s": 2.0, "decode_s": 2.0,
    "finish_reason": "stop", "text": "I look.", "resumptions": 0, "calls": [CALL],
}  # fmt: skip
LAST = STEP | {
    "number": 1,
    "began_at": 105.0,
    "ended_at": 110.0,
    "queue_s": 0.0,
    "ttft_s": 1.0,
    "decode_s": 4.0,
    "calls": [],
}
RUN = {
    "id": "run_" + "a" * 24, "agent": "desk", "model": "qwen", "status": "completed", "why": "stop", "error": None,
    "created_at": 100.0, "ended_at": 110.0, "as_of": 110.0, "last": 20,
    "usage": {"prompt_tokens": 1800, "completion_tokens": 60, "cached_tokens": 800},
    "steps": [STEP, LAST], "messages": [], "pauses": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def lines_of(run: dict[str, Any]) -> list[str]:
    lines = drawn(run).splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    return lines


def test_a_run_is_a_timeline_over_one_axis() -> None:
    lines = lines_of(RUN)
    assert lines[0] == f"run     run_{'a' * 24}"
    assert lines[2] == "status  completed: stop"
    assert lines[4] == "tokens  1800 in (800 cached), 60 out; 2 steps, 1 call"
    assert lines[6:] == [
        "                 0 s            10.0 s    TIME  QUEUE   TTFT     IN CACHED   OUT",
        "1 qwen           ..::####                4.0 s  1.0 s  2.0 s    900    400    30",
        "  I look.",
        "  look                 ====              2.0 s  ok",
        '    {"what": "box"} -> a hat',
        "2 qwen                     :::########   5.0 s   0 ms  1.0 s    900    400    30",
        "  I look.",
        ". queue  : prompt  # answer  = tool  - paused  + message",
    ]


def test_a_run_that_goes_on_is_shown_until_now() -> None:
    call = CALL | {"ended_at": None, "seconds": None, "result": None}
    step = STEP | {
        "ended_at": None,
        "queue_s": None,
        "ttft_s": None,
        "decode_s": None,
        "finish_reason": None,
        "calls": [call],
    }
    lines = lines_of(RUN | {"status": "running", "why": None, "ended_at": None, "steps": [step]})
    assert lines[2] == "status  running"
    assert lines[3].endswith("10.0 s so far")
    assert lines[7] == f"1 qwen           {'#' * 21}  10.0 s      -      -    900    400    30"
    assert lines[9] == f"  look           {'':6}{'=' * 15}   7.0 s  going on"


def test_a_call_that_waits_for_a_person_says_so() -> None:
    call = CALL | {"started_at": None, "ended_at": None, "result": None, "seconds": None, "attempts": 0}
    lines = lines_of(RUN | {"steps": [STEP | {"calls": [call | {"approval": "asked"}, call | {"approval": None}]}]})
    assert [line.split() for line in lines if line.startswith("  look")] == [
        ["look", "-", "asks", "to", "be", "allowed"],
        ["look", "-", "waits"],
    ]


def test_pauses_messages_and_what_went_wrong_have_their_lines() -> None:
    pauses = [{"began_at": 104.0, "ended_at": 106.0}, {"began_at": 109.0, "ended_at": None}]
    messages = [{"at": 104.5, "step": 0, "role": "user", "content": "Hurry."}]
    failed = CALL | {"started_at": None, "is_error": True, "attempts": 2, "result": "no such tool", "handle": "h_1"}
    routed = {"route": "extract", "tool": "look", "score": 0.914, "reasons": ["says look"]}
    step = STEP | {"finish_reason": "length", "resumptions": 1, "forced": "look", "routed": routed, "calls": [failed]}
    lines = lines_of(
        RUN | {"steps": [step], "pauses": pauses, "messages": messages, "status": "failed", "error": "It broke."}
    )
    assert "error   It broke." in lines
    assert "  [length] [router: extract look 0.91] [must call look] [engine lost: 1] I look." in lines
    assert any(line.startswith("  look") and line.endswith("-  error, attempt 2") for line in lines)
    assert '    {"what": "box"} [h_1] -> no such tool' in lines
    paused = [line for line in lines if line.startswith("paused")]
    assert [line.split() for line in paused] == [["paused", "-----", "2.0", "s"], ["paused", "--", "1.0", "s"]]
    at = next(number for number, line in enumerate(lines) if line.startswith("user"))
    assert (lines[at].split(), lines[at + 1]) == (["user", "+"], "  Hurry.")


def test_nothing_that_a_model_or_a_tool_wrote_drives_the_terminal_or_breaks_the_lines() -> None:
    evil = "\x1b[31m[red]\r\n" + "汉字" * 100 + "\u202e"
    call = CALL | {"name": evil, "arguments": evil, "result": evil, "handle": evil}
    step = STEP | {"model": evil, "text": evil, "finish_reason": evil, "forced": evil, "calls": [call]}
    run = RUN | {"agent": evil, "steps": [step], "error": evil, "why": evil}
    run["messages"] = [{"at": 104.5, "step": 0, "role": evil, "content": evil}]
    text = "\n".join(lines_of(run))
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert "\\x1b[31m[red]" in text
    assert "汉字" in text
    line = event_line({"sequence_number": 7, "type": "said", "at": 1.5, "text": evil}, 80)
    assert "\x1b" not in line
    assert cell_len(line) <= 80
    page = {
        "data": [
            {"id": "run_1", "agent": evil, "status": evil, "created_at": 1.0, "ended_at": 2.0, "steps": 1, "calls": 0}
        ]
    }
    assert not {"\x1b", "\r", "\u202e"} & set(listed(page | {"has_more": False}))


def test_a_list_fits_the_terminal() -> None:
    run = {
        "id": RUN["id"],
        "agent": "desk",
        "status": "incomplete",
        "created_at": 1.0,
        "ended_at": 2.5,
        "steps": 12,
        "calls": 30,
    }
    lines = listed(
        {"data": [run, run | {"agent": "", "status": "open", "ended_at": None}], "has_more": True}
    ).splitlines()
    assert lines[0].split() == ["RUN", "AGENT", "STATUS", "BEGAN", "TOOK", "STEPS", "CALLS"]
    assert lines[1].split()[:3] == [RUN["id"], "desk", "incomplete"]
    assert lines[1].split()[-4:] == ["1.5", "s", "12", "30"]
    assert lines[2].split()[1:3] == ["-", "open"]
    assert lines[3] == "there are more: --limit N shows them"
    assert max(map(len, lines)) <= 80
    assert listed({"data": [], "has_more": False}) == "no runs\n"


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"type": "began", "agent": "desk", "model": "m", "prompt": [1, 2]}, "desk on m"),
        ({"type": "step_began", "step": 1, "model": "m", "forced": "look"}, "2 m, must call look"),
        ({"type": "said", "text": "Hi\nthere"}, "Hi there"),
        ({"type": "resumed", "kept": 1}, "another engine goes on behind 1 token"),
        ({"type": "step_ended", "reason": "stop", "prompt_tokens": 9, "completion_tokens": 3}, "stop; 9 in, 3 out"),
        ({"type": "call_started", "name": "look", "arguments": "{}"}, "look {}"),
        ({"type": "call_ended", "is_error": True, "text": "no"}, "error: no"),
        ({"type": "approval_asked", "call_id": "call_1"}, "call_1 waits for a person who allows it"),
        (
            {"type": "approval_given", "call_id": "call_1", "allowed": False, "by": "ops", "why": "Too dear."},
            "call_1 refused by ops Too dear.",
        ),
        ({"type": "added", "message": {"role": "user", "content": "Hurry."}}, "user: Hurry."),
        ({"type": "unpaused", "one_step": True}, "for one step"),
        ({"type": "ended", "end": "failed", "why": "x", "error": "It broke."}, "failed: It broke."),
    ],
)
def test_every_event_is_told_in_a_line(event: dict[str, Any], told: str) -> None:
    line = event_line({"sequence_number": 7, "at": 1.25} | event, 80)
    assert line.startswith("    7 ")
    assert line.endswith(f".250 {event['type']:<13} {told}")


def test_an_event_of_a_newer_daemon_is_shown_as_it_is() -> None:
    assert event_line({"sequence_number": 7, "at": 1.25, "type": "new", "x": 1}, 200).endswith('"x": 1}')


@pytest.mark.parametrize("answer", [{}, {"data": 1}, {"data": [{}], "has_more": False}])
def test_an_answer_that_is_none_is_told(answer: dict[str, Any]) -> None:
    for show in (drawn, listed, lambda value: event_line(value, 80)):
        with pytest.raises(UnknownAnswer):
            show(answer)


def test_a_bar_shows_each_part_where_it_was_and_the_shortest_at_all() -> None:
    axis = Axis(0.0, 10.0, 10)
    assert axis.bar([Piece(0, 2, "."), Piece(2, 3, ":"), Piece(3, 10, "#")]) == "..:#######"
    assert axis.bar([Piece(5, 5, "=")]) == "     =    "
    assert axis.bar([Piece(10, 10, "=")]) == "         ="
    assert axis.bar([Piece(-5, 99, "=")]) == "=========="
    assert axis.bar([]) == " " * 10
    assert Axis(5.0, 5.0, 3).bar([Piece(5.0, 5.0, "#")]) == "#  "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.9994, "999 ms"), (1, "1.0 s"), (99.94, "99.9 s"), (600, "10.0 m"), (7200, "2.0 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(("name", "whole"), [("deploy_status_now", ""), ("n" * 60, "n" * 60 + " ")])
def test_a_tool_with_a_long_name_is_shown_whole(name: str, whole: str) -> None:
    lines = lines_of(RUN | {"steps": [STEP | {"calls": [CALL | {"name": name}]}, LAST]})
    assert any(line.startswith(f"  {name[:25]}") for line in lines)
    assert any(line.startswith(f"    {whole}{{") for line in lines)


def test_what_was_said_in_pieces_is_one_line() -> None:
    told = Events(80)
    said = {"type": "said", "at": 1.0, "sequence_number": 3, "text": "I lo", "ids": [1]}
    assert told.take(said) == []
    assert told.take(said | {"sequence_number": 4, "text": "ok.", "at": 2.0}) == []
    joined, after = told.take({"type": "paused", "at": 3.0, "sequence_number": 5})
    assert (joined.split()[0], joined.split()[2:]) == ("4", ["said", "I", "look."])
    assert after.split()[2:] == ["paused"]
    (line,) = told.take(said | {"text": "x" * 100})
    assert len(line) <= 80
    assert told.take(said) == []
    assert len(told.end()) == 1
    assert told.end() == []
    with pytest.raises(UnknownAnswer):
        told.take({"type": "said"})
