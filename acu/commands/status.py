"""`acu status`: what the daemon does, as a table, as JSON, or again and again.

rich is imported where a table is drawn: `--json`, which scripts call, does without the time that it takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from acu.commands import exits
from acu.commands.options import add_target_options, target_of
from acu.errors import UnknownAnswer
from acu.telemetry.logs import printable
from acu.terminal.client import Client

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

STATUS_PATH = "/acu/v1/status"
WATCH_EVERY_S = 1.0
TOTAL_S = 8.0


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "status",
        help="what the daemon does",
        description="What the daemon serves, runs and chose for this machine. Exit code 0 when it is ready, 1 when it "
        "is not, 3 when no daemon listens.",
        allow_abbrev=False,
    )
    add_target_options(parser)
    parser.add_argument("--json", action="store_true", help="the daemon's report as JSON")
    parser.add_argument("--watch", action="store_true", help="again every second, until ctrl-C")
    parser.add_argument(
        "--reference", action="store_true", help="ask no daemon: print docs/metrics.md, the page of what /metrics has"
    )


def run(args: argparse.Namespace) -> int:
    """Show the status once, or until ctrl-C. Raises DaemonUnreachable, ApiError."""
    if args.reference:
        from acu.telemetry.reference import reference

        sys.stdout.write(reference())
        return exits.OK
    client = Client(target_of(args), total_s=TOTAL_S)
    if args.watch:
        return watch(client, as_json=args.json)
    report = client.get(STATUS_PATH)
    ready = is_ready(report)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else drawn(report))
    return exits.OK if ready else exits.FAILED


def watch(client: Client, *, as_json: bool) -> int:
    """Show the status every second: in place on a terminal, one after the other elsewhere; JSON one object a line."""
    if as_json or not sys.stdout.isatty():
        while True:
            report = client.get(STATUS_PATH)
            sys.stdout.write(json.dumps(report) + "\n" if as_json else drawn(report) + "\n")
            sys.stdout.flush()
            time.sleep(WATCH_EVERY_S)
    from rich.console import Console
    from rich.live import Live

    with Live(understood(client.get(STATUS_PATH)), console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(understood(client.get(STATUS_PATH)), refresh=True)


def is_ready(report: dict[str, Any]) -> bool:
    """Whether the report says that the service is ready. Raises UnknownAnswer."""
    try:
        return bool(report["service"]["ready"])
    except (KeyError, TypeError) as error:
        raise UnknownAnswer(STATUS_PATH) from error


def drawn(report: dict[str, Any]) -> str:
    """The report as text for standard output, in colour on a terminal. Raises UnknownAnswer."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(understood(report))
    return capture.get()


def understood(report: dict[str, Any]) -> RenderableType:
    """The report as tables. Raises UnknownAnswer."""
    try:
        return render(report)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnknownAnswer(STATUS_PATH) from error


class Pairs:
    """Names with values on as few lines as they need, which break between pairs and, while it fits a line, never in one."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._texts = [printable(f"{name}: {value}") for name, value in pairs]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        lines: list[str] = []
        for text in self._texts:
            if lines and len(lines[-1]) + len(text) + len(", ,") <= options.max_width:
                lines[-1] += f", {text}"
            else:
                lines.append(text)
        yield Text(",\n".join(lines), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        longest, whole = max(map(len, self._texts), default=0), len(", ".join(self._texts))
        return Measurement(min(longest + 1, options.max_width), min(whole, options.max_width))


def render(report: dict[str, Any]) -> RenderableType:
    """The report as tables."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    service, daemon = report["service"], report["daemon"]
    head = Table.grid(padding=(0, 2))
    head.add_column()
    head.add_column(overflow="fold")
    for name, value in (
        ("state", state_of(service)),
        (
            "version",
            f"{escape(str(daemon.get('version')))}  pid {daemon.get('pid')}  up {duration(daemon.get('uptime_s', 0))}",
        ),
        ("listens", escape(", ".join(daemon.get("addresses", [])))),
        ("requests", f"{service['running']} running, {service['queued']} waiting ({service['queued_tokens']} tokens)"),
        ("loop", f"lag p99 {daemon.get('loop_lag_p99_ms', 0):.1f} ms in the last 10 s"),
        ("machine", machine_of(daemon.get("machine", {}))),
        ("numa", numa_of(daemon.get("numa") or {})),
        ("GPU memory", gpu_memory_of(daemon.get("gpu_memory") or {})),
        ("idle runs", idle_runs_of(service["models"])),
        ("weights", escape(daemon.get("preloading") or "")),
    ):
        if not value:
            continue
        head.add_row(Text(name, style="bold"), value)
    models = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    models.add_column("ENGINE", overflow="fold")  # whole at 80 columns, for what the others leave
    for column in ("STATE", "RUN", "WAIT", "CONTEXT", "KV", "HITS", "RESTARTS"):
        models.add_column(column, no_wrap=True, justify="left" if column == "STATE" else "right")
    details = Table.grid(padding=(0, 1))
    for model in service["models"]:
        details.add_row(
            Text(printable(model["name"]), style="bold"),
            f"{escape(model['role'])}; also {escape(', '.join(model['aliases']))}",
        )
        if sampling := model.get("sampling"):
            details.add_row("", Pairs([(f"default {name}", value) for name, value in pairs_of(sampling)]))
        for engine in model["engines"]:
            models.add_row(*engine_row(model, engine))
            for line in engine_lines(engine):
                details.add_row("", line)
    parts: list[RenderableType] = [head, "", models, "", details]
    agents = agents_of(service.get("agents"))
    if agents.row_count:
        parts += ["", agents]
    return Group(*parts)


def agents_of(told: dict[str, Any] | None) -> Table:
    """The agents with their tools, what they do, and the MCP servers that are not there; empty where there is none of these."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for agent in (told or {}).get("agents", ()):
        waiting = agent["waiting"]
        runs = f"on {escape(agent['model'])}; {agent['running']} running"
        runs += (
            f", [yellow]{waiting} of them waiting for a person[/]: acu runs list --status waiting" if waiting else ""
        )
        table.add_row(Text(f"agent/{printable(agent['name'])}", style="bold"), runs)
        table.add_row("", escape(f"tools: {', '.join(agent['tools']) or 'none'}"))
    for name, why in (told or {}).get("mcp_problems", {}).items():
        table.add_row(Text(f"MCP {printable(name)}", style="bold"), f"[red]not there[/]: {escape(why)}")
    return table


def state_of(service: dict[str, Any]) -> str:
    """In a word or a sentence, how the service is."""
    if service["draining"]:
        return "[yellow]draining[/]"
    return "[green]ready[/]" if service["ready"] else f"[yellow]not ready[/]: {escape(service['reason'] or '')}"


def engine_row(model: dict[str, Any], engine: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table of models."""
    stats = engine["stats"]
    queries, hits = stats["prefix_cache_queries"], stats["prefix_cache_hits"]
    return (
        escape(engine["id"]),
        escape(engine["state"]),
        str(model["running"]),
        str(model["queued"]),
        str(model["max_model_len"] or "-"),
        f"{stats['kv_cache_usage']:.0%}",
        f"{hits / queries:.0%}" if queries else "-",
        str(engine["restarts"]),
    )


def engine_lines(engine: dict[str, Any]) -> list[RenderableType]:
    """How far a start is, what was chosen for this machine, and the last failure."""
    lines: list[RenderableType] = []
    if engine["stage"]:
        measured = engine["fraction"] is not None and engine["state"] == "starting"
        lines.append(escape(engine["stage"]) + (f" {engine['fraction']:.0%}" if measured else ""))
    info = engine["info"]
    if info is not None:
        chosen = {"engine": info["name"], **info["choices"], "running at most": info["max_running"]}
        if info["kv_cache_tokens"]:
            chosen["KV tokens"] = info["kv_cache_tokens"]
        lines.append(Pairs(pairs_of(chosen)))
    if (took := engine.get("start_s")) and engine["state"] == "ready":
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in took.items())
        lines.append(escape(f"was ready after {sum(took.values()):.1f} s: {stages}"))
    if engine["last_error"]:
        lines.append(f"[red]last error[/]: {escape(engine['last_error'])}")
    return lines


def pairs_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values for people, without what is null."""
    return [(name.replace("_", " "), plain(value)) for name, value in values.items() if value is not None]


def plain(value: Any) -> str:
    """A value of a choice, for people."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def machine_of(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    if not machine:
        return "-"
    gpus = ", ".join(f"{gpu['name']} {gpu['memory_mb']} MiB" for gpu in machine["gpus"]) or "no GPU"
    memory = f"{machine['memory_total'] / 2**30:.1f} GiB memory"
    return escape(f"{machine['cpu_model']}, {machine['cores']} cores, {memory}, {gpus}")


def numa_of(numa: dict[str, Any]) -> str:
    """What was bound, how much of each process's memory lies there, and what could not be bound; nothing of an older daemon."""
    if not numa:
        return ""
    shares = [f"{name} {seen['share']:.1%}" for name, seen in numa["processes"].items()]
    lines = [escape(numa["line"] + (f"; there: {', '.join(shares)}" if shares else ""))]
    return "\n".join([*lines, *(f"[yellow]{escape(problem)}[/]" for problem in numa["problems"])])


def gpu_memory_of(card: dict[str, Any]) -> str:
    """How full the card is, where that leads, and what is done about it; nothing without one."""
    if not card:
        return ""
    problem = f"\n[yellow]{escape(card['problem'])}[/]" if card["problem"] else ""
    if card["used_mb"] is None or card["baseline_mb"] is None:
        return f"{card['capacity_mb'] / 1024:.1f} GiB{problem}"
    used, room = f"{card['used_mb'] / 1024:.1f} of {card['capacity_mb'] / 1024:.1f} GiB", f"{max(0, card['share']):.0%}"
    planned = f" (planned: {card['planned_mb'] / 1024:.1f})" if card.get("planned_mb") else ""
    line = f"{used}{planned}, {room} of the room above the {card['baseline_mb'] / 1024:.1f} GiB after warm-up"
    if card["full_in_s"] is not None:
        line += f"; {card['mb_per_hour']:.0f} MiB more an hour: full in {duration(card['full_in_s'])}"
    taken = [f"{name.replace('_', ' ')} {count}" for name, count in card["taken"].items() if count]
    line += f"; taken so far: {', '.join(taken)}" if taken else ""
    return escape(line) + problem


def idle_runs_of(models: list[dict[str, Any]]) -> str:
    """What runs that wait or are over hold of the KV pools, and how many had to let go; nothing where none does."""
    lines = []
    for model in models:
        held = model.get("held")
        if held and (held["runs"] or held["released"]):
            line = f"{model['name']}: {held['runs']} hold {held['tokens']} tokens; with what runs that is {held['share']:.0%} of"
            line += " the KV pool" + (f"; {held['released']} had to let go" if held["released"] else "")
            lines.append(escape(line))
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds for people: 3 h 12 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def escape(text: str) -> str:
    """Text that rich and the terminal take as it is."""
    from rich.markup import escape as rich_escape

    return rich_escape(printable(text))
