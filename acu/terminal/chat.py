"""A conversation over the chat completions API: its messages, streaming one answer, and the word that a call waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from acu.errors import ApiError, UnknownAnswer
from acu.terminal.client import Client

PATH = "/v1/chat/completions"
RUNS_PATH = "/acu/v1/runs"
AGENT = "agent/"  # what a model's name begins with that is an agent's
SHOWN = 200  # characters of a tool's arguments or result
MAX_TOKENS = 1024  # a small model may repeat itself until its context ends, which takes minutes


class Settings(Struct, frozen=True):
    """What every request of the conversation asks for.

    A temperature of None leaves it to the daemon. With `max_tokens` of None an answer has MAX_TOKENS, or what is left of the
    model's context if that is less; an agent's has what its own limits give.
    """

    model: str
    temperature: float | None = None
    max_tokens: int | None = None

    @property
    def is_agent(self) -> bool:
        """Whether an agent answers."""
        return self.model.startswith(AGENT)


class Cut(Struct, frozen=True):
    """Where an answer broke off for its length, in a phrase, and whether the model can go on from there."""

    where: str
    may_go_on: bool


class Result(Struct, frozen=True):
    """What a tool has returned."""

    output: str
    is_error: bool = False

    def told(self, *, quoted: bool = False) -> str:
        """The result in a line; if the answer quotes it, only that it is an error, or nothing."""
        if quoted:
            return "<- error" if self.is_error else ""
        return f"<- {'error: ' if self.is_error else ''}{_line(self.output)}"


class Conversation:
    """The turns so far. An answer is added only with the message that it answers."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self._turns: list[dict[str, str]] = []

    def with_user(self, text: str) -> list[dict[str, str]]:
        """The messages to send for the user's next message."""
        head = [{"role": "system", "content": self._system}] if self._system else []
        return [*head, *self._turns, {"role": "user", "content": text}]

    def add(self, text: str, reply: str) -> None:
        """Keep a turn."""
        self._turns += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]

    def clear(self) -> None:
        """Forget the turns, and keep the system message."""
        self._turns = []

    def restart(self, system: str | None) -> None:
        """Forget the turns, and take another system message."""
        self._system = system
        self.clear()


class Printer:
    """Writes an answer to standard output as it comes, and keeps it. Ends the line, also of a broken answer.

    `tell` says what is not part of the answer: what an agent's tools do. `confirm` asks a person; it returns None where nobody
    is there. A result waits to be told until the answer says something else: one that is the answer is shown once.
    """

    def __init__(self, tell: Callable[[str], None], confirm: Callable[[str], bool | None]) -> None:
        self.text = ""
        self.confirm = confirm
        self._tell = tell
        self._in_line = False
        self._results: list[Result] = []  # that are not told yet
        self._waiting = ""  # of the answer: what it has said that these results say too

    def write(self, piece: str) -> None:
        """More of the answer."""
        self.text += piece
        self._waiting += piece
        if not self._quoted.startswith(self._waiting):
            self._release()

    def result(self, result: Result) -> None:
        """What a tool has returned, beside the answer, unless the answer is just that."""
        if self._waiting:
            self._release()
        self._results.append(result)

    def beside(self, text: str) -> None:
        """Something beside the answer. On a terminal it has a line of its own; elsewhere the answer stays as it is."""
        self.break_line()
        self._tell(text)

    def break_line(self) -> None:
        """All that came before is shown; on a terminal, what is not the answer's begins a new line."""
        self._release()
        self._break()

    def end(self) -> None:
        """The answer is over."""
        self._release(quoted=bool(self._waiting) and self._waiting == self._quoted)
        if self._in_line:
            sys.stdout.write("\n")
            self._in_line = False
        sys.stdout.flush()

    @property
    def _quoted(self) -> str:
        """What an answer says that is these results, word for word."""
        return "\n\n".join(result.output for result in self._results)

    def _release(self, *, quoted: bool = False) -> None:
        """Show what waits. Of results that the answer quotes no more than that they are errors."""
        results, piece = self._results, self._waiting
        self._results, self._waiting = [], ""
        for line in (result.told(quoted=quoted) for result in results):
            if line:
                self._break()
                self._tell(line)
        if piece:
            self._in_line = not piece.endswith("\n")
            sys.stdout.write(visible(piece))
            sys.stdout.flush()

    def _break(self) -> None:
        if self._in_line and sys.stdout.isatty():
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._in_line = False


def visible(text: str) -> str:
    """The text without control characters and lone surrogates: a model must not drive the terminal, nor break it."""
    return "".join(
        c for c in text if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000)
    )


def answer(client: Client, settings: Settings, messages: list[dict[str, str]], printer: Printer) -> Cut | None:
    """Stream one answer into the printer. Returns where it was cut, or None for a whole one.

    Raises ApiError, DaemonUnreachable; ctrl-C comes through after aborting it.
    """
    body: dict[str, Any] = {"model": settings.model, "messages": messages, "stream": True}
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.is_agent:
        return _agent_answer(client, settings, body, printer)
    limit = settings.max_tokens or MAX_TOKENS
    cut = Cut(f"cut at {limit} tokens; --max-tokens allows more", may_go_on=True)
    try:
        reason = stream(client, body | {"max_completion_tokens": limit}, printer)
    except ApiError as error:
        if settings.max_tokens is not None or error.code != "context_length_exceeded":
            raise
        # Nobody asked for that many, and fewer are left: without a number the daemon grants just those.
        cut = Cut("cut where the model's context ends", may_go_on=False)
        reason = stream(client, body, printer)
    return cut if reason == "length" else None


def _agent_answer(client: Client, settings: Settings, body: dict[str, Any], printer: Printer) -> Cut | None:
    """As `answer`. Its limits are in the agent's configuration."""
    body["stream_options"] = {"include_acu_events": True}
    if settings.max_tokens is not None:
        body["max_completion_tokens"] = settings.max_tokens
    reason = stream(client, body, printer)
    return Cut("cut at a limit of the agent's; `acu runs` shows which", may_go_on=True) if reason == "length" else None


def stream(client: Client, body: dict[str, Any], printer: Printer) -> str:
    """Stream the answer to one request into the printer. Returns its finish reason. Raises as `answer` does."""
    reason = ""
    with client.stream(PATH, body) as response:
        try:
            for event in response.events():
                if "acu" in event:
                    tell_activity(client, event["acu"], printer)
                for choice in event.get("choices", ()):
                    printer.write(piece_of(choice))
                    reason = str(choice.get("finish_reason") or reason)
        finally:
            printer.end()
    return reason


def tell_activity(client: Client, told: Any, printer: Printer) -> None:
    """Say what an agent's tool does. Of a call that waits for a person ask him, or say how to answer. Raises as `answer` does."""
    if not (isinstance(told, dict) and told.get("type") == "tool.asked"):
        did = activity_of(told)
        if isinstance(did, Result):
            printer.result(did)
        else:
            printer.beside(did)
        return
    try:
        run, call = str(told["run_id"]), str(told["call_id"])
        # Whole: nobody is to allow what he does not see.
        wanted = f"{told['name']} {' '.join(str(told['arguments']).split())}"
    except LookupError as error:
        raise UnknownAnswer(PATH) from error
    printer.break_line()
    word = printer.confirm(f"allow {wanted}?")
    if word is None:
        printer.beside(f"{wanted} waits for a person: acu runs approve {run} {call}, or acu runs deny {run} {call}")
        return
    try:
        client.post(f"{RUNS_PATH}/{quote(run, safe='')}/calls/{quote(call, safe='')}/approval", {"approve": word})
    except ApiError as error:  # somebody else was quicker, or the time for it is over
        printer.beside(f"error: {explain(error)}")


def piece_of(choice: Any) -> str:
    """The text that a chunk's choice brings. Raises UnknownAnswer."""
    try:
        return str(choice["delta"].get("content") or "")
    except (LookupError, TypeError, AttributeError) as error:
        raise UnknownAnswer(PATH) from error


def activity_of(told: Any) -> str | Result:
    """What an agent's tool does, in a line, or what it has returned. Raises UnknownAnswer."""
    try:
        if told["type"] == "tool.started":
            return f"-> {told['name']} {_line(str(told['arguments']))}"
        return Result(str(told["output"]), bool(told.get("is_error")))
    except (LookupError, TypeError, AttributeError) as error:
        raise UnknownAnswer(PATH) from error


def _line(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}\u2026"


def explain(error: ApiError) -> str:
    """An API error in one line."""
    text = " ".join(str(error).split())
    return text if error.retry_after_s is None else f"{text} (again in {error.retry_after_s:.1f} s)"
