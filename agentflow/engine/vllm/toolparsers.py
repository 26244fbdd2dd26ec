"""vLLM's tool parsers, as readers of whole calls (parsing/wholecalls.py).

Only what they make of a whole text is used: what they say of a part of one depends on how it was cut. A parser is made afresh
for every call, so nothing of one call is left for the next, and the same text always comes to the same calls.

**The tokenizer.** vLLM's parsers ask one for the ids of their markers, and read by text all the same. They are given a
vocabulary that has every token it is asked for: a run's log can so be read where its model is gone.

**Time.** Those that stand on vLLM's parser engine turn all arguments so far into JSON again with each marker in them, in case
somebody streams them. That is turned off here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from agentflow.engine.imports import heavy_imports
from agentflow.errors import EngineStartFailed, InvalidRequest
from agentflow.messages import Tool
from agentflow.parsing.wholecalls import ReadCall, Reader

_FIRST_ID = 1000
_log = logging.getLogger(__name__)


def load(name: str) -> None:
    """Import vLLM's parser `name`, so that `reader` finds it: seconds, the first time. Raises EngineStartFailed."""
    _parser_class(name)


def reader(name: str, tools: Sequence[Tool]) -> Reader:
    """What reads calls of `tools` by vLLM's parser `name`.

    Raises EngineStartFailed where that cannot be had, and InvalidRequest for tools that vLLM does not take.
    """
    parser = _parser_class(name)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    told = [{"type": "function", "function": _function(tool)} for tool in tools]
    try:
        request = ChatCompletionRequest(model="", messages=[{"role": "user", "content": ""}], tools=told)
    except ValueError as error:
        raise InvalidRequest(f"vLLM's tool parsers do not take these tools: {error}", param="tools") from error
    make = _maker(parser, request.tools)

    def read(text: str) -> Sequence[ReadCall]:
        try:
            found = make().extract_tool_calls(text, request)
            return [ReadCall(call.function.name, call.function.arguments) for call in found.tool_calls]
        except Exception as error:  # noqa: BLE001 - a parser can raise anything at what a model wrote
            _log.debug("vLLM's parser %s fails at a call: %s", name, type(error).__name__)
            return []

    return read


def _parser_class(name: str) -> Any:
    # Once it is loaded nobody waits for the turn to import, which may be another's for seconds.
    manager = getattr(sys.modules.get("vllm.tool_parsers"), "ToolParserManager", None)
    if manager is not None and name in manager.tool_parsers:
        return manager.tool_parsers[name]
    try:
        with heavy_imports():
            from vllm.tool_parsers import ToolParserManager

            # Its parsers log what they cannot read, with the model's words and a traceback; a Malformed tells of it.
            logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
            return ToolParserManager.get_tool_parser(name)
    except ImportError as error:
        raise EngineStartFailed(
            f"tool_format vllm:{name} needs vLLM, which cannot be imported here: {error}. Install it, or choose another "
            "tool_format."
        ) from error
    except KeyError as error:
        raise EngineStartFailed(
            f"tool_format vllm:{name}: the vLLM that is installed has no tool parser of that name. Choose another."
        ) from error


def _maker(parser: Any, tools: Any) -> Callable[[], Any]:
    """What makes a fresh parser, which leaves out what only streams need."""
    vocabulary = _Vocabulary()

    def make() -> Any:
        made = parser(vocabulary, tools)
        engine = getattr(made, "_parser_engine", None)
        if engine is not None:
            engine._stream_arg_deltas = False  # that its configuration has too, but not every parser takes one
        return made

    return make


def _function(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}


class _Vocabulary(dict[str, int]):
    """What vLLM's parsers ask of a tokenizer: every text that they look up is one token. It has no other tokens."""

    chat_template = None

    def get_vocab(self) -> dict[str, int]:
        """All of it."""
        return self

    def get(self, token: str, default: Any = None) -> int:
        """The token's id."""
        return self.setdefault(token, _FIRST_ID + len(self))

    def __missing__(self, token: str) -> int:
        return self.get(token)

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str)

    def __bool__(self) -> bool:
        return True
