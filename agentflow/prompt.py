"""Prompts: a conversation, through the model's chat template, to token ids. Pure, but for the date that templates use.

**Rendering.** `ChatTemplate` compiles a Jinja template as Hugging Face's are meant to be, in a sandbox, and hands the
messages over in the form that such templates expect. The template is the operator's; messages and tools are data in
it. A template that knows no tools gets them written into the system prompt in Hermes' style, and calls and results into
turns that it does know.

**Encoding.** Content may hold the text of a control token (`<|im_end|>`), which must not end the user's turn.
`ChatEncoder` replaces each such text in the caller's strings, and each piece at a string's edge that could become one
together with its surroundings, by a placeholder that nobody can guess; renders; puts the texts back, keeping account
of where they lie; and has the tokenizer spell them with ordinary tokens (see tokenizer.py). Everything else is encoded
just as the rendered text is, so that a harmless conversation has the ids that the model was trained on.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentflow.errors import EngineStartFailed, InvalidRequest
from agentflow.messages import Message, Tool, ToolCall
from agentflow.parsing import vllmshapes
from agentflow.tokenizer import Span, Tokenizer

_Masking = Callable[[Any], Any]

_PYTHONIC = re.compile(r"\[func(?:tion)?(?:_name)?_?1\(")
"""Where a template shows the model what a list of calls looks like: `[func_name1(params_name1=params_value1, ...)]`."""

_TOOLS_SECTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def detect_tool_format(template: str) -> str:
    """How a model with this chat template writes its calls (see ModelConfig); "none" when the template does not tell."""
    if (others := vllmshapes.detect(template)) is not None:
        return others
    if "<tool_call>" in template:
        # Some put XML into Hermes' tags.
        return "none" if "<function=" in template or "<arg_key>" in template else "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if _PYTHONIC.search(template):
        return "pythonic"
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return "llama3"
    return "none"


class ChatTemplate:
    """A compiled chat template.

    `tool_format` is how the model is told to write calls: the template's own way, or Hermes' where the template
    knows no tools. Raises EngineStartFailed for a template that does not compile.
    """

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
            variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise EngineStartFailed(f"the chat template does not compile: {error}") from error
        self._specials = dict(specials)
        self._knows_developer = "developer" in source
        self._knows_tools = "tools" in variables
        self.tool_format = detect_tool_format(source) if self._knows_tools else "hermes"

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model reads it. Raises InvalidRequest where the template refuses the messages."""
        return self.render_values(
            [_message_value(message, _unmasked) for message in messages],
            [_tool_value(tool, _unmasked) for tool in tools],
            add_generation_prompt=add_generation_prompt,
        )

    def render_values(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """As `render`, with messages and tools in the form that templates take."""
        try:
            if not self._knows_tools:
                messages = _in_hermes_style(messages, tools)
            if not self._knows_developer:
                messages = [_as_system(message) for message in messages]
            return self._template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._specials,
            )
        except Exception as error:  # a template can raise anything that Python can
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {error}", param="messages"
            ) from error


class ChatEncoder:
    """Conversations to token ids for one model: its tokenizer, with its chat template or one that replaces it.

    A model without a template can be built, and refuses conversations.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        source = tokenizer.chat_template if template is None else template
        self._tokenizer = tokenizer
        self._template = None if source is None else ChatTemplate(source, tokenizer.specials)
        self._controls = _ControlTexts(tokenizer.control_tokens)

    @property
    def tool_format(self) -> str:
        """As ChatTemplate.tool_format."""
        return "none" if self._template is None else self._template.tool_format

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of the rendered conversation; no control token comes from a string of the caller's.

        Takes about a second for a megabyte of content. Raises InvalidRequest.
        """
        if self._template is None:
            raise InvalidRequest(
                "the model has no chat template: use completions, or configure `chat_template`", param="model"
            )
        mask = _Mask(self._controls)
        try:
            message_values = [_message_value(message, mask) for message in messages]
            tool_values = [_tool_value(tool, mask) for tool in tools]
        except RecursionError as error:
            raise InvalidRequest("the tools or the arguments of calls are nested too deeply", param="tools") from error
        rendered = self._template.render_values(
            message_values, tool_values, add_generation_prompt=add_generation_prompt
        )
        return self._tokenizer.encode_guarded(*mask.restore(rendered))

    def turn_end(self) -> str:
        """What the template writes behind an assistant's words: the end token's text, mostly, and a line feed.

        Raises InvalidRequest where the template does not show the words as they are.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template", param="model")
        words = secrets.token_hex(16)
        turns = [Message("user", "Hello."), Message("assistant", words)]
        _, found, end = self._template.render(turns, add_generation_prompt=False).partition(words)
        if not found:
            raise InvalidRequest("the model's chat template hides what an assistant said", param="messages")
        return end

    def encode_after(
        self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool] = (), *, end: str = ""
    ) -> list[int]:
        """Token ids of `end`, of the turns `new` alone as they stand behind `history`, and of the next answer's beginning.

        `end` is what is left of the last turn's end. Raises InvalidRequest, also where the template renders the history in
        another way once the new turns follow it.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template", param="model")
        mask = _Mask(self._controls)
        tool_values = [_tool_value(tool, mask) for tool in tools]
        before = [_message_value(message, mask) for message in history]
        after = [*before, *(_message_value(message, mask) for message in new)]
        rendered = self._template.render_values(before, tool_values, add_generation_prompt=False)
        whole = self._template.render_values(after, tool_values, add_generation_prompt=True)
        if not whole.startswith(rendered):
            raise InvalidRequest("the model's chat template changes what went before", param="messages")
        return self._tokenizer.encode_guarded(*mask.restore(end + whole[len(rendered) :]))


class _ControlTexts:
    """Finds what could become a control token in a text: whole ones anywhere, and parts of one at the edges."""

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._heads = {text[:size] for text in longest_first for size in range(1, len(text))}
        self._tails = {text[size:] for text in longest_first for size in range(1, len(text))}
        self._longest = max(map(len, longest_first), default=0)

    def find(self, text: str, *, edges: bool = True) -> list[Span]:
        """Spans to guard, in order and disjoint. Space around the text is ignored, for templates strip it."""
        if self._whole is None:
            return []
        spans = [match.span() for match in self._whole.finditer(text)]
        if not edges:
            return spans
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        if tail := self._longest_part(text[first : min(last, first + self._longest)], self._tails, at_end=False):
            spans = [(first, first + tail), *(span for span in spans if span[0] >= first + tail)]
        free_from = spans[-1][1] if spans else first
        if head := self._longest_part(text[max(free_from, last - self._longest) : last], self._heads, at_end=True):
            spans.append((last - head, last))
        return spans

    def _longest_part(self, piece: str, parts: set[str], *, at_end: bool) -> int:
        """Length of the longest of `parts` that the piece begins or ends with."""
        sizes = range(len(piece), 0, -1)
        return next((size for size in sizes if (piece[-size:] if at_end else piece[:size]) in parts), 0)


class _Mask:
    """Placeholders of one rendering and the texts that they stand for."""

    def __init__(self, controls: _ControlTexts) -> None:
        self._controls = controls
        # Letters and digits alone, so that no filter or JSON encoding of a template changes it.
        self._nonce = f"q{secrets.token_hex(16)}q"
        self._texts: list[str] = []

    def __call__(self, value: Any) -> Any:
        """A copy of a JSON value with all its strings masked; keys only where they hold a whole control token."""
        if isinstance(value, str):
            return self._masked_text(value, edges=True)
        if isinstance(value, dict):
            return {self._masked_text(key, edges=False): self(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        return value

    def restore(self, rendered: str) -> tuple[str, list[Span]]:
        """The rendered text with the texts in their places again, and the places."""
        if not self._texts:
            return rendered, []
        pieces: list[str] = []
        spans: list[Span] = []
        position = end = 0
        for match in re.finditer(f"{self._nonce}([0-9]+)z", rendered):
            text = self._texts[int(match[1])]
            pieces += (rendered[end : match.start()], text)
            position += match.start() - end
            spans.append((position, position + len(text)))
            position += len(text)
            end = match.end()
        pieces.append(rendered[end:])
        return "".join(pieces), spans

    def _masked_text(self, text: str, *, edges: bool) -> str:
        spans = self._controls.find(text, edges=edges)
        if not spans:
            return text
        pieces: list[str] = []
        end = 0
        for start, stop in spans:
            pieces += (text[end:start], f"{self._nonce}{len(self._texts)}z")
            self._texts.append(text[start:stop])
            end = stop
        pieces.append(text[end:])
        return "".join(pieces)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _message_value(message: Message, mask: _Masking) -> dict[str, Any]:
    """A message as templates take it: no None for content, calls with parsed arguments."""
    value: dict[str, Any] = {"role": message.role, "content": mask(message.content or "")}
    if message.name is not None:
        value["name"] = mask(message.name)
    if message.tool_calls:
        value["tool_calls"] = [_call_value(call, mask) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = mask(message.tool_call_id)
    return value


def _call_value(call: ToolCall, mask: _Masking) -> dict[str, Any]:
    """Arguments that are no JSON object stay text: what a model wrote wrongly can still be shown to it."""
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = call.arguments
    return {
        "id": mask(call.id),
        "type": "function",
        "function": {"name": mask(call.name), "arguments": mask(arguments)},
    }


def _tool_value(tool: Tool, mask: _Masking) -> dict[str, Any]:
    function: dict[str, Any] = {"name": mask(tool.name)}
    if tool.description is not None:
        function["description"] = mask(tool.description)
    function["parameters"] = mask(tool.parameters or {"type": "object", "properties": {}})
    return {"type": "function", "function": function}


def _unmasked(value: Any) -> Any:
    return value


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _in_hermes_style(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools, calls and results as text, for a template that knows none of them."""
    written = [_hermes_turn(message) for message in messages]
    if not tools:
        return written
    section = _TOOLS_SECTION.format(signatures="\n".join(_to_json(tool) for tool in tools))
    if written and written[0]["role"] in {"system", "developer"}:
        first = written[0]
        return [{**first, "content": f"{first['content']}\n\n{section}"}, *written[1:]]
    return [{"role": "system", "content": section}, *written]


def _hermes_turn(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = [f"<tool_call>\n{_to_json(call['function'])}\n</tool_call>" for call in message["tool_calls"]]
    return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes for HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
