"""What `acu doctor` shows: the findings as a table for people, and its checks as a page. rich is imported where it is drawn."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Finding, Judgement, Level
from acu.doctor.menus import SETTINGS
from acu.telemetry.logs import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

STYLES: Final[dict[Level, str]] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
WELL: Final = "green"
INDENT: Final = " " * 9  # a level, and two blanks
MOST_COLUMNS: Final = 140  # lines longer than that are hard to read

PAGE_HEAD = """\
# The doctor's checks

`acu doctor` looks at all of this in less than two seconds, changes nothing, and says of each thing that is not well what was
seen, why it matters, and which command, field or BIOS entry changes it. Its ids stay as they are: scripts may count on them
(`acu doctor --json`). Exit code 0 when there are notes at most, 1 for warnings, 2 for errors.

    acu doctor                                 this box, against its configuration
    acu doctor -v                              also what is well, and what could not be looked at
    acu doctor -c /etc/acu/0.yaml --json       for a script
    acu doctor --socket /srv/acu.sock          where the daemon's socket is not its configuration's
    acu doctor --ignore machine.clock          without a check whose finding is known
    ssh box acu doctor --save - >box.json      a report of another box ...
    acu doctor --report box.json               ... judged here

Each finding has what was seen, why it matters, what to do, commands for a root shell (`$`; some change something, some only show
more), and, where the firmware bears on it, the entry in the menus of the box's own vendor ([all vendors](../bios-checklist.md)).
With `--json` they are `findings` of `check`, `level`, `seen`, `why`, `do`, `run` and `bios`; beside them are `well` (`check`,
`text`), `skipped` (checks for which this box has nothing to look at), `unread`, `counts` and `severity`, the exit code.

What may never answer (a disk, a network mount, the driver) is looked at by processes of their own that are ended when time is up:
a server that is gone is then a finding, and does not hang the doctor. ACUs of `scripts/acu-up` and of the units are found on
their own sockets beside the configured addresses; one that systemd would start only when it is asked is left asleep.

A report is the JSON form of all that was looked at, with no judgement, and with what the configuration of its box asks for. It
holds no keys and nothing of what users stored; it names folders, processes that hold ports, and the box's vendor and model.

This page is the output of `acu doctor --reference checks`.
"""
TOPICS: Final = {
    "gpu": "GPU",
    "health": "The card's health",
    "numa": "NUMA",
    "kernel": "Kernel",
    "disk": "Disks",
    "models": "Models",
    "machine": "The machine",
    "network": "Network",
    "versions": "Versions",
}


def drawn(examination: Examination, judgement: Judgement, *, verbose: bool) -> str:
    """The judgement as text for standard output, in colour on a terminal."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    console.width = min(console.width, MOST_COLUMNS)
    with console.capture() as capture:
        show(console, examination, judgement, verbose=verbose)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())  # rich fills lines up with blanks


def show(console: Console, examination: Examination, judgement: Judgement, *, verbose: bool) -> None:
    """Print the judgement to a console."""
    from rich.text import Text

    console.print(_dim(box_of(examination)))
    console.print()
    for finding in judgement.findings:
        show_finding(console, finding)
    if verbose:
        console.print(_well(judgement))
        console.print()
        for line in examination.unread:
            console.print(_dim(f"not read: {line}"))
        if judgement.skipped:
            console.print(_dim(f"nothing to look at here: {', '.join(judgement.skipped)}"))
    console.print(Text.from_markup(summary(examination, judgement, verbose=verbose)))


def show_finding(console: Console, finding: Finding) -> None:
    """Its level and id, and below what was seen, why, and what to do. A command is one line, however wide, to be copied."""
    from rich.text import Text

    grid = _grid()
    grid.add_row(Text(finding.level, style=STYLES[finding.level]), Text(printable(finding.check), style="bold"))
    grid.add_row("", Text(capital(printable(finding.seen)) + "."))
    grid.add_row(Text("   why", style="dim"), Text(printable(finding.why), style="dim"))
    grid.add_row(Text("    do", style=WELL), Text(printable(finding.do)))
    console.print(grid)
    for command in finding.run:
        line = Text.assemble(INDENT, ("$ ", WELL), (printable(command), "bold"))
        console.print(line, soft_wrap=True)
    if finding.bios:
        grid = _grid()
        for entry in finding.bios:
            grid.add_row(Text("  BIOS", style=WELL), Text(printable(entry)))
        console.print(grid)
    console.print()


def _dim(text: str) -> RenderableType:
    from rich.text import Text

    return Text(printable(text), style="dim")


def box_of(examination: Examination) -> str:
    """The box in a line or two."""
    firmware, machine, versions = examination.firmware, examination.machine, examination.versions
    parts = [
        " ".join(word for word in (firmware.vendor, firmware.product) if word) or "a box",
        machine.cpu_model,
        f"{machine.cpus} CPUs",
        f"{len(examination.nodes)} NUMA node{'s' * (len(examination.nodes) != 1)}" if examination.nodes else "",
        f"{machine.memory_total / 2**30:.0f} GiB",
        ", ".join(f"{gpu.name} {gpu.memory_mb} MiB" for gpu in machine.gpus) or "no GPU",
        f"driver {examination.driver.version}" if examination.driver.version else "",
        f"Linux {examination.kernel.release}" if examination.kernel.release else "",
        f"ACU {versions.acu}",
        examination.at,
    ]
    return ", ".join(part for part in parts if part)


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=len(INDENT) - 2)
    grid.add_column(overflow="fold")
    return grid


def capital(text: str) -> str:
    """A sentence's beginning, unless it begins with a name that is written small."""
    first = text.partition(" ")[0]
    return text if not first.isalpha() else text[0].upper() + text[1:]


def _well(judgement: Judgement) -> RenderableType:
    from rich.text import Text

    grid = _grid()
    for well in judgement.well:
        text = Text(printable(well.check), style="dim")
        grid.add_row(Text("well", style=WELL), text.append("  ").append(printable(well.text), style="not dim"))
    return grid


def summary(examination: Examination, judgement: Judgement, *, verbose: bool) -> str:
    """How many of each, as markup."""
    counts = []
    for level, style in STYLES.items():
        number = sum(1 for finding in judgement.findings if finding.level == level)
        if number:
            counts.append(f"[{style}]{number} {level}{'s' * (number != 1)}[/]")
    counts.append(f"[{WELL}]{len(judgement.well)} checks well[/]")
    more = [] if verbose else [f"{len(examination.unread)} not read"] * bool(examination.unread)
    hint = "" if verbose else "  [dim](-v: all)[/]"
    return ", ".join([*counts, *more]) + hint


def reference(checks: tuple[Check, ...]) -> str:
    """docs/doctor.md."""
    with_bios = {check for setting in SETTINGS for check in setting.checks}
    lines = [PAGE_HEAD.rstrip("\n")]
    for topic, group in groupby(checks, key=lambda check: check.topic):
        lines += [
            "",
            f"## {TOPICS[topic]}",
            "",
            "| check | at worst | looks at | why it matters |",
            "|---|---|---|---|",
        ]
        for check in group:
            link = " [BIOS](../bios-checklist.md)" if check.id in with_bios else ""
            lines.append(f"| `{check.id}` | {check.worst} | {check.looks_at} | {check.why}{link} |")
    return "\n".join(lines) + "\n"
