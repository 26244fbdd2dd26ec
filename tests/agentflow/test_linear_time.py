"""What is read of a client's text, or a model's, before anything bounds its form takes time in proportion to its length.

Each text is about as long as may be sent or written, and made to be tried again from every character on. In a time that
grows with the square of its length one needs 15 seconds or more (an answer half as long: 4); it gets a few of CPU, in a process
that nothing else can hold back.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import suppress
from itertools import chain
from time import process_time

from agentflow.engine.sample import Unsatisfiable, regex_sample
from agentflow.errors import InvalidGrammar
from agentflow.grammar import GrammarLimits, check
from agentflow.messages import Structured
from agentflow.parsing.formats import FORMATS
from agentflow.parsing.marked import MarkedParser
from agentflow.parsing.vllmshapes import SHAPES
from agentflow.parsing.wholecalls import Shape, WholeCallParser

CPU_S = 8  # for each text, of which most need some milliseconds and the largest expressions half a second
ANSWER_CPU_S = 1  # which is up to 2, since it is counted in whole seconds
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

ANSWER_SIZE = 30_000
ANSWERS = {
    "hermes": ["<tool_call>", "<tool_call", "<", " ", '<tool_call>{"name": "f"}', "<tool_call>{]</tool_call>"],
    "llama3": ["{", '{"name": "f", "parameters": {}};', "<|python_tag|>", "; ", '{"a": 1} '],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]f[", "[TOOL_CALLS]f{}", "[", "[TOOL_CALLS] ["],
    "pythonic": ["[", "[f(", "[f(a=1)]", "[f(a='", "[f(a=[", "[f(a=1),", "<|python_start|>"],
    "bare": ["{", '{"tool": "f"}', '{"tool": "f", ', "```", "``` ", '```json\n{"tool": "f"}\n```\n'],
}
"""Pieces that an answer in this format is made of."""

WITHIN = {
    "hermes": ['<tool_call>{"name": "f", "arguments": {"a": "', '<tool_call>{"name": "f", "arguments": -1'],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]f{"],
    "pythonic": ["[f(a=", '[f(a="', "[f(a='''"],
    "bare": ["```", "{"],
}
REPEATED = ["\\", "'", '"', " ", "1", "1_", "a", "'' ", "(", "a=1,", "{", "#", "."]
"""What goes on for ever within the beginning of a call."""


def shaped_answers() -> list[tuple[Shape, str]]:
    """Shapes of calls that another reads, and answers that are made of their markers."""
    found = []
    for shape in SHAPES.values():
        within = (shape.section or ("", ""))[0] + shape.opener
        pieces = [shape.opener, shape.closer or "}", *(shape.section or ()), *chain(*shape.tags), "{", "<", "q", " "]
        for piece in pieces:
            repeated = piece * (ANSWER_SIZE // len(piece))
            found += [(shape, repeated), (shape, within + repeated), (shape, (within + piece) * (ANSWER_SIZE // 50))]
    return found


def answers() -> list[tuple[str, str]]:
    """Formats, and answers in them."""
    repeated = [(form, piece * (ANSWER_SIZE // len(piece))) for form, pieces in ANSWERS.items() for piece in pieces]
    within = [
        (form, beginning + piece * (ANSWER_SIZE // len(piece)) + (")]" if form == "pythonic" else "}"))
        for form, beginnings in WITHIN.items()
        for beginning in beginnings
        for piece in REPEATED
    ]
    return [*repeated, *within]


def read_answers() -> None:
    """Read every answer whole, and in pieces of some characters, as a model writes it."""
    for form, text in answers():
        allow(ANSWER_CPU_S)
        for size in (len(text), 50):
            parser = MarkedParser(FORMATS[form], {"f"})  # type: ignore[index]  # a key is a literal
            for at in range(0, len(text), size):
                parser.feed(text[at : at + size])
            parser.finish()


def read_shaped_answers() -> None:
    """As `read_answers`, of calls that a reader would have, if it was asked."""
    for shape, text in shaped_answers():
        allow(CPU_S)
        for size in (len(text), 50):
            parser = WholeCallParser(shape, lambda _: (), {"f"})
            for at in range(0, len(text), size):
                parser.feed(text[at : at + size])
            parser.finish()


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


def test_hostile_answers_are_read_in_linear_time() -> None:
    command = (
        "from tests.agentflow.test_linear_time import read_answers, read_shaped_answers as read; read_answers(); read()"
    )
    subprocess.run([sys.executable, "-c", command], check=True)
