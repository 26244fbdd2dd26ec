"""Many runs at once: which ones are meant, a person's yes, and what came of each.

All that is meant is read before anybody is asked, page by page, since what is done changes which runs are so. What was picked by
its status is looked at again right before it is acted on: a person may think for any time, and others act meanwhile. What was
done is told however it ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from acu.commands import exits
from acu.commands.output import out
from acu.errors import AcuError, ApiError, DaemonUnreachable, UnknownAnswer
from acu.telemetry.logs import printable
from acu.terminal.chat import RUNS_PATH
from acu.terminal.client import Client

PAGE = 100
ENDING = (401, 403, 503)
"""HTTP statuses that every other request would get, too. Any other refusal is that of one run, or call: the others go on."""


class Meant(NamedTuple):
    """What is acted on: a run, or a call of it, as its account has it."""

    run: str
    call: dict[str, Any] | None = None

    def named(self) -> dict[str, str]:
        """The ids, for JSON."""
        return {"id": self.run} | ({} if self.call is None else {"call": str(self.call.get("id"))})


def add_options(parser: argparse.ArgumentParser, statuses: Sequence[str]) -> None:
    """By what runs are picked instead of by their ids."""
    parser.add_argument("--status", choices=statuses, help="all runs that are so, instead of an ID; asks before")
    parser.add_argument("--agent", metavar="NAME", help="with --status: only runs of this agent")
    parser.add_argument("--yes", action="store_true", help="with --status: do not ask before")
    parser.set_defaults(misused=parser.error)


def by_status(args: argparse.Namespace) -> bool:
    """Whether runs are picked by their status. Ends the command, with its usage, where that is not clear."""
    named = args.id not in (None, [])
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
        page = client.get(f"{RUNS_PATH}?{urlencode(wanted)}")
        try:
            ids += [str(run["id"]) for run in page["data"]]
            if not page["has_more"]:
                return ids
            wanted["after"] = page["last_id"]
        except (LookupError, TypeError) as error:
            raise UnknownAnswer(RUNS_PATH) from error


def calls_that_wait(client: Client, runs: Sequence[str]) -> tuple[list[Meant], list[dict[str, str]]]:
    """The calls of these runs that wait for a person, and the runs that could not be read, which are told.

    Raises what Client.get does, but for a refusal of one run.
    """
    meant: list[Meant] = []
    failed: list[dict[str, str]] = []
    for run in runs:
        try:
            account = client.get(path_of(run))
        except ApiError as error:
            if _ends(error):
                raise
            failed.append(_failure(Meant(run), error))
        else:
            meant += [Meant(run, call) for call in asked(account)]
    return meant, failed


def asked(account: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a run that wait for a person."""
    return [call for call in calls(account) if call.get("approval") == "asked"]


def calls(account: dict[str, Any]) -> list[dict[str, Any]]:
    """All calls of a run."""
    return [call for step in account.get("steps", ()) for call in step.get("calls", ())]


def look_again(client: Client, meant: Meant, status: str) -> None:
    """Raises AcuError for a run that is not any more as it was picked, or whose call does not wait any more."""
    account = client.get(path_of(meant.run))
    now = account.get("status")
    if meant.call is not None and meant.call.get("id") not in [call.get("id") for call in asked(account)]:
        raise AcuError(f"The call {meant.call.get('id')} of the run {meant.run} does not wait any more.")
    if now != status:
        raise AcuError(f"The run {meant.run} is {now} now.")


def path_of(run: str) -> str:
    """Where a run is."""
    return f"{RUNS_PATH}/{quote(run, safe='')}"


def agreed(verb: str, things: str, args: argparse.Namespace, shown: Sequence[str] = ()) -> bool:
    """Whether a person wants it, who sees the lines `shown` before. Raises AcuError where nobody can be asked."""
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise AcuError(f"nobody is there to be asked about {things}: add --yes")
    sys.stderr.write("".join(f"{line}\n" for line in shown) + f"{verb} {things}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def each(
    noun: str,
    every: Sequence[Meant],
    act: Callable[[Meant], tuple[Any, str]],
    *,
    as_json: bool,
    failed: Sequence[dict[str, str]] = (),
) -> int:
    """`act` on each: what came of it as JSON, and a line. Returns the exit code, 1 if any has failed, or had before.

    At the end it says how many of them were done, also where it raises what would befall the others, too: DaemonUnreachable,
    and an ApiError with one of the statuses ENDING.
    """
    done: list[Any] = []
    failures, left = list(failed), list(every)
    try:
        while left:
            meant = left.pop(0)
            try:
                told, line = act(meant)
            except AcuError as error:
                if _ends(error):
                    failures.append(meant.named() | {"error": str(error)})
                    raise
                failures.append(_failure(meant, error))
            except KeyboardInterrupt:
                failures.append(meant.named() | {"error": "interrupted: it may be done"})
                raise
            else:
                done.append(told)
                if not as_json:
                    out(line)
    finally:
        if as_json:
            not_tried = [meant.named() for meant in left]
            out(json.dumps({"data": done, "failed": failures, "not_tried": not_tried}, indent=2))
        elif every:
            out(f"{len(done)} of {len(every)} {noun}s" + (f", {len(left)} not tried" if left else ""))
        else:
            out(f"no {noun}s")
    return exits.FAILED if failures else exits.OK


def _ends(error: AcuError) -> bool:
    return isinstance(error, DaemonUnreachable) or (isinstance(error, ApiError) and error.status in ENDING)


def _failure(meant: Meant, error: AcuError) -> dict[str, str]:
    """A failure that ends nothing: it is told at once."""
    sys.stderr.write(f"acu: {printable(str(error))}\n")
    return meant.named() | {"error": str(error)}
