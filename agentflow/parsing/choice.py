"""Which parser reads a model's text, by the name of the format in which the model writes its calls.

    hermes, llama3, mistral, pythonic, bare   our own (formats.py)
    vllm:NAME                                 read by vLLM's tool parser of that name (vllmshapes.py)
    none, or any other                        everything is text

A name with a prefix belongs to the module that READERS has for it. It is imported when the first model of that format is
loaded, or the first log of one is read: nothing else here needs what it stands on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast

from agentflow.messages import Tool
from agentflow.parsing.events import ToolParser
from agentflow.parsing.formats import FORMATS, Format
from agentflow.parsing.marked import MarkedParser
from agentflow.parsing.vllmshapes import PREFIX, SHAPES
from agentflow.parsing.wholecalls import Reader, WholeCallParser


class ReaderModule(Protocol):
    """What reads whole calls of formats that are another's."""

    def load(self, name: str) -> None:
        """Import what the format needs; may take seconds. Raises EngineStartFailed."""

    def reader(self, name: str, tools: Sequence[Tool]) -> Reader:
        """A reader of calls of these tools. Raises EngineStartFailed, InvalidRequest."""


READERS: Final[Mapping[str, str]] = MappingProxyType({PREFIX: "agentflow.engine.vllm.toolparsers"})
"""Who reads the formats of a prefix."""


class Marks(NamedTuple):
    """What the engine must know of a format: whether its markers are tokens to be shown, and what may end an answer."""

    special: bool
    closer: str | None


def marks(tool_format: str) -> Marks | None:
    """None for a format that has no calls, or that nobody knows any more."""
    form = _own(tool_format)
    if form is not None:
        return Marks(form.special, form.closer)
    shape = SHAPES.get(tool_format.removeprefix(PREFIX)) if tool_format.startswith(PREFIX) else None
    # A call without its closer is none here, and an engine that stops at one may leave it out.
    return None if shape is None else Marks(shape.special, None)


def load(tool_format: str) -> None:
    """Import what the format needs; may take seconds, once. Raises EngineStartFailed where that cannot be had."""
    module = _module(tool_format)
    if module is not None:
        module.load(tool_format.removeprefix(PREFIX))


def needs_loading(tool_format: str) -> bool:
    """Whether `load` has anything to do for it."""
    return tool_format.startswith(PREFIX)


def parser_maker(tool_format: str, tools: Sequence[Tool]) -> Callable[[], ToolParser] | None:
    """What makes a fresh parser of calls of `tools`; None where everything is text.

    Raises EngineStartFailed where what reads them cannot be had, and InvalidRequest for tools that it does not take.
    """
    names = frozenset(tool.name for tool in tools)
    form = _own(tool_format)
    if not tools or marks(tool_format) is None:
        return None
    if form is not None:
        return lambda: MarkedParser(form, names)
    module, name = _module(tool_format), tool_format.removeprefix(PREFIX)
    assert module is not None
    read = module.reader(name, tools)
    return lambda: WholeCallParser(SHAPES[name], read, names)


def _own(tool_format: str) -> Format | None:
    return cast("Mapping[str, Format]", FORMATS).get(tool_format)


def _module(tool_format: str) -> ReaderModule | None:
    if not tool_format.startswith(PREFIX):
        return None
    found: Any = importlib.import_module(READERS[PREFIX])
    return cast("ReaderModule", found)
