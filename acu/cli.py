"""The `acu` command: finds the subcommand, imports only its module, and turns errors into a line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from acu import __version__
from acu.commands import exits
from acu.commands.output import UNWRITABLE, drop, to_its_end
from acu.errors import AcuError, ConfigError, DaemonUnreachable, StartRefused
from acu.telemetry.logs import printable
from agentflow.nearest import nearest

LINES = "\n\t"
_SHOWN = 64  # characters of an argument that is refused

EPILOG = """\
configuration:
  The first file that is named or found is read: -c FILE, the variable
  ACU_CONFIG, ~/.config/acu/acu.yaml, /etc/acu/acu.yaml. With no file at all the
  defaults follow the machine. Any field can be overridden by a variable
  ACU_SECTION__FIELD, such as ACU_NETWORK__BIND_ADDR=127.0.0.1:9000.
  `acu config reference` lists every field.

exit codes:
  0 done   1 failed   2 wrong usage or configuration, or the daemon refused to
  start   3 no daemon listens   130 interrupted

get started:
  acu serve --pull         (in one terminal; fetches missing models)
  acu chat                 (in another)
"""


class Command(Struct, frozen=True):
    """A subcommand: the module that has its `add_arguments(subparsers)`, and `run(args)`.

    `acts`: those of its actions that change something. They go on where nobody reads what they say of it any more.
    """

    module: str
    handles_signals: bool = False  # else ctrl-C raises KeyboardInterrupt while it runs
    acts: frozenset[str] = frozenset()

    def changes(self, args: argparse.Namespace) -> bool:
        """Whether what it is to do changes something."""
        return getattr(args, "action", None) in self.acts or bool(getattr(args, "repair", False))


STEERING = frozenset({"cancel", "pause", "resume", "step", "say", "approve", "deny", "rm"})

COMMANDS = {
    "serve": Command("acu.commands.serve", handles_signals=True),
    "chat": Command("acu.commands.chat"),
    "status": Command("acu.commands.status"),
    "runs": Command("acu.commands.runs", acts=STEERING),
    "models": Command("acu.commands.models", acts=frozenset({"pull", "rm", "preload"})),
    "data": Command("acu.commands.data", acts=frozenset({"backup", "restore", "archive", "erase"})),
    "config": Command("acu.commands.config"),
    "doctor": Command("acu.commands.doctor"),
    "version": Command("acu.commands.version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for word in words:
        if _is_broken(word):
            return _fail(AcuError(f"the argument '{printable(word[:_SHOWN])}' is not valid UTF-8"), exits.REFUSED)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        code = _run(words)
        sys.stdout.flush()  # here, where a full disk can still be told
    except (ConfigError, StartRefused) as error:
        for problem in error.problems:
            print(f"acu: {printable(problem)}", file=sys.stderr)  # noqa: T201
        return exits.REFUSED
    except DaemonUnreachable as error:
        return _fail(error, exits.NO_DAEMON)
    except AcuError as error:
        return _fail(error, exits.FAILED)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (`acu status | head`). Nothing may be flushed into the pipe any more.
        drop(sys.stdout)
        return exits.OK
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        drop(sys.stdout)
        return _fail(AcuError(f"the output cannot be written: {error.strerror}"), exits.FAILED)
    else:
        return code


def _is_broken(word: str) -> bool:
    """Whether it has bytes that are no UTF-8, which Python has as surrogates: nothing could print or send them."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return True
    return False


def _fail(error: Exception, code: int) -> int:
    print(f"acu: {printable(str(error), keep=LINES)}", file=sys.stderr)  # noqa: T201
    return code


def _run(words: list[str]) -> int:
    name = command_named(words)
    parser, subparsers = _parser()
    if name is None:  # help, --version or a mistake: every command is shown
        for command in COMMANDS.values():
            importlib.import_module(command.module).add_arguments(subparsers)
        if words:
            parser.parse_args(words)
        parser.print_help(sys.stderr)
        return exits.REFUSED
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    module.add_arguments(subparsers)
    args, unknown = parser.parse_known_args(words)
    if unknown:  # argparse itself would show the usage of `acu`, and not that of the command
        subparsers.choices[name].error(f"unrecognized arguments: {' '.join(unknown)}")
    if not command.handles_signals and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not command.changes(args):
        return int(module.run(args))
    with to_its_end():
        return int(module.run(args))


def command_named(words: Sequence[str]) -> str | None:
    """The subcommand among the words, or None if there is none before the first thing that is not an option of ours."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in {"-c", "--config"}:
            skip = True
        elif word.startswith(("-c", "--config=")):  # with the file in the same word
            continue
        else:
            return word if word in COMMANDS else None
    return None


class Parser(argparse.ArgumentParser):
    """One that names the nearest of the choices where there is none as it was written."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = nearest(str(value), choices)
            hint = f"did you mean {near}? " if near else ""
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({hint}choose from {', '.join(choices)})")


def _parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = Parser(
        prog="acu",
        description="ACU: an appliance daemon for AI agents. One process, one GPU (or none),\n"
        "an OpenAI API on a unix socket and on localhost.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"acu {__version__}")
    parser.add_argument("-c", "--config", metavar="FILE", type=Path, help="configuration file (acu.yaml)")
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
