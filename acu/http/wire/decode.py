"""From a body's bytes to a request struct, with OpenAI's error for whatever is wrong with them.

msgspec checks syntax, types, bounds and unknown fields in one pass and says what it found in a sentence that ends in a
path (`... - at `$.messages[0].role``). `refusal` turns that sentence into a code, a param in OpenAI's manner and a message
for people. What cannot be said in a type (text without NUL characters, JSON of a sane depth) is checked by
`clean_text` and `clean_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from acu.http.errors import BadRequest
from agentflow.nearest import did_you_mean, nearest

T = TypeVar("T", bound=msgspec.Struct)

MAX_JSON_DEPTH = 128
MAX_JSON_NODES = 20_000
LOOKED_THROUGH = 65_536  # bytes of a broken body in which the reason is looked for
MAX_ECHO = 64  # characters of a client's own text that an error message repeats

_AT = " - at `"  # the sentence may be as long as the body, so that it is cut and not matched
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")
_TYPE = re.compile(r"^Expected `(?P<want>[^`]*)`, got `(?P<got>[^`]*)`$")

# What OpenAI takes and ACU does not; what to do instead. Each is a field of type None, so that a null passes.
UNSUPPORTED = {
    "functions": "Use `tools`.",
    "function_call": "Use `tool_choice`.",
    "audio": "Only text is generated.",
    "modalities": "Only text is generated.",
    "moderation": "Moderate with a request of your own.",
    "prediction": "Leave it out.",
    "web_search_options": "Describe a search function in `tools` and run it yourself.",
    "suffix": "The served models do not fill in the middle; put the whole prompt into `prompt`.",
    "best_of": "Use `n`.",
    "guided_json": "Use `structured_outputs: {json: ...}` or `response_format`.",
    "guided_regex": "Use `structured_outputs: {regex: ...}`.",
    "guided_choice": "Use `structured_outputs: {choice: ...}`.",
    "guided_grammar": "Use `structured_outputs: {grammar: ...}`.",
}


class BodyDecoder(Generic[T]):
    """Decodes one kind of body. Immutable and safe to share."""

    def __init__(self, body_type: type[T]) -> None:
        self.body_type = body_type
        self._decoder = msgspec.json.Decoder(body_type)
        self._known = frozenset(_field_names(body_type))

    def decode(self, body: bytes) -> T:
        """The struct, or BadRequest."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise refusal(str(error), self._known) from None
        except msgspec.DecodeError as error:
            raise _malformed(str(error), body) from None
        except RecursionError:
            raise BadRequest("The body is nested too deeply.", code="invalid_json") from None


def refusal(sentence: str, known: Iterable[str]) -> BadRequest:
    """OpenAI's error for a sentence of msgspec's."""
    what, at, path = sentence.rpartition(_AT)
    if not at:
        what, path = sentence, ""
    path = path.removesuffix("`")
    param = path.removeprefix("$").removeprefix(".").replace("[...]", "") or None
    if found := _UNKNOWN.match(what):
        return _unknown_field(found["name"], param, known)
    if found := _MISSING.match(what):
        name = _join(param, found["name"])
        return BadRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if param in UNSUPPORTED:
        return BadRequest(
            f"Unsupported parameter: '{param}'. {UNSUPPORTED[param]}", param=param, code="unsupported_parameter"
        )
    if found := _TYPE.match(what):
        where = f"'{param}'" if param else "the body"
        return BadRequest(
            f"Invalid type for {where}: expected {_plain(found['want'])}, but got {_plain(found['got'])} instead.",
            param=param,
            code="invalid_type",
        )
    where = f" for '{param}'" if param else ""
    what = re.sub("`(\\w+)`", lambda name: _PLAIN.get(name[1], name[1]), _short(what))
    return BadRequest(f"Invalid value{where}: {what[:1].lower()}{what[1:]}.", param=param, code="invalid_value")


def clean_text(text: str, param: str) -> str:
    """`text`, or BadRequest if a NUL character is in it: no tokenizer and no log gains from one."""
    if "\0" in text:
        raise BadRequest(f"Invalid value for '{param}': NUL characters (\\u0000) are not accepted.", param=param)
    return text


def clean_json(value: Any, param: str) -> None:
    """Refuse JSON that is too deep or too large to walk, or whose integers do not fit in 64 bits."""
    level: list[Any] = [value]
    seen = 0
    for _ in range(MAX_JSON_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                clean_text(item, param)
            elif isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise BadRequest(f"Invalid value for '{param}': an integer does not fit in 64 bits.", param=param)
        seen += len(below)
        if seen > MAX_JSON_NODES:
            raise BadRequest(f"Invalid value for '{param}': more than {MAX_JSON_NODES} values.", param=param)
        if not below:
            return
        level = below
    raise BadRequest(f"Invalid value for '{param}': nested deeper than {MAX_JSON_DEPTH} levels.", param=param)


def _malformed(sentence: str, body: bytes) -> BadRequest:
    if not body or body.isspace():
        return BadRequest("The request has no body; a JSON object is expected.", code="invalid_json")
    if "UTF-8" in sentence:
        return BadRequest("The body is not valid UTF-8.", code="invalid_json")
    if "truncated" in sentence and len(body) <= LOOKED_THROUGH and _has_lone_surrogate(body):
        return BadRequest(
            "The body holds a lone surrogate (\\ud800 to \\udfff), which is no character.", code="invalid_json"
        )
    return BadRequest(
        f"The body is not valid JSON: {_short(sentence.removeprefix('JSON is malformed: '))}.", code="invalid_json"
    )


def _has_lone_surrogate(body: bytes) -> bool:
    pairs_out = re.sub(rb"(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", b"", body)
    return re.search(rb"(?i)\\ud[89a-f][0-9a-f]{2}", pairs_out) is not None


def _unknown_field(name: str, param: str | None, known: Iterable[str]) -> BadRequest:
    full = _join(param, _short(name))
    if hint := UNSUPPORTED.get(name):
        return BadRequest(f"Unsupported parameter: '{full}'. {hint}", param=full, code="unsupported_parameter")
    hint = did_you_mean(nearest(name, known))
    return BadRequest(f"Unknown parameter: '{full}'.{hint}", param=full, code="unknown_parameter")


def _field_names(body_type: Any) -> set[str]:
    """Names of all fields of a struct type and of the struct types inside it."""
    names: set[str] = set()
    for info in msgspec.inspect.multi_type_info([body_type]):
        stack: list[Any] = [info]
        visited: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in visited:
                continue
            visited.add(id(node))
            if isinstance(node, msgspec.inspect.StructType):
                names.update(field.encode_name for field in node.fields)
                stack.extend(field.type for field in node.fields)
            elif isinstance(node, msgspec.inspect.UnionType):
                stack.extend(node.types)
            elif isinstance(node, msgspec.inspect.ListType):
                stack.append(node.item_type)
            elif isinstance(node, msgspec.inspect.Metadata):
                stack.append(node.type)
    return names


def _join(param: str | None, name: str) -> str:
    return f"{param}.{name}" if param else name


def _short(text: str) -> str:
    return text if len(text) <= MAX_ECHO * 2 else text[: MAX_ECHO * 2] + "..."


_PLAIN = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _plain(types: str) -> str:
    names = [_PLAIN.get(name.strip(), name.strip()) for name in types.split("|")]
    return " or ".join(name for name in names if name != "null" or len(names) == 1)
