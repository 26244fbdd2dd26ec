"""A call of an OpenAPI operation as an HTTP request. Pure.

Whatever the model gives stays in its place: a path parameter is one segment, a header one line. Text within a URL is
percent-encoded, all but letters, digits and `-._~`.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from agentflow.tools.errors import InvalidArguments
from agentflow.tools.openapi import BODY, Operation, Parameter

_LONGEST_TARGET: Final = 16_384
_HEADER: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_DOTS: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:$|[/\\;?#])")
_BETWEEN: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


class WrittenRequest(NamedTuple):
    """`target`: path and query, behind the API's own URL. `body`: None for none."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None


def written(operation: Operation, arguments: dict[str, Any]) -> WrittenRequest:
    """Arguments that fit the operation's schema. Raises InvalidArguments."""
    path = operation.path
    query: list[str] = []
    headers: dict[str, str] = {}
    for parameter in operation.parameters:
        value = arguments.get(parameter.name)
        if parameter.where == "path":
            path = path.replace(f"{{{parameter.name}}}", _segment(parameter, value))
        elif value is None:
            continue
        elif parameter.where == "query":
            query += _pairs(parameter, value)
        else:
            headers[parameter.name] = _header(parameter, value)
    body = _body(operation, arguments)
    if body is not None:
        headers["Content-Type"] = operation.media_type
    target = path + ("?" + "&".join(query) if query else "")
    if len(target) > _LONGEST_TARGET:
        raise InvalidArguments(f"The arguments make an address of {len(target):,} characters: give less.")
    return WrittenRequest(operation.method.upper(), target, headers, body)


def _segment(parameter: Parameter, value: Any) -> str:
    text = _simple(parameter, value, quoted=False)
    if not text:
        raise InvalidArguments(f"{parameter.name} must not be empty.")
    if _DOTS.search(text):
        raise InvalidArguments(f"{parameter.name} must not lead to another folder, as . and .. do.")
    return _simple(parameter, value, quoted=True)


def _simple(parameter: Parameter, value: Any, *, quoted: bool) -> str:
    """Style `simple`: a,b and k,v or, exploded, k=v."""
    encode = _quoted if quoted else _text
    if isinstance(value, list):
        return ",".join(map(encode, value))
    if isinstance(value, dict):
        between = "=" if parameter.explode else ","
        return ",".join(f"{encode(key)}{between}{encode(each)}" for key, each in value.items())
    return encode(value)


def _pairs(parameter: Parameter, value: Any) -> list[str]:
    name = _quoted(parameter.name)
    if isinstance(value, dict):
        if parameter.style == "deepObject":
            return [f"{name}%5B{_quoted(key)}%5D={_quoted(each)}" for key, each in value.items()]
        if parameter.explode:
            return [f"{_quoted(key)}={_quoted(each)}" for key, each in value.items()]
        return [f"{name}=" + ",".join(f"{_quoted(key)},{_quoted(each)}" for key, each in value.items())]
    if isinstance(value, list):
        if parameter.explode:
            return [f"{name}={_quoted(each)}" for each in value]
        return [f"{name}=" + _BETWEEN.get(parameter.style, ",").join(map(_quoted, value))]
    return [f"{name}={_quoted(value)}"]


def _header(parameter: Parameter, value: Any) -> str:
    text = _simple(parameter, value, quoted=False)
    if not _HEADER.fullmatch(text):
        raise InvalidArguments(f"{parameter.name} must be one line of plain ASCII text: it goes into a header.")
    return text


def _body(operation: Operation, arguments: dict[str, Any]) -> bytes | None:
    if operation.whole_body:
        return _json(arguments[BODY]) if BODY in arguments else None
    fields = {name: arguments[name] for name in operation.body if name in arguments}
    needed = any(name in operation.schema.get("required", ()) for name in operation.body)
    return _json(fields) if fields or needed else None


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:  # half a surrogate pair, say
        raise InvalidArguments("The arguments have a text in them that cannot be sent.") from error


def _quoted(value: Any) -> str:
    try:
        return quote(_text(value), safe="")
    except UnicodeEncodeError as error:
        raise InvalidArguments("The arguments have a text in them that cannot be sent.") from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return _json(value).decode()
