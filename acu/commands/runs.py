"""`acu runs`: what agents do and did, and a hand on those runs that go on."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from acu.commands import exits, runmany, runview
from acu.commands.options import add_target_options, target_of
from acu.commands.output import out
from acu.errors import AcuError, UnknownAnswer
from acu.telemetry.logs import printable
from acu.terminal.chat import AGENT, RUNS_PATH
from acu.terminal.client import Client

TIMEOUT_S = 60.0  # of silence; a stream that is alive says something every 15 s
PAGE = 1000
MOST_LISTED = 100
WIDE = 10_000  # columns of what is no terminal
LAST = "last"
STATUSES = ("running", "waiting", "paused", "completed", "incomplete", "failed", "cancelled", "open")
GOING, OVER = ("running", "waiting", "paused"), ("completed", "incomplete", "failed", "cancelled")
_WHOLE_ID = re.compile(r"run_[0-9a-f]{24}")
_BEGINNING = re.compile(r"run_[0-9a-f]{0,23}")

DESCRIPTION = """\
Runs of agents: those that are stored, and those that go on. ID is a run's id, a beginning that no other run has, or `last`,
which is the newest.
"""
LIST = """\
The runs, the newest first. STATUS is running; waiting, for a person who allows a call (`acu runs approve`) or does not; paused;
how it ended: completed, incomplete (at a limit), failed, cancelled; or open: it is stored without an end, and is taken up when
the daemon has started.
"""
SHOW = """\
A run as a timeline: a line a step and a line a call, and bars over one axis of time. QUEUE is the wait for an engine, TTFT the
time to the first token with the queue in it, IN the prompt's tokens, CACHED those of them that the engine had already, OUT the
generated ones. Of a run that goes on it shows what is so far. [router: ROUTE TOOL N] is what the router decided for the step
without the model's word: the route (such as extract: the arguments are found in the message), and the tool with its score, 1 at
most.
"""
EVENTS = """\
The log of a run, an event a line: number, time, type and what it tells. Pieces that were said on end are one line. With
--follow, also what comes, until the run's end; go on later with --after and the last number. --json has everything, an object a
line.
"""
STEERING = {
    "cancel": "end a run that goes on",
    "pause": "stop a run before the model says more",
    "resume": "let a run that is paused go on",
    "step": "let a run go on for one step",
}

MANY = """\
{text}: each that is named (none, where one of them is not there), or with --status all that are so, after a question (--yes:
without); not one that is so no longer when its turn comes. Says what came of each run, and of how many; exit code 1 if it could
not be done for all. --json: `data`, `failed`, and `not_tried`, which has those behind where it broke off.
"""
ANSWER = """\
{text}. With --status waiting: all calls that wait, of all runs (--agent NAME: of the agent's), after a question that shows them
(--yes: without); no call that begins to wait after that. --json: `data`, `failed` and `not_tried`.
"""
ANSWERS = {
    "approve": "allow a call that waits for a person",
    "deny": "do not allow a call that waits for a person",
}


class NoSuchRun(AcuError):
    """No run is meant, or more than one."""


def add_arguments(subparsers: Any) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "runs", help="see and steer agents' runs", description=DESCRIPTION, allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(
        name: str, text: str, description: str | None = None, *, ids: str | None = None
    ) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(
            name, help=text, description=description or f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        add_target_options(added)
        if ids != "none":
            several = {"*": "ids of runs, beginnings of them", None: "id of the run, a beginning of it"}
            added.add_argument("id", metavar="ID", nargs=ids, help=f"{several.get(ids, several[None])}, or `last`")
        added.add_argument("--json", action="store_true", help="what came of it as JSON")
        return added

    listing = action("list", "the runs, the newest first", LIST, ids="none")
    listing.add_argument("--agent", metavar="NAME", help="only runs of this agent")
    listing.add_argument("--status", choices=STATUSES, help="only runs that are so")
    listing.add_argument(
        "--limit", metavar="N", type=limit, default=20, help=f"at most so many (default 20, {MOST_LISTED} at most)"
    )
    action("show", "what happened in a run, on a timeline", SHOW)
    events = action("events", "a run's log", EVENTS)
    events.add_argument("--follow", action="store_true", help="also what comes, until the run's end or ctrl-C")
    events.add_argument("--after", metavar="N", type=number, default=0, help="only events with numbers above N")
    for name, text in STEERING.items():
        if name == "step":
            action(name, text)
        else:
            steer = action(name, text, MANY.format(text=f"{text[0].upper()}{text[1:]}"), ids="*")
            runmany.add_options(steer, GOING)
    say = action("say", "give a run a message, which its model reads with the next step")
    say.add_argument("text", metavar="TEXT", help="the message")
    for name, text in ANSWERS.items():
        answer = action(name, text, ANSWER.format(text=f"{text[0].upper()}{text[1:]}"), ids="?")
        answer.add_argument("call", metavar="CALL", nargs="?", help="id of the call; needed where several wait")
        runmany.add_options(answer, ("waiting",))
        if name == "deny":
            answer.add_argument("--why", metavar="TEXT", default="", help="what the model is told")
    text = "remove a stored run that does not go on"
    runmany.add_options(action("rm", text, MANY.format(text=f"{text[0].upper()}{text[1:]}"), ids="*"), OVER)


def limit(text: str) -> int:
    """How many runs a list has, as argparse asks for it."""
    if not 1 <= number(text) <= MOST_LISTED:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_LISTED}")
    return int(text)


def number(text: str) -> int:
    """A number of an event, as argparse asks for it."""
    if not text.isascii() or not text.isdigit() or len(text) > len("1000000000000000000"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises DaemonUnreachable, ApiError, and AcuError for an id that no run has."""
    client = Client(target_of(args), TIMEOUT_S)
    if args.action == "list":
        return _list(client, args)
    if hasattr(args, "misused") and (runmany.by_status(args) or args.action not in ANSWERS):
        return _many(client, args)
    path = runmany.path_of(found(client, args.id))
    if args.action == "show":
        told = client.get(path)
        out(json.dumps(told, indent=2) if args.json else runview.drawn(told).rstrip("\n"))
    elif args.action == "events":
        _events(client, path, args)
    elif args.action in ANSWERS:
        _answered(client, path, args)
    elif args.action == "say":
        _told(client.post(f"{path}/messages", {"content": args.text}), "", args)
    else:
        _told(client.post(f"{path}/{args.action}", {}), "", args)
    return exits.OK


def _many(client: Client, args: argparse.Namespace) -> int:
    """The action for every run that is meant; for one that is named alone as if there were no others."""

    def act(meant: runmany.Meant) -> tuple[Any, str]:
        if args.action == "rm":  # a run that is over stays as it is, and one that cannot be read can be removed
            return client.delete(runmany.path_of(meant.run)), f"{printable(meant.run)}: removed"
        if args.status is not None:
            runmany.look_again(client, meant, args.status)
        if meant.call is not None:
            summary, line = _answer(client, runmany.path_of(meant.run), meant.call, args)
            return summary | {"call": meant.call.get("id")}, _line(summary) + line
        told = client.post(f"{runmany.path_of(meant.run)}/{args.action}", {})
        return told, _line(told)

    if args.id:
        ids = _all_found(client, args.id)
        if len(args.id) == 1:
            told, line = act(runmany.Meant(ids[0]))
            out(json.dumps(told, indent=2) if args.json else line)
            return exits.OK
        return runmany.each("run", [runmany.Meant(each) for each in ids], act, as_json=args.json)
    ids = runmany.picked(client, args.status, args.agent)
    if not ids and args.agent is not None and (unknown := _unknown_agent(client, args.agent)):
        raise AcuError(unknown)
    noun, meant, failed = "run", [runmany.Meant(each) for each in ids], list[dict[str, str]]()
    if args.action in ANSWERS:
        noun, (meant, failed) = "call", runmany.calls_that_wait(client, ids)
    shown = [f"{printable(each.run)}: {_call_line(each.call)}" for each in meant if each.call is not None]
    things = f"{len(meant)} {args.status} {noun}{'s' * (len(meant) != 1)}"
    if meant and not runmany.agreed("remove" if args.action == "rm" else args.action, things, args, shown):
        return exits.FAILED
    return runmany.each(noun, meant, act, as_json=args.json, failed=failed)


def _answer(client: Client, path: str, call: dict[str, Any], args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """A person's word for a call: the run as it is then, and what to say of the call behind it."""
    body = {"approve": args.action == "approve", "why": getattr(args, "why", "")}
    summary = client.post(f"{path}/calls/{quote(str(call.get('id')), safe='')}/approval", body)
    return summary, f", {'allowed' if args.action == 'approve' else 'denied'}: {_call_line(call)}"


def _call_line(call: dict[str, Any]) -> str:
    arguments = runview.one_line(f"{call.get('name', '')} {call.get('arguments', '')}")
    return f"{printable(str(call.get('id')))} {arguments}".rstrip()


def _answered(client: Client, path: str, args: argparse.Namespace) -> None:
    """Give a person's word, and tell for which call."""
    account = client.get(path)
    call = waiting_call(account) if args.call is None else _a_call(args.call)
    wanted = next((each for each in runmany.calls(account) if each.get("id") == call), {"id": call})
    _told(*_answer(client, path, wanted, args), args)


def _a_call(wanted: str) -> str:
    """The id of a call, as a person named it. Raises AcuError for what can be none."""
    if not wanted:
        raise AcuError("the call's id is empty")
    if wanted == LAST or wanted.startswith(("run_", "resp_")):
        raise AcuError(f"{wanted[:64]!r} is a run's id: one run is named, or with --status waiting all that wait")
    return wanted


def waiting_call(told: dict[str, Any]) -> str:
    """The one call of a run that waits for a person. Raises AcuError where there is none, or more than one."""
    ids = [str(call.get("id")) for call in runmany.asked(told)]
    if not ids:
        raise AcuError("no call of this run waits for a person")
    if len(ids) > 1:
        raise AcuError(f"several calls of this run wait for a person; name one: {', '.join(ids)}")
    return ids[0]


def _all_found(client: Client, every: Sequence[str]) -> list[str]:
    """The ids of the runs that are meant, each once. Raises as `found` does."""
    try:
        return list(dict.fromkeys(found(client, each) for each in every))
    except NoSuchRun as error:
        raise AcuError(f"{error}" + ("; nothing was done" if len(every) > 1 else "")) from error


def found(client: Client, wanted: str) -> str:
    """The id of the run that is meant. Raises NoSuchRun where there is none, or more than one."""
    named = wanted.removeprefix("resp_").removeprefix("run_")  # a response is one, too
    if not named:
        raise NoSuchRun(f"{wanted!r} names no run: `acu runs list` shows them")
    begin = "" if wanted == LAST else f"run_{named}"
    if _WHOLE_ID.fullmatch(begin):
        return begin
    if begin and not _BEGINNING.fullmatch(begin):
        raise _none(wanted)
    # Runs are listed in the order of their ids, and those that begin so come right behind it.
    query = urlencode({"limit": 2} | ({"after": begin} if begin else {}))
    page = client.get(f"{RUNS_PATH}?{query}")
    try:
        ids = [str(each["id"]) for each in page["data"]]
    except (LookupError, TypeError) as error:
        raise UnknownAnswer(RUNS_PATH) from error
    if wanted == LAST and not ids:
        raise NoSuchRun("there is no run yet")
    ids = ids[:1] if wanted == LAST else [each for each in ids if each.startswith(begin)]
    if not ids:
        raise _none(wanted)
    if len(ids) > 1:
        raise NoSuchRun(f"more than one run's id begins with {wanted!r}: {', '.join(ids)}, ...")
    return ids[0]


def _none(wanted: str) -> NoSuchRun:
    return NoSuchRun(f"no run's id begins with {wanted[:64]!r}: `acu runs list` shows them")


def _list(client: Client, args: argparse.Namespace) -> int:
    wanted = {"limit": args.limit, "agent": args.agent, "status": args.status}
    query = urlencode({name: value for name, value in wanted.items() if value is not None})
    page = client.get(f"{RUNS_PATH}?{query}")
    if args.json:
        out(json.dumps(page, indent=2))
    elif args.agent is not None and not page.get("data") and (unknown := _unknown_agent(client, args.agent)):
        out(unknown)
    else:
        out(runview.listed(page).rstrip("\n"))
    return exits.OK


def _unknown_agent(client: Client, name: str) -> str | None:
    """What to say of an agent that is not there; None for one that is."""
    try:
        models = [str(model["id"]) for model in client.get("/v1/models")["data"]]
    except (LookupError, TypeError) as error:
        raise UnknownAnswer("/v1/models") from error
    agents = [printable(model.removeprefix(AGENT)) for model in models if model.startswith(AGENT)]
    return None if name in agents else f"no runs, and no agent {name!r}; agents: {', '.join(agents) or 'none'}"


def _events(client: Client, path: str, args: argparse.Namespace) -> None:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE

    told = runview.Events(columns)

    def show(event: dict[str, Any]) -> None:
        for line in [json.dumps(event)] if args.json else told.take(event):
            out(line)

    if args.follow:
        with client.follow(f"{path}/events?stream=true&after={args.after}") as answer:
            for event in answer.events():
                show(event)
        _out_all(told.end())
        return
    after = args.after
    while True:
        page = client.get(f"{path}/events?after={after}&limit={PAGE}")
        try:
            events, more = list(page["data"]), bool(page["has_more"])
            after = events[-1]["sequence_number"] if events else after
        except (LookupError, TypeError) as error:
            raise UnknownAnswer(path) from error
        for event in events:
            show(event)
        if not more:
            _out_all(told.end())
            return


def _out_all(lines: list[str]) -> None:
    for line in lines:
        out(line)


def _line(summary: Any) -> str:
    try:
        return f"{printable(summary['id'])}: {printable(summary['status'])}"
    except (LookupError, TypeError) as error:
        raise UnknownAnswer(RUNS_PATH) from error


def _told(summary: dict[str, Any], more: str, args: argparse.Namespace) -> None:
    text = _line(summary) + more
    out(json.dumps(summary, indent=2) if args.json else text)
