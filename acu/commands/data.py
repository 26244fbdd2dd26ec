"""`acu data`: status, verify, backup, restore, archive and erase of what the daemon stores."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acu.commands import dataview, exits
from acu.commands.dataplace import Told, check_stopped, configured, place_of
from acu.commands.options import add_config_option, add_target_options
from acu.commands.output import out
from acu.errors import ConfigError, DataError
from acu.http.wire.data import ArchiveBody, BackupBody, EraseBody, VerifyBody
from acu.models.progress import human
from acu.telemetry.logs import printable
from acu.terminal.lines import ProgressLine

WATCH_EVERY_S = 1.0

DESCRIPTION = """\
What the daemon stores: vectors, texts, files, sessions and logs. Where a daemon runs, these commands ask it (as its user over
the unix socket, or with a key of the scope admin); where none does, they open the folder themselves, except for restore, which
needs it stopped.
"""
STATUS = """\
Uploaded files, rows and bytes by tier, memory against its cap, what waits, and what failed. Exit code 1 when the data plane has
failed. Tiers: hot rows have their vectors in memory, warm ones on the disk, in files or, while they are loose, in the database
alone; cold is what the archive has (unknown until it was looked at), and the database has every row. FOUND is the share of what
searches found, USE how often a row was found lately, on average: 1 for each time, which fades by 1 % an hour. Upkeep is what the
data plane did by itself: rows brought into the index that searches use, to the disk and back, or expired. An archive's manifest
is its list of contents, with a number.
"""
VERIFY = """\
Compare index, graph, shards and full text with the rows, files with their checksums, and the archive's manifest with its
objects. With --repair, what is derived is made anew. A damaged file of the history (old events of logs) cannot be: it is
discarded, and named; restore it first if a backup or the archive has it. Exit code 0 when nothing is wrong, or nothing any more;
1 when something is.
"""
BACKUP = """\
Copy everything, the library's files included, into DIR, which must be new or empty, while the daemon goes on. On the same disk
files are hard-linked, which costs little space and does not help if that disk breaks: name a folder on another one. Full text is
not in a backup; it is made anew. With --url, DIR is a folder of the daemon's machine.
"""
RESTORE = """\
Make the data plane's folder (data_plane.path) from a backup, or from the archive alone (data_plane.cold). The folder must not be
there, or be empty, and no daemon may use it: nothing is restored while one answers whose folder it is, even if that has no data
yet. A restore from the archive that was broken off is run again. Files that were uploaded come back with both.
"""
ARCHIVE = """\
Bring the archive (data_plane.cold) up to date now; the daemon does so by itself every data_plane.archive_every_s seconds.
Exit code 1 when files are damaged (uploaded ones, or of the history): they are named, and everything else is archived.
"""
ERASE = """\
Erase a tenant, one of its collections, or rows of a collection, so that nothing stays in the database, in shards and snapshots,
in the full text or in the archive; then look through all of these once more, and print a receipt. Backups are out of its reach.
Exit code 1 when something is left: run it again. It cannot be undone. Where rows of a vector store go, its files stay in it
with what is left of them and less usage, and are told as failed once nothing is; what was uploaded is erased with its tenant
only, or deleted as a file.
"""


def add_arguments(subparsers: Any) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "data", help="look after what is stored", description=DESCRIPTION, allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, description: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(
            name, help=text, description=description, allow_abbrev=False
        )
        return added

    status = action("status", "files, rows and bytes by tier, memory, what waits", STATUS)
    status.add_argument(
        "--watch",
        action="store_true",
        help="again every second, until ctrl-C; uploaded files are counted every few seconds",
    )
    verify = action("verify", "look for what is wrong, and repair it", VERIFY)
    either = verify.add_mutually_exclusive_group()  # a backup cannot be repaired: another one is made
    either.add_argument(
        "--repair", action="store_true", help="make anew what is wrong; discard what is damaged of the history"
    )
    verify.add_argument("--deep", action="store_true", help="read all state, and every object of the archive, too")
    either.add_argument("--backup", metavar="DIR", type=Path, help="look at this backup instead, every byte of it")
    backup = action("backup", "back everything up while it runs", BACKUP)
    backup.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder, best on another disk")
    restore = action("restore", "bring a lost data plane back", RESTORE)
    source = restore.add_mutually_exclusive_group(required=True)
    source.add_argument("--from-backup", metavar="DIR", type=Path, help="what `acu data backup` made")
    source.add_argument("--from-bucket", action="store_true", help="the archive of data_plane.cold")
    archive = action("archive", "bring the archive up to date", ARCHIVE)
    archive.add_argument("--restart", action="store_true", help="put everything anew, in the place of what is damaged")
    erase = action("erase", "erase a tenant, a collection or rows, everywhere", ERASE)
    erase.add_argument("--tenant", metavar="T", required=True, help="whose data")
    erase.add_argument("--collection", metavar="C", help="only this collection")
    erase.add_argument("--id", metavar="ID", action="append", dest="ids", help="only this row of it; may be repeated")
    erase.add_argument("--yes", action="store_true", help="do not ask")
    for each in (status, verify, backup, archive, erase):
        add_target_options(each)
        each.add_argument("--json", action="store_true", help="what came of it as JSON")
    add_config_option(restore)
    restore.add_argument(
        "--socket", metavar="PATH", type=Path, help="unix socket of the daemon that must not run (its configured one)"
    )
    restore.add_argument("--json", action="store_true", help="what came of it as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises DataError, and what a client of the daemon raises."""
    if args.action == "status":
        return _watch(args) if args.watch else _status(args)
    if args.action == "restore":
        return _restore(args)
    return {"verify": _verify, "backup": _backup, "archive": _archive, "erase": _erase}[args.action](args)


def _status(args: argparse.Namespace) -> int:
    report = place_of(args).status()
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else dataview.drawn(report))
    failed = report.get("state") == "failed" or (report.get("plane") or {}).get("failed")
    return exits.FAILED if failed else exits.OK


def _watch(args: argparse.Namespace) -> int:
    """In place on a terminal, one after the other elsewhere; JSON one object a line."""
    place = place_of(args)
    if args.json or not sys.stdout.isatty():
        while True:
            report = place.status()
            sys.stdout.write(json.dumps(report) + "\n" if args.json else dataview.drawn(report) + "\n")
            sys.stdout.flush()
            time.sleep(WATCH_EVERY_S)
    from rich.console import Console
    from rich.live import Live

    with Live(dataview.understood(place.status()), console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(dataview.understood(place.status()), refresh=True)


def _verify(args: argparse.Namespace) -> int:
    if args.backup is not None:
        return _verify_backup(args)
    with progress() as told:
        found = place_of(args).perform(VerifyBody(deep=args.deep, repair=args.repair), told)
    out(json.dumps(found, indent=2) if args.json else dataview.verified(found, repair=args.repair))
    return exits.FAILED if found["problems"] else exits.OK


def _verify_backup(args: argparse.Namespace) -> int:
    from acu.commands.datarestore import backup_problems

    with progress() as told:
        problems = backup_problems(args.backup, told)
    if args.json:
        out(json.dumps({"problems": problems}, indent=2))
    else:
        out(
            "\n".join(f"wrong: {printable(one)}" for one in problems)
            or f"{printable(str(args.backup))}: nothing is wrong"
        )
    return exits.FAILED if problems else exits.OK


def _backup(args: argparse.Namespace) -> int:
    if args.url is not None and not args.folder.is_absolute():
        raise ConfigError([f"DIR must be absolute with --url, for it is on the daemon's machine: {args.folder}"])
    folder = args.folder.absolute()
    with progress() as told:
        done = place_of(args).perform(BackupBody(folder=str(folder)), told)
    out(
        json.dumps(done, indent=2)
        if args.json
        else f"{printable(done['folder'])}: {done['files']} files, {human(done['size'])}"
    )
    return exits.OK


def _archive(args: argparse.Namespace) -> int:
    with progress() as told:
        done = place_of(args).perform(ArchiveBody(restart=args.restart), told)
    out(json.dumps(done, indent=2) if args.json else dataview.archived(done))
    return exits.FAILED if done.get("damaged") else exits.OK


def _erase(args: argparse.Namespace) -> int:
    if args.ids and args.collection is None:
        raise DataError("--id names a row of a collection: name that with --collection")
    whose = f"everything of the tenant {args.tenant}"
    if args.collection is not None:
        whose = f"the collection {args.collection} of the tenant {args.tenant}"
    what = f"{len(args.ids)} row{'s' * (len(args.ids) > 1)} of {whose}" if args.ids else whose
    if not args.yes and not confirmed(f"Erase {what}, for good, on every tier and in the archive?"):
        raise DataError("nothing was erased")
    work = EraseBody(tenant=args.tenant, collection=args.collection, ids=tuple(args.ids) if args.ids else None)
    with progress() as told:
        receipt = place_of(args).perform(work, told)
    out(json.dumps(receipt, indent=2) if args.json else dataview.receipt(receipt, whose))
    return exits.FAILED if receipt["left"] else exits.OK


def _restore(args: argparse.Namespace) -> int:
    from acu.commands.datarestore import from_backup, from_bucket

    config = configured(args)
    check_stopped(args, config)
    with progress() as told:
        done = from_bucket(config, told) if args.from_bucket else from_backup(args.from_backup, config, told)
    out(json.dumps(done, indent=2) if args.json else dataview.restored(done))
    return exits.OK


def confirmed(question: str) -> bool:
    """Ask on the terminal. Raises DataError where nobody can answer."""
    if not sys.stdin.isatty():
        raise DataError("erasing cannot be undone, and nobody can be asked here: add --yes if it is meant")
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


@contextmanager
def progress() -> Iterator[Told]:
    """Tell on standard error how far something is."""
    with ProgressLine() as line:
        yield lambda stage, done, total: line.show(dataview.stage_line(stage, done, total), stage)
