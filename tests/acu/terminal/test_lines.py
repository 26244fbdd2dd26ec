"""acu.terminal.lines: how a wait is told, on a terminal and elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from acu.terminal.lines import ProgressLine, columns


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal of 30 columns to write to, and the end at which its screen is read."""
    screen, keyboard = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    with os.fdopen(keyboard, "w", encoding="utf-8") as output:
        yield output, screen
    os.close(screen)


def test_on_a_terminal_the_line_is_written_over_whenever_its_second_changes(terminal: tuple[TextIO, int]) -> None:
    output, screen = terminal
    clock = Clock()
    with ProgressLine(output, clock) as line:
        for second in (0.0, 0.25, 1.0, 12.0):
            clock.now = 100.0 + second
            line.show("importing 40%", "importing")
    shown = os.read(screen, 4096).decode().split("\r\x1b[K")
    assert shown == ["", "importing 40% (0 s)", "importing 40% (1 s)", "importing 40% (12 s)", ""]


def test_a_line_longer_than_the_terminal_loses_its_end_and_keeps_the_clock(terminal: tuple[TextIO, int]) -> None:
    output, screen = terminal
    assert columns(output) == 30
    with ProgressLine(output, Clock()) as line:
        line.show("x" * 100, "x")
    assert os.read(screen, 4096).decode().split("\r\x1b[K") == ["", "x" * 23 + " (0 s)", ""]


def test_elsewhere_a_line_comes_with_each_stage_and_every_ten_seconds() -> None:
    output, clock = io.StringIO(), Clock()
    with ProgressLine(output, clock) as line:
        for second, stage, percent in (
            (0, "a", 1),
            (5, "a", 20),
            (9, "b", 0),
            (18, "b", 50),
            (19, "b", 60),
            (29, "b", 60),
        ):
            clock.now = 100.0 + second
            line.show(f"{stage} {percent}%", stage)
    assert output.getvalue() == "a 1% (0 s)\nb 0% (9 s)\nb 60% (19 s)\nb 60% (29 s)\n"
    assert columns(output) is None
