"""Many runs at once: which ones are meant, a person's yes, and what came of each.

All ids are read before anything is done, page by page: what is done changes which runs are so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from acu.client import Client
from acu.commands import exits
from acu.commands.output import out
from acu.errors import AcuError, ApiError, UnknownAnswer
from acu.logs import printable

PATH = "/acu/v1/runs"
PAGE = 100
GONE = (400, 404, 409)
"""HTTP statuses of a run, or a call, that is no longer as it was when it was picked: the others go on."""


def add_options(parser: argparse.ArgumentParser, statuses: Sequence[str]) -> None:
    """By what runs are picked instead of by their ids."""
    parser.add_argument("--status", choices=statuses, help="all runs that are so, instead of an ID; asks before")
    parser.add_argument("--agent", metavar="NAME", help="with --status: only runs of this agent")
    parser.add_argument("--yes", action="store_true", help="with --status: do not ask before")
    parser.set_defaults(misused=parser.error)


def by_status(args: argparse.Namespace) -> bool:
    """Whether runs are picked by their status. Ends the command, with its usage, where that is not clear."""
    named = bool(args.id)
    if named == (args.status is not None):
        args.misused("name runs by ID or by --status" + (", not both" if named else ""))
    if named and (args.agent is not None or args.yes):
        args.misused("--agent and --yes go with --status")
    return not named


def picked(client: Client, status: str, agent: str | None) -> list[str]:
    """The ids of all runs that are so, the newest first. Raises UnknownAnswer, and what Client.get does."""
    ids: list[str] = []
    wanted = {"limit": PAGE, "status": status} | ({} if agent is None else {"agent": agent})
    while True:
        page = client.get(f"{PATH}?{urlencode(wanted)}")
        try:
            ids += [str(run["id"]) for run in page["data"]]
            if not page["has_more"]:
                return ids
            wanted["after"] = page["last_id"]
        except (LookupError, TypeError) as error:
            raise UnknownAnswer(PATH) from error


def agreed(what: str, args: argparse.Namespace, count: int) -> bool:
    """Whether a person wants it. Raises AcuError where nobody can be asked."""
    if args.yes:
        return True
    runs = f"{count} {args.status} run{'s' if count != 1 else ''}"
    if not sys.stdin.isatty():
        raise AcuError(f"nobody is there to be asked about {runs}: add --yes")
    sys.stderr.write(f"{what} {runs}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def each(ids: Sequence[str], act: Callable[[str], tuple[Any, str]], *, as_json: bool) -> int:
    """`act` on every run: what came of it as JSON, and a line. Returns the exit code, 1 if any has failed.

    Raises what `act` does, but for an ApiError of a run that is not as it was any more.
    """
    done: list[Any] = []
    failed: list[dict[str, str]] = []
    for run_id in ids:
        try:
            told, line = act(run_id)
        except ApiError as error:
            if error.status not in GONE:
                raise
            failed.append({"id": run_id, "error": str(error)})
            sys.stderr.write(f"acu: {printable(str(error))}\n")
        else:
            done.append(told)
            if not as_json:
                out(line)
    if as_json:
        out(json.dumps({"data": done, "failed": failed}, indent=2))
    else:
        out(f"{len(done)} of {len(ids)} runs" if ids else "no runs")
    return exits.FAILED if failed else exits.OK
