"""A process that answers commands: one JSON object a line on standard input asks, one on standard output answers.

`{"do": "search", "start": 0}` calls the method `search(start=0)` of what serves, and the answer is what it returns. What goes
wrong is said on standard error and ends the process. Imports nothing but the standard library: it runs in .venv-bench too.
`benchmarks.vectorpeers` is the other side.
"""

from __future__ import annotations

import json
import os
import sys


def answer_commands(serves: object) -> None:
    """Say that it is ready, and answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(serves, command.pop("do"))(**command)), file=answers, flush=True)
