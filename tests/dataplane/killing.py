"""Programs that are killed with kill -9 in the middle of their work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def killed(program: str, *arguments: object, lines: int = 1, wait_s: float = 0.0) -> list[str]:
    """Run a Python program, kill it `wait_s` after it printed that many lines, and return every whole line it printed.

    What a line says was done before the kill. Of what comes after the last line, anything may be done.
    """
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            said = [child.stdout.readline() for _ in range(lines)]
            time.sleep(wait_s)
        finally:
            child.kill()
        said += child.stdout.read().splitlines(keepends=True)
    assert child.returncode == -signal.SIGKILL, "it ended by itself"
    return [line.removesuffix("\n") for line in said if line.endswith("\n")]


def killed_by_itself(program: str, *arguments: object) -> None:
    """Run a Python program that kills itself at the moment that a test wants."""
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, "it ended, or failed, before that moment"
