"""What `acu runs` shows to people: a list, the timeline of a run, and an event in a line.

A timeline has a line for each step, message and pause in the order of time, a step's calls below it, and what was said and found
out below each. Its bars stand over one axis, from the run's beginning to its end or to now. Everything fits the terminal's width
(80 columns where there is none), nothing needs colours, and what a model or a tool wrote reaches the terminal only as printable
text. rich is imported where something is drawn.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from acu.commands.status import escape
from acu.errors import UnknownAnswer
from acu.telemetry.logs import printable
from acu.terminal.chat import RUNS_PATH

if TYPE_CHECKING:
    from rich.text import Text

LABEL = 16
LEAST_BAR = 10
FIGURES = (("TIME", 7), ("QUEUE", 6), ("TTFT", 6), ("IN", 6), ("CACHED", 6), ("OUT", 5))
FIGURES_WIDTH = sum(width + 1 for _, width in FIGURES)
QUEUE, PREFILL, DECODE, TOOL, PAUSE, MESSAGE = ".", ":", "#", "=", "-", "+"
STYLES = {QUEUE: "yellow", PREFILL: "magenta", DECODE: "green", TOOL: "cyan", PAUSE: "dim", MESSAGE: "bold"}
LEGEND = f"{QUEUE} queue  {PREFILL} prompt  {DECODE} answer  {TOOL} tool  {PAUSE} paused  {MESSAGE} message"
STATUS_STYLES = {"completed": "green", "running": "green", "failed": "red", "cancelled": "red"}
LINE_CHARS = 2000  # of a text that one line may show: more is on no terminal
EVENT_HEAD = 34  # columns of an event's number, time and type


class Piece(NamedTuple):
    """A part of a bar: from when to when (Unix seconds), and its character."""

    begin: float
    end: float
    mark: str


class Axis(NamedTuple):
    """The time that all bars stand over, in Unix seconds, their width in columns, and that of the labels before them."""

    begin: float
    end: float
    columns: int
    label: int = LABEL

    def bar(self, pieces: list[Piece]) -> str:
        """A bar, later pieces over earlier ones. One that is too short for a column still has one, if the bar had none."""
        length = max(self.end - self.begin, 1e-3)
        cells = [" "] * self.columns
        for number, (begin, end, mark) in enumerate(pieces, 1):
            first, last = (round((at - self.begin) / length * self.columns) for at in (begin, end))
            if number == len(pieces) and first >= last and not "".join(cells).strip():
                first = min(first, self.columns - 1)
                last = first + 1
            for cell in range(max(first, 0), min(last, self.columns)):
                cells[cell] = mark
        return "".join(cells)


def listed(page: dict[str, Any]) -> str:
    """A page of runs as a table. Raises UnknownAnswer."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("RUN", no_wrap=True)
    table.add_column("AGENT", overflow="fold")
    table.add_column("STATUS", no_wrap=True)
    table.add_column("BEGAN", no_wrap=True)
    for column in ("TOOK", "STEPS", "CALLS"):
        table.add_column(column, no_wrap=True, justify="right")
    try:
        for run in page["data"]:
            table.add_row(
                escape(run["id"]),
                escape(run["agent"] or "-"),
                _styled_status(run["status"]),
                time.strftime("%m-%d %H:%M", time.localtime(run["created_at"])),
                span((run["ended_at"] or time.time()) - run["created_at"]) if run["status"] != "open" else "-",
                str(run["steps"]),
                str(run["calls"]),
            )
        more, count = page["has_more"], len(page["data"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnknownAnswer(RUNS_PATH) from error
    if not count:
        return "no runs\n"
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
        if more:
            console.print("there are more: --limit N shows them", style="dim")
    return capture.get()


def drawn(account: dict[str, Any]) -> str:
    """A run's account as text for standard output, in colour on a terminal. Raises UnknownAnswer."""
    from rich.console import Console

    console = Console(highlight=False)
    try:
        lines = [*_head(account), *_timeline(account, console.width)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnknownAnswer(RUNS_PATH) from error
    with console.capture() as capture:
        for line in lines:
            line.truncate(console.width, overflow="ellipsis")
            line.rstrip()
            console.print(line, no_wrap=True, crop=False)
    return capture.get()


def event_line(event: dict[str, Any], columns: int) -> str:
    """An event in a line of at most so many columns. Raises UnknownAnswer."""
    from rich.cells import set_cell_size

    try:
        at = event["at"]
        clock = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
        line = (
            f"{event['sequence_number']:>5} {clock} {printable(event['type']):<13} {one_line(_told_by(event))}".rstrip()
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnknownAnswer(f"{RUNS_PATH}/ID/events") from error
    return line if len(line) * 2 <= columns else set_cell_size(line, columns).rstrip()


class Events:
    """The lines of a log, as its events come. What was said in several pieces on end is joined, as far as a line takes it, under
    the number of the last piece. `end` gives what is held back still.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._most = max(1, min(columns - EVENT_HEAD, LINE_CHARS))
        self._said: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> list[str]:
        """The next event. Raises UnknownAnswer."""
        try:
            if event["type"] != "said":
                return [*self.end(), event_line(event, self._columns)]
            if self._said is not None:
                event = event | {"text": self._said["text"] + event["text"], "at": self._said["at"]}
            self._said = event
            return self.end() if len(event["text"]) >= self._most else []
        except (LookupError, TypeError) as error:
            raise UnknownAnswer(f"{RUNS_PATH}/ID/events") from error

    def end(self) -> list[str]:
        """Nothing follows for now."""
        said, self._said = self._said, None
        return [] if said is None else [event_line(said, self._columns)]


def span(seconds: float) -> str:
    """A duration in at most seven columns."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} m"
    return f"{seconds / 3600:.1f} h"


def one_line(text: str) -> str:
    """A text on one line, for a terminal."""
    return printable(" ".join(text[:LINE_CHARS].split()))


def _styled_status(status: str) -> str:
    style = STATUS_STYLES.get(status, "yellow")
    return f"[{style}]{escape(status)}[/]"


def _head(account: dict[str, Any]) -> list[Text]:
    from rich.text import Text

    usage, steps = account["usage"], account["steps"]
    calls = sum(len(step["calls"]) for step in steps)
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(account["created_at"]))
    status = account["status"]
    why = "" if account["why"] in (None, status) else f": {account['why']}"
    tokens = f"{usage['prompt_tokens']} in ({usage['cached_tokens']} cached), {usage['completion_tokens']} out"
    lines = [
        ("run", account["id"], ""),
        ("agent", account["agent"] or "-", ""),
        ("status", f"{status}{why}", STATUS_STYLES.get(status, "yellow")),
        ("began", f"{began}, {_so_far(account)}", ""),
        ("tokens", f"{tokens}; {_count(len(steps), 'step')}, {_count(calls, 'call')}", ""),
    ]
    if account["error"]:
        lines.append(("error", account["error"], "red"))
    return [Text.assemble((f"{name:<8}", "bold"), (one_line(value), style)) for name, value, style in lines]


def _so_far(account: dict[str, Any]) -> str:
    if account["ended_at"] is not None:
        return f"took {span(account['ended_at'] - account['created_at'])}"
    return f"{span(account['as_of'] - account['created_at'])} so far"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _timeline(account: dict[str, Any], columns: int) -> list[Text]:
    from rich.text import Text

    end = account["ended_at"] if account["ended_at"] is not None else account["as_of"]
    names = [f"  {call['name']}" for step in account["steps"] for call in step["calls"]]
    label = max(LABEL, min(max(map(len, names), default=0), columns - 1 - LEAST_BAR - FIGURES_WIDTH))
    axis = Axis(account["created_at"], end, max(LEAST_BAR, columns - label - 1 - FIGURES_WIDTH), label)
    length = span(end - account["created_at"])
    heads = "".join(f" {name:>{width}}" for name, width in FIGURES)
    lines = [
        Text(),
        Text(f"{'':<{axis.label}} {'0 s':<{axis.columns - len(length)}}{length}{heads}", style="bold"),
    ]
    rows: list[tuple[float, list[Text]]] = []
    rows += [(step["began_at"], _step_lines(step, axis)) for step in account["steps"]]
    rows += [(message["at"], _message_lines(message, axis)) for message in account["messages"]]
    rows += [(pause["began_at"], [_pause_line(pause, axis)]) for pause in account["pauses"]]
    for _, texts in sorted(rows, key=lambda row: row[0]):
        lines += texts
    return [*lines, Text(LEGEND, style="dim")]


def _step_lines(step: dict[str, Any], axis: Axis) -> list[Text]:
    began, ended = step["began_at"], step["ended_at"]
    figures = [
        span((axis.end if ended is None else ended) - began),
        "-" if step["queue_s"] is None else span(step["queue_s"]),
        "-" if step["ttft_s"] is None else span(step["ttft_s"]),
        str(step["prompt_tokens"]),
        str(step["cached_tokens"]),
        str(step["completion_tokens"]),
    ]
    lines = [_row(axis, f"{step['number'] + 1} {step['model']}", _step_pieces(step, axis), figures)]
    notes = [f"[{step['finish_reason']}]"] if step["finish_reason"] not in (None, "stop") else []
    notes += [f"[{_routed(step['routed'])}]"] if step.get("routed") else []
    notes += [f"[must call {step['forced']}]"] if step["forced"] else []
    notes += [f"[engine lost: {step['resumptions']}]"] if step["resumptions"] else []
    if said := " ".join([*notes, step["text"]]).strip():
        lines.append(_below(2, said))
    for call in step["calls"]:
        lines += _call_lines(call, axis)
    return lines


def _routed(routed: dict[str, Any]) -> str:
    """What the router decided, in a few words."""
    tool = f" {routed['tool']} {routed.get('score', 0):.2f}" if routed.get("tool") else ""
    return f"router: {routed['route']}{tool}"


def _step_pieces(step: dict[str, Any], axis: Axis) -> list[Piece]:
    began, ended = step["began_at"], step["ended_at"]
    if ended is None:
        return [Piece(began, axis.end, DECODE)]
    first = ended - step["decode_s"]
    asked = first - step["ttft_s"]  # later than the beginning where the run was paused, or an engine was lost
    seated = asked + step["queue_s"]
    return [Piece(began, seated, QUEUE), Piece(seated, first, PREFILL), Piece(first, ended, DECODE)]


def _outcome(call: dict[str, Any]) -> str:
    """How a call is, in a few words."""
    if call["ended_at"] is not None:
        return "error" if call["is_error"] else "ok"
    if call["started_at"] is not None:
        return "going on"
    if call.get("clients"):
        return "the caller's"
    return "asks to be allowed" if call.get("approval") == "asked" else "waits"


def _call_lines(call: dict[str, Any], axis: Axis) -> list[Text]:
    started, ended = call["started_at"], call["ended_at"]
    if started is None:
        pieces, took = ([] if ended is None else [Piece(ended, ended, TOOL)]), "-"
    else:
        until = axis.end if ended is None else ended
        pieces, took = [Piece(started, until, TOOL)], span(until - started)
    outcome = _outcome(call)
    if call["attempts"] > 1:
        outcome += f", attempt {call['attempts']}"
    row = _row(axis, f"  {call['name']}", pieces, [took], outcome)
    whole = f"{call['name']} " if len(call["name"]) + 2 > axis.label else ""
    result = "" if call["result"] is None else f" -> {call['result']}"
    handle = f" [{call['handle']}]" if call["handle"] else ""
    return [row, _below(4, f"{whole}{call['arguments']}{handle}{result}")]


def _message_lines(message: dict[str, Any], axis: Axis) -> list[Text]:
    pieces = [Piece(message["at"], message["at"], MESSAGE)]
    return [_row(axis, message["role"], pieces, []), _below(2, message["content"])]


def _pause_line(pause: dict[str, Any], axis: Axis) -> Text:
    until = axis.end if pause["ended_at"] is None else pause["ended_at"]
    return _row(axis, "paused", [Piece(pause["began_at"], until, PAUSE)], [span(until - pause["began_at"])])


def _row(axis: Axis, label: str, pieces: list[Piece], figures: list[str], rest: str = "") -> Text:
    """A line: label, bar, figures in their columns, and a word in the place of those that are not there."""
    from rich.cells import set_cell_size
    from rich.text import Text

    line = Text(f"{set_cell_size(printable(label), axis.label)} ")
    for cell in axis.bar(pieces):
        line.append(cell, STYLES.get(cell, ""))
    for figure, (_, width) in zip(figures, FIGURES, strict=False):
        line.append(f" {figure:>{width}}")
    line.append(f"  {rest}" if rest else "", "red" if rest.startswith("error") else "")
    return line


def _below(indent: int, text: str) -> Text:
    from rich.text import Text

    return Text(f"{'':<{indent}}{one_line(text)}", style="dim")


def _told_by(event: dict[str, Any]) -> str:
    """What an event tells, for people."""
    told = _told_of_call(event)
    match event["type"]:
        case "began":
            told = f"{event['agent'] or '-'} on {event['model']}"
        case "step_began":
            told = f"{event['step'] + 1} {event['model']}" + (
                f", must call {event['forced']}" if event["forced"] else ""
            )
        case "said":
            told = event["text"]
        case "resumed":
            told = f"another engine goes on behind {_count(event['kept'], 'token')}"
        case "step_ended":
            told = f"{event['reason']}; {event['prompt_tokens']} in, {event['completion_tokens']} out"
        case "added":
            told = f"{event['message']['role']}: {event['message']['content']}"
        case "unpaused":
            told = "for one step" if event["one_step"] else ""
        case "paused":
            told = ""
        case "ended":
            told = f"{event['end']}: {event['error'] or event['why']}"
    return str(told)


def _told_of_call(event: dict[str, Any]) -> str:
    """What an event of a call tells; all of an event that a newer daemon made."""
    match event["type"]:
        case "approval_asked":
            return f"{event['call_id']} waits for a person who allows it"
        case "approval_given":
            return f"{event['call_id']} {'allowed' if event['allowed'] else 'refused'} by {event['by'] or '-'} {event['why']}"
        case "call_started":
            return f"{event['name']} {event['arguments']}"
        case "call_ended":
            return f"error: {event['text']}" if event["is_error"] else str(event["text"])
    return json.dumps(event)
