"""How models write calls among their text.

hermes     `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
llama3     `{"name": ..., "parameters": {...}}`, after `<|python_tag|>` or not; `;` divides several
mistral    `[TOOL_CALLS]` before an array of such objects, or before each `f{...}` or `f[ARGS]{...}`
pythonic   `[f(city="SF", days=3), g()]`, between `<|python_start|>` and `<|python_end|>` or not
bare       `{"tool": "f", "city": "SF"}` and the like, in a Markdown fence or not (see barecall.py)
"""

from __future__ import annotations

import functools
from typing import Literal

from msgspec import Struct

from agentflow.parsing.barecall import BareCall
from agentflow.parsing.calllist import CallList, MakeReader
from agentflow.parsing.jsoncall import JsonCall
from agentflow.parsing.mistral import MistralCalls
from agentflow.parsing.pythonic import PythonicCall


class Format(Struct, frozen=True):
    """How calls stand in the text.

    `reader` reads a call, or a list of them. `opener` and `closer` surround it, anywhere in the text. Where no text went
    before it, it may do without: then it begins with one of the characters `bare`, and a `fence` may stand on both sides.
    `separator` characters may stand between calls. `special`: the opener is a token that the engine must be told to show,
    and the calls cannot be known without it. `recovers`: what cannot be understood ends where the next opener begins.
    """

    reader: MakeReader
    opener: str | None = None
    closer: str | None = None
    bare: str = ""
    fence: str | None = None
    separator: str = ""
    special: bool = False
    recovers: bool = False


FORMATS: dict[Literal["hermes", "llama3", "mistral", "pythonic", "bare"], Format] = {
    "hermes": Format(JsonCall, opener="<tool_call>", closer="</tool_call>"),
    "llama3": Format(JsonCall, opener="<|python_tag|>", bare="{", separator=";"),
    "mistral": Format(MistralCalls, opener="[TOOL_CALLS]", special=True, recovers=True),
    "pythonic": Format(
        functools.partial(CallList, PythonicCall), opener="<|python_start|>", closer="<|python_end|>", bare="["
    ),
    "bare": Format(BareCall, bare="{", fence="```"),
}
