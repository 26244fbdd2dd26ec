"""What a command answers with: lines on standard output."""

import sys


def out(text: str) -> None:
    """Print `text` at once, so that whoever reads a pipe sees it while the command goes on."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
