"""What `acu data` shows to people: tables of the status, and what came of a job, in lines.

rich is imported where a table is drawn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from acu.commands.status import Pairs, duration, escape
from acu.errors import UnknownAnswer
from acu.models.progress import human
from acu.telemetry.logs import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

BAR = 24
WIDE = 10_000
UNKNOWN = "unknown"
UPKEEP = {
    "merged": "rows into the index",
    "demoted": "to the disk",
    "promoted": "back into memory",
    "expired": "expired",
    "rebuilds": "indexes made anew",
    "snapshots": "indexes saved",
    "failures": "failed steps",
}
TIERS_LEGEND = """\
hot: in memory; warm: vectors on the disk; loose: of these, in the database alone
database: all rows; cold: the archive, unknown until it was looked at
FOUND: share of what searches found; USE: how often a row was found lately"""
COLLECTIONS_LEGEND = """\
NUMBERS: in each vector; FILES: with warm vectors
LOOSE: warm rows that are in no file, but in the database alone
TEXT: size of the full text, or how many changes it is late"""
MANY = 100  # from so many on, a job's `total` is bytes


def drawn(report: dict[str, Any]) -> str:
    """The status as text for standard output, in colour on a terminal. Raises UnknownAnswer."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(understood(report), crop=False)
    return capture.get()


def understood(report: dict[str, Any]) -> RenderableType:
    """The status as tables. Raises UnknownAnswer."""
    try:
        return render(report)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnknownAnswer("/acu/v1/data/status") from error


def render(report: dict[str, Any]) -> RenderableType:
    """The status as tables."""
    from rich.console import Group

    plane = report.get("plane")
    head = _grid()
    head.add_row("state", _state(report["state"], report.get("why"), plane))
    head.add_row("folder", escape(report["folder"]))
    if plane is None:
        return head
    used, cap = plane["memory_bytes"], plane["memory_cap_bytes"]
    head.add_row("uploads", _uploads(report, ""))
    if (damaged := _damaged(report)) is not None:
        head.add_row("damaged", damaged)
    head.add_row("memory", f"{human(used)} of {human(cap)} ({used / cap:.0%})")
    head.add_row("searches", _searches(plane["searches"]))
    head.add_row("writes", f"{plane['writes']}, {plane['syncs']} times made durable; {plane['ring_rows']} rows wait")
    head.add_row("upkeep", Pairs([(UPKEEP.get(name, name), str(count)) for name, count in plane["keeper"].items()]))
    state, disk = plane["state"], plane["state"]["disk_bytes"]
    size = human(disk.get("state", 0) + disk.get("events", 0))
    head.add_row("records", f"{state['records']} of state, {state['events']} events, {size} in tables")
    for line in _history_lines(plane["history"]):
        head.add_row("history", line)
    for line in _archive_lines(plane["cold"], _uploads(report, "waiting_")):
        head.add_row("archive", line)
    if plane["last_error"]:
        head.add_row("[red]trouble[/]", escape(plane["last_error"]))
    return Group(head, "", _tiers(plane), TIERS_LEGEND, "", _collections(plane["collections"]))


def _grid() -> Table:
    from rich.table import Table

    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold")
    head.add_column(overflow="fold")
    return head


def _state(state: str, why: str | None, plane: dict[str, Any] | None) -> str:
    if plane is not None and plane["failed"]:
        return f"[red]takes no writes[/]: {escape(plane['failed'])}"
    reason = f": {escape(why)}" if why else ""
    return f"[{'green' if state == 'open' else 'yellow'}]{escape(state)}[/]{reason}"


def _searches(counts: dict[str, Any]) -> str:
    mean = f", {1000 * counts['seconds'] / counts['searches']:.1f} ms each" if counts["searches"] else ""
    return (
        f"{counts['searches']}{mean}; {counts['with_warm']} read the disk, {counts['slow']} were slow, "
        f"{counts['incomplete']} incomplete"
    )


def _history_lines(history: dict[str, Any]) -> list[str]:
    held = f"{history['rows']} old events, {human(history['bytes'])} in {_files(history['shards'])}"
    lines = [f"{held}; {history['moved']} moved there since the start, {history['forgotten']} removed"]
    return lines + [f"[red]{escape(problem)}[/]" for problem in history["problems"]]


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"


def _uploads(report: dict[str, Any], which: str) -> str:
    """Uploaded files with their bytes: all (""), or those that wait for the archive ("waiting_")."""
    if "uploads" not in report:
        return "files are not counted by this daemon, which is of an earlier release"
    uploads = report["uploads"]
    if uploads is None:
        return "[red]files cannot be counted: `acu data verify` says why[/]"
    return f"{_files(uploads[f'{which}files'])} ({human(uploads[f'{which}bytes'])})"


def _damaged(report: dict[str, Any]) -> str | None:
    """Uploaded files that are missing or of another size, or that a job found to be damaged."""
    count = (report.get("uploads") or {}).get("damaged_files", 0)
    return f"[red]{_files(count)}[/], see `acu data verify --deep`" if count else None


def _archive_lines(cold: dict[str, Any], uploads: str) -> list[str]:
    every = "only when asked" if cold["every_s"] is None else f"every {duration(cold['every_s'])}"
    lines = [f"{escape(cold['where'])}; {every}"]
    rows = f"{cold['backlog_rows']} changes of rows ({human(cold['backlog_bytes'])})"
    behind = f"waiting: {rows}, {uploads}"
    last = "" if cold["archived_ms"] is None else f"; last run {ago(cold['archived_ms'])} ago"
    lines.append(f"manifest {cold['manifest']}, {behind}{last}{'; running' if cold['running'] else ''}")
    if damaged := cold.get("damaged_files", 0):  # an earlier release does not say
        lines.append(
            f"[red]{_files(damaged)} damaged when it last ran[/], and not archived: see `acu data verify --deep`"
        )
    if cold["last_error"]:
        lines.append(f"[red]{escape(cold['last_error'])}[/] ({cold['failures']} failures)")
    return lines


def _tiers(plane: dict[str, Any]) -> Table:
    collections, searches, cold = plane["collections"], plane["searches"], plane["cold"]
    hits = searches["hits_hot"] + searches["hits_warm"]

    def total(*names: str) -> int:
        return sum(one[name] for one in collections for name in names)

    def heat(name: str, *counted: str) -> str:
        rows = total(*counted)
        weighed = sum(one[name] * sum(one[count] for count in counted) for one in collections)
        return f"{weighed / rows:.2f}" if rows else "-"

    def share(name: str) -> str:
        return f"{searches[name] / hits:.1%}" if hits else "-"

    table = _table("TIER", "ROWS", "BYTES", "FILES", "FOUND", "USE")
    table.add_row(
        "hot",
        str(total("fresh", "hot")),
        human(plane["memory_bytes"]),
        "-",
        share("hits_hot"),
        heat("heat_hot", "fresh", "hot"),
    )
    warm = share("hits_warm"), heat("heat_warm", "loose", "warm")
    table.add_row("warm", str(total("loose", "warm")), "-", "-", *warm)
    table.add_row("  in files", str(total("warm")), human(total("shard_bytes")), str(total("shards")), "-", "-")
    table.add_row("  loose", str(total("loose")), "-", "-", "-", "-")
    known = cold["rows"] is not None
    table.add_row(
        "cold",
        str(cold["rows"]) if known else UNKNOWN,
        human(cold["bytes"]) if known else UNKNOWN,
        str(cold["objects"]) if known else UNKNOWN,
        "-",
        "-",
    )
    rows_on_disk = sum(plane["state"]["disk_bytes"].values())
    table.add_row("database", str(total("rows")), human(rows_on_disk), "-", "-", "-")
    return table


def _collections(collections: list[dict[str, Any]]) -> RenderableType:
    from rich.console import Group

    table = _table("COLLECTION", "NUMBERS", "ROWS", "HOT", "WARM", "LOOSE", "MEMORY", "FILES", "TEXT")
    problems: list[str] = []
    for one in collections:
        name = f"{one['tenant']}/{one['name']}"
        table.add_row(
            escape(name),
            str(one["dimensions"]),
            str(one["rows"]),
            str(one["fresh"] + one["hot"]),
            str(one["loose"] + one["warm"]),
            str(one["loose"]),
            human(one["memory_bytes"]),
            str(one["shards"]),
            f"{one['text_behind']} late" if one["text_behind"] else human(one["text_bytes"]),
        )
        problems += [f"[yellow]{escape(name)}[/]: {escape(problem)}" for problem in one["problems"]]
    return Group(_uncut(table), *problems, *([COLLECTIONS_LEGEND] if collections else []))


def _uncut(table: Table) -> Table:
    """As wide as what is in it, whatever the terminal is: a name that was broken cannot be copied."""
    from rich.console import Console
    from rich.measure import Measurement

    wide = Console(width=WIDE)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return table


def _table(first: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def verified(found: dict[str, Any], *, repair: bool = False) -> str:
    """What verify found, a line each. `repair`: it has repaired what it could."""
    archive = f", and the archive's manifest {found['archive_manifest']}" if found["archive_manifest"] else ""
    looked = f"{found['collections']} collections with {found['rows']} rows{archive}"
    lines = [f"wrong: {_finding(one)}" for one in found["problems"]]
    lines += [f"repaired: {_finding(one)}" for one in found["repaired"]]
    lines += [f"made anew when it was opened, or since: {_finding(one)}" for one in found["healed"]]
    if not found["problems"]:
        lines.append(f"{looked}: nothing is wrong" + (" any more" if found["repaired"] else ""))
    else:
        count = len(found["problems"])
        more = "this is what could not be repaired" if repair else "--repair makes anew what can be"
        lines.append(f"{looked}: {count} problem{'s' * (count != 1)}; {more}")
    return "\n".join(lines)


def _finding(one: dict[str, Any]) -> str:
    where = "/".join(filter(None, (one["tenant"], one["collection"])))
    return printable(f"{where + ': ' if where else ''}{one['where']}: {one['what']}")


def archived(done: dict[str, Any]) -> str:
    """What archiving did."""
    wrong = done.get("damaged", ())
    damaged = "".join(f"\nwrong, and not archived: {printable(one)}" for one in wrong)
    if wrong:
        damaged += f"\n{len(wrong)} file{'s are' if len(wrong) > 1 else ' is'} damaged; all else is archived. "
        damaged += "Repair or delete what is named, then run `acu data archive` again."
    if not done["objects"]:
        return f"{printable(done['where'])}: manifest {done['manifest']} has everything already{damaged}"
    return (
        f"{printable(done['where'])}: manifest {done['manifest']}, {done['rows']} rows, {done['files']} files and "
        f"{human(done['bytes'])} in {done['objects']} objects put, {done['removed']} old ones removed{damaged}"
    )


def receipt(found: dict[str, Any], whose: str) -> str:
    """The receipt of an erasure: of `whose`, or of rows of it."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["time_ms"] / 1000))
    what, rows, ids = whose, found["rows"], found["ids"]
    if ids:
        absent = "" if rows >= ids else f"; {ids - rows} of the {ids} ids were not there"
        what = f"{rows} row{'s' * (rows != 1)} of {whose}{absent}"
    lines = [f"erased: {printable(what)}", f"at: {when}", f"rows that were there: {found['rows']}"]
    if not found["ids"]:
        lines += [f"collections: {found['collections']}", f"uploaded files: {found['files']}"]
    archive = found["archive"]
    if archive is not None:
        lines.append(
            f"archive: {printable(archive['bucket'])}, manifest {archive['manifest']}: {archive['rewritten']} segments "
            f"rewritten, {len(archive['removed'])} objects removed"
        )
    elif any(one.startswith("archive: ") for one in found["left"]):
        lines.append("archive: not rewritten")
    else:
        lines.append("archive: there is none")
    looked = ", ".join(f"{tier} {count}" for tier, count in found["searched"].items())
    lines.append(f"looked through afterwards: {looked or 'nothing was there'}")
    lines += [f"LEFT: {printable(one)}" for one in found["left"]] or ["left: nothing"]
    return "\n".join([*lines, *(f"note: {printable(one)}" for one in found["beyond"])])


def restored(done: dict[str, Any]) -> str:
    """What a restore brought back."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(done["created_ms"] / 1000))
    lines = [f"passed over: {printable(one)}" for one in done.get("passed_over", ())]
    if "rows" in done:
        lines.append(
            f"{printable(done['folder'])}: {done['rows']} rows, {done['entries']} records and {done['files']} files from "
            f"manifest {done['manifest']} in {printable(done['source'])}"
        )
    else:
        lines.append(
            f"{printable(done['folder'])}: {done['files']} files, {human(done['bytes'])} from {printable(done['source'])}"
        )
    lines.append(f"It is as it was on {when}: what came later is not in it. `acu data verify` looks it through.")
    return "\n".join(lines)


def stage_line(stage: str, done: int, total: int) -> str:
    """How far a job is, in a line."""
    if not total:
        return f"{stage} {human(done)}" if done >= MANY else stage
    filled = min(BAR * done // total, BAR)
    amount = f"{human(done)} of {human(total)}" if total >= MANY else f"{done} of {total}"
    return f"{stage} [{'#' * filled}{'.' * (BAR - filled)}] {amount}"


def ago(ms: int) -> str:
    """How long it is since a time (milliseconds since 1970)."""
    return duration(max(time.time() - ms / 1000, 0))
