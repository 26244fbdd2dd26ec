"""Where a conversation's lines come from: a terminal with line editing and history, or a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TextIO

from acu.config import history_file, process_environment
from acu.logs import printable

LINES = "\n\t"


class LineReader(Protocol):
    """Reads what the user says, and tells what is not part of an answer."""

    interactive: bool

    def greet(self, text: str) -> None:
        """Say this once, at the beginning."""

    def read(self) -> str | None:
        """The next message, or None at the end of the input. Raises KeyboardInterrupt for ctrl-C at the prompt."""

    def note(self, text: str) -> None:
        """Say something beside the conversation."""


class TerminalReader:
    """A terminal, by prompt-toolkit. History is kept in a file that only its owner reads."""

    interactive = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings

        bindings = KeyBindings()

        @bindings.add("escape", "enter")
        def new_line(event: object) -> None:
            event.current_buffer.insert_text("\n")  # type: ignore[attr-defined]

        path = private_file(history_file(process_environment()))
        history: History = FileHistory(str(path)) if path else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(history=history, key_bindings=bindings)

    def greet(self, text: str) -> None:
        """As LineReader.greet."""
        self.note(text)

    def read(self) -> str | None:
        """As LineReader.read. A line that ends in a backslash goes on in the next one."""
        lines: list[str] = []
        while True:
            try:
                line = self._session.prompt("... " if lines else "> ")
            except EOFError:
                return None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def note(self, text: str) -> None:
        """As LineReader.note; dimmed."""
        sys.stdout.write(f"\x1b[2m{printable(text, keep=LINES)}\x1b[0m\n")
        sys.stdout.flush()


class PipeReader:
    """Lines of a pipe or file: answers go to standard output, all else to standard error."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def greet(self, text: str) -> None:
        """Nobody is there to be greeted."""

    def read(self) -> str | None:
        """As LineReader.read."""
        line = self._stream.readline()
        return line.rstrip("\n") if line else None

    def note(self, text: str) -> None:
        """As LineReader.note."""
        sys.stderr.write(f"{printable(text, keep=LINES)}\n")


class ProgressLine:
    """One line on standard error that is written over, on a terminal; on a pipe, a line for each new text."""

    def __init__(self) -> None:
        self._shown = ""
        self._tty = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._tty:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        """Replace the line."""
        text = printable(text)
        if text == self._shown:
            return
        self._shown = text
        sys.stderr.write(f"\r\x1b[K{text}" if self._tty else f"{text}\n")
        sys.stderr.flush()


def private_file(path: Path) -> Path | None:
    """Make the file, or its permissions, such that only its owner reads it; None where it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError:
        return None
    return path
