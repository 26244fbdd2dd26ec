"""A conversation over the chat completions API: its messages, and streaming one answer."""

from __future__ import annotations

import sys
from typing import Any

from msgspec import Struct

from acu.client import Client
from acu.errors import ApiError, UnknownAnswer

PATH = "/v1/chat/completions"


class Settings(Struct, frozen=True):
    """What every request of the conversation asks for. None leaves it to the daemon."""

    model: str
    temperature: float | None = None
    max_tokens: int | None = None


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
    """Writes an answer to standard output as it comes, and keeps it. Ends the line, also of a broken answer."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, piece: str) -> None:
        """More of the answer."""
        self.text += piece
        sys.stdout.write(visible(piece))
        sys.stdout.flush()

    def end(self) -> None:
        """The answer is over."""
        if not self.text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()


def visible(text: str) -> str:
    """The text without control characters and lone surrogates: a model must not drive the terminal, nor break it."""
    return "".join(
        c for c in text if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000)
    )


def answer(client: Client, settings: Settings, messages: list[dict[str, str]], printer: Printer) -> None:
    """Stream one answer into the printer. Raises ApiError, DaemonUnreachable; ctrl-C comes through after aborting it."""
    body: dict[str, Any] = {"model": settings.model, "messages": messages, "stream": True}
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        body["max_completion_tokens"] = settings.max_tokens
    with client.stream(PATH, body) as response:
        try:
            for event in response.events():
                for choice in event.get("choices", ()):
                    printer.write(piece_of(choice))
        finally:
            if printer.text:
                printer.end()


def piece_of(choice: Any) -> str:
    """The text that a chunk's choice brings. Raises UnknownAnswer."""
    try:
        return str(choice["delta"].get("content") or "")
    except (LookupError, TypeError, AttributeError) as error:
        raise UnknownAnswer(PATH) from error


def explain(error: ApiError) -> str:
    """An API error in one line."""
    text = " ".join(str(error).split())
    return text if error.retry_after_s is None else f"{text} (again in {error.retry_after_s:.1f} s)"
