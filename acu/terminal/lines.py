"""Where a conversation's lines come from: a terminal with line editing and history, or a pipe."""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from acu.config import history_file, process_environment
from acu.telemetry.logs import printable

LINES = "\n\t"
YES_OR_NO: Final = {"y": True, "yes": True, "n": False, "no": False}
PLAIN_EVERY_S = 10.0  # how often a wait is told where lines cannot be written over


class LineReader(Protocol):
    """Reads what the user says, and tells what is not part of an answer."""

    interactive: bool

    def greet(self, text: str) -> None:
        """Say this once, at the beginning."""

    def read(self) -> str | None:
        """The next message, or None at the end of the input. Raises KeyboardInterrupt for ctrl-C at the prompt."""

    def note(self, text: str) -> None:
        """Say something beside the conversation."""

    def confirm(self, question: str) -> bool | None:
        """Yes or no; None where nobody is there to say it. Raises KeyboardInterrupt for ctrl-C."""


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
        sys.stdout.write(dim(text))
        sys.stdout.flush()

    def confirm(self, question: str) -> bool | None:
        """As LineReader.confirm."""
        return confirm(question, sys.stdout)


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

    def confirm(self, question: str) -> bool | None:
        """As LineReader.confirm: the lines of a pipe were written before the question."""
        return None


class ProgressLine:
    """How a wait goes, and for how long it has gone on, on standard error.

    On a terminal it is one line, which is written over as often as its text or its second changes. Elsewhere a line is
    written when a stage begins, and every PLAIN_EVERY_S while it lasts.
    """

    def __init__(self, output: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = sys.stderr if output is None else output
        self._clock = clock
        self._tty = self._output.isatty()
        self._began: float | None = None
        self._shown = ""
        self._stage: object = None
        self._told = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._tty:
            self._output.write("\r\x1b[K")
            self._output.flush()

    def show(self, text: str, stage: object) -> None:
        """Tell how far it is. `stage` is what stays the same while only figures in the text change."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        text, elapsed = printable(text), f" ({now - self._began:.0f} s)"
        if self._tty:
            width = columns(self._output)
            text = text if width is None else text[: max(0, width - len(elapsed) - 1)]
            self._write_over(text + elapsed)
        elif not self._shown or stage != self._stage or now - self._told >= PLAIN_EVERY_S:
            self._shown, self._stage, self._told = text, stage, now
            self._output.write(f"{text}{elapsed}\n")
            self._output.flush()

    def _write_over(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._output.write(f"\r\x1b[K{text}")
            self._output.flush()


def columns(output: TextIO) -> int | None:
    """How many columns the terminal has; None for what is no terminal, or does not know."""
    try:
        return os.get_terminal_size(output.fileno()).columns or None
    except (OSError, ValueError):
        return None


def dim(text: str) -> str:
    """A line for a terminal that steps behind the others."""
    return f"\x1b[2m{printable(text, keep=LINES)}\x1b[0m\n"


def aside(text: str) -> None:
    """Say something beside an answer, on standard error; dimmed on a terminal."""
    sys.stderr.write(dim(text) if sys.stderr.isatty() else f"{printable(text, keep=LINES)}\n")
    sys.stderr.flush()


def confirm(question: str, output: TextIO) -> bool | None:
    """Ask on the terminal until it is yes or no; None for ctrl-D. What was typed before the question is no answer to it."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    while True:
        output.write(f"{printable(question)} [y/n] ")
        output.flush()
        line = sys.stdin.readline()
        if not line:
            output.write("\n")
            return None
        if (word := line.strip().lower()) in YES_OR_NO:
            return YES_OR_NO[word]


def private_file(path: Path) -> Path | None:
    """Make the file, or its permissions, such that only its owner reads it; None where it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError:
        return None
    return path
