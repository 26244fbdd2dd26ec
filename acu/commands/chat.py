"""`acu chat`: a conversation with a served model, on a terminal or through a pipe."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from msgspec.structs import replace

from acu.commands import exits
from acu.commands.options import add_target_options, target_of
from acu.errors import AcuError, ApiError, UnknownAnswer
from acu.terminal.chat import AGENT, MAX_TOKENS, Conversation, Printer, Settings, answer, explain
from acu.terminal.client import Client
from acu.terminal.lines import LineReader, PipeReader, ProgressLine, TerminalReader, aside, confirm

READY_POLL_S = 0.25
READY_TIMEOUT_S = 10.0  # /readyz answers at once, however busy the engines are

LIMIT = f"longest answer in tokens; default: {MAX_TOKENS}, or what is left of the model's context if that is less"
AGENT_HELP = (
    "talk to an agent; what its tools do is shown beside its answer. For a call that needs a person's word you are asked on a "
    "terminal; elsewhere a line on standard error names the call, and `acu runs approve` or `acu runs deny` answers it"
)
HELP = """\
/system TEXT   set the system message (no TEXT: remove it) and begin anew
/model NAME    talk to another model, or to agent/NAME (no NAME: list them)
/clear         begin anew
/help          this
/quit          leave (so does ctrl-D)
Ctrl-C stops an answer; alt-enter or a final \\ begins a new line."""


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description="Talk to a served model, or to an agent. Without a terminal,\neach line of the input is a message.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_target_options(parser)
    parser.add_argument("--once", metavar="TEXT", help="answer this and exit; `-` reads it from standard input")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--model", metavar="NAME", default="large", help="name or alias of the model (default: large)")
    who.add_argument("--agent", metavar="NAME", help=AGENT_HELP)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", metavar="T", type=float, help="0 is deterministic; default: the model's")
    parser.add_argument("--max-tokens", metavar="N", type=count, help=LIMIT)
    parser.add_argument("--no-wait", action="store_true", help="fail instead of waiting while the model loads")


def count(text: str) -> int:
    """A number of at least one, as argparse asks for it."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """One answer, or a conversation until the input ends. Raises DaemonUnreachable, ApiError."""
    target = target_of(args)
    client = Client(target)
    model = args.model if args.agent is None else AGENT + args.agent
    settings = Settings(model=model, temperature=args.temperature, max_tokens=args.max_tokens)
    conversation = Conversation(args.system)
    wait_until_ready(Client(target, READY_TIMEOUT_S), wait=not args.no_wait)
    if args.once is not None:
        return once(client, settings, conversation, args.once)
    reader: LineReader = TerminalReader() if sys.stdin.isatty() and sys.stdout.isatty() else PipeReader(sys.stdin)
    return Chat(client, settings, conversation, reader).loop()


def once(client: Client, settings: Settings, conversation: Conversation, text: str) -> int:
    """Answer one message on standard output."""
    message = sys.stdin.read().strip() if text == "-" else text
    if not message:
        raise AcuError("there is no text to answer: `acu chat --once TEXT`, or `-` and text on standard input")
    there = text != "-" and sys.stdin.isatty() and sys.stderr.isatty()
    printer = Printer(aside, lambda question: confirm(question, sys.stderr) if there else None)
    try:
        cut = answer(client, settings, conversation.with_user(message), printer)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    if cut:
        aside(cut.where)
    return exits.OK


def wait_until_ready(client: Client, *, wait: bool = True) -> None:
    """Show how far the models are until all take work; without `wait`, raise AcuError when they do not.

    Nothing is shown when they do already.
    """
    with ProgressLine() as line:
        while True:
            readiness = client.get("/readyz", accept=(200, 503))
            try:
                if readiness["ready"]:
                    return
                text, stage = loading_text(readiness), loading_stage(readiness)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise UnknownAnswer("/readyz") from error
            if not wait:
                raise AcuError(f"not ready: {text}")
            line.show(text, stage)
            time.sleep(READY_POLL_S)


def loading_text(readiness: dict[str, Any]) -> str:
    """What /readyz says, in one line."""
    parts = []
    for model in readiness.get("models", []):
        if not model["ready"]:
            share = f" {model['fraction']:.0%}" if model["fraction"] is not None else ""
            parts.append(f"{model['model']}: {model['stage']}{share}")
    text = "loading " + ", ".join(parts) if parts else str(readiness.get("reason") or "not ready")
    return f"{text}; {readiness['preloading']}" if readiness.get("preloading") else text


def loading_stage(readiness: dict[str, Any]) -> tuple[str, ...]:
    """What /readyz says, without how far each stage is."""
    stages = tuple(f"{model['model']}: {model['stage']}" for model in readiness.get("models", []))
    return stages or (str(readiness.get("reason")),)


class Chat:
    """The loop of a conversation: a line in, an answer or the effect of a /command out."""

    def __init__(self, client: Client, settings: Settings, conversation: Conversation, reader: LineReader) -> None:
        self._client = client
        self._settings = settings
        self._conversation = conversation
        self._reader = reader
        self._failed = False

    def loop(self) -> int:
        """Until the input ends or /quit. Through a pipe, a failed answer makes the exit code 1."""
        self._reader.greet(f"{self._settings.model}: /help for commands, ctrl-D to leave")
        while True:
            try:
                line = self._reader.read()
            except KeyboardInterrupt:  # at the prompt it only clears the line
                continue
            if line is None or line.strip() in {"/quit", "/exit"}:
                return exits.FAILED if self._failed and not self._reader.interactive else exits.OK
            if line.startswith("/"):
                self._command(line.strip())
            elif line.strip():
                self._say(line)

    def _say(self, text: str) -> None:
        printer = Printer(self._reader.note, self._reader.confirm)
        try:
            cut = answer(self._client, self._settings, self._conversation.with_user(text), printer)
            if cut:
                self._reader.note(cut.where + (", or say: go on" if cut.may_go_on else "; /clear begins anew"))
        except KeyboardInterrupt:
            self._reader.note("(stopped)")
        except ApiError as error:
            self._failed = True
            self._reader.note(f"error: {explain(error)}")
            if not printer.text:
                return
        if printer.text:
            self._conversation.add(text, printer.text)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "/help":
            self._reader.note(HELP)
        elif name == "/clear":
            self._conversation.clear()
            self._reader.note("cleared")
        elif name == "/system":
            self._conversation.restart(rest or None)
            self._reader.note("the system message is set" if rest else "no system message")
        elif name == "/model":
            self._model(rest)
        else:
            self._reader.note(f"unknown command {name}; /help lists them")

    def _model(self, name: str) -> None:
        try:
            known = [str(model["id"]) for model in self._client.get("/v1/models")["data"]]
        except (LookupError, TypeError) as error:
            raise UnknownAnswer("/v1/models") from error
        except ApiError as error:
            self._reader.note(f"error: {explain(error)}")
            return
        if not name:
            self._reader.note(f"served: {', '.join(known)}; now: {self._settings.model}")
            return
        if name not in known and not name.startswith(AGENT):  # of an agent that is not there the daemon tells
            self._failed = True  # what follows in a pipe goes to a model that was not meant
            self._reader.note(f"{name} is not served; served: {', '.join(known)}; now: {self._settings.model}")
            return
        self._settings = replace(self._settings, model=name)
        self._reader.note(f"talking to {name}")
