"""What is read of a client's text before anything bounds its form takes time in proportion to its length.

Each text is about as long as may be sent, and made to be tried again from every character on. In a time that grows with
the square of its length one needs 15 seconds or more; it gets a few of CPU, in a process that nothing else can hold back.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import suppress
from time import process_time

from agentflow.engine.sample import Unsatisfiable, regex_sample
from agentflow.errors import InvalidGrammar
from agentflow.grammar import GrammarLimits, check
from agentflow.messages import Structured

CPU_S = 8  # for each text, of which most need some milliseconds and the largest expressions half a second
SIZE = 64_000

GRAMMARS = [
    *("{" + " " * SIZE, "{ 1" + " " * SIZE, "{1," + " " * SIZE, "~" + " " * SIZE, "~1" + " " * SIZE),
    *(piece * (SIZE // len(piece)) for piece in ("{", "{ ", "{1", "~1 ", "~", "1", "{9}", "{999999999}", "~9..9")),
    *(opener * SIZE for opener in "\"'[/#("),
    *((opener + "\\") * (SIZE // 2) for opener in "\"'[/"),
    *((opener + "a") * (SIZE // 2) for opener in "\"'[/"),
    *(piece * (SIZE // len(piece)) for piece in ("\"['/", "/\\/", '"\n', "[\\\n", "a\r", "\\")),
]

EXPRESSIONS = [
    *(piece * (SIZE // len(piece)) for piece in ("[a", "[[]", "\\", "a{1", "(?#", "|", "[^a-z]", r"[^\w]")),
    r"[^\w\d\s]" * 7_000,
    "[^!-\u1fff]" * 8_000,
    "[^" + "".join(f"{chr(code)}-{chr(code + 1)}" for code in range(0x100, 0x1F00)) + "]",
    "a" * (SIZE // 2) + "|" + "a" * (SIZE // 2),
    "(?P<a>" + "b" * SIZE,
    r"\N{" + "a" * SIZE,
]


def read_all() -> None:
    """Read every text as the service and the scripted engine do; one that takes too long ends the process."""
    for grammar in GRAMMARS:
        allow(CPU_S)
        with suppress(InvalidGrammar):
            check(Structured("grammar", grammar), GrammarLimits())
    for expression in EXPRESSIONS:
        allow(CPU_S)
        with suppress(InvalidGrammar):
            check(Structured("regex", expression), GrammarLimits())
        with suppress(Unsatisfiable):
            regex_sample(expression)


def allow(seconds: int) -> None:
    """Let the process use so much more CPU time."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(process_time()) + 1 + seconds, most))


def test_the_texts_are_about_as_long_as_may_be_sent() -> None:
    sizes = [len(text.encode()) for text in (*GRAMMARS, *EXPRESSIONS)]
    assert min(sizes) > 40_000
    assert max(sizes) <= GrammarLimits().max_bytes


def test_hostile_texts_are_read_in_linear_time() -> None:
    command = "from tests.agentflow.test_linear_time import read_all; read_all()"
    subprocess.run([sys.executable, "-c", command], check=True)
