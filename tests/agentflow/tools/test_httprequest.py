"""A call of an operation, as it is written: whatever the model gives stays in its place."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.tools.errors import InvalidArguments
from agentflow.tools.httprequest import WrittenRequest, written
from agentflow.tools.openapi import Operation, read


def operation(parameters: list[dict[str, Any]], path: str = "/x", body: dict[str, Any] | None = None) -> Operation:
    item: dict[str, Any] = {"operationId": "op", "parameters": parameters}
    if body is not None:
        item["requestBody"] = body
    (found,) = read({"openapi": "3.1.0", "paths": {path: {"post": item}}}).operations
    return found


def query(value: Any, **how: Any) -> str:
    return written(operation([{"name": "q", "in": "query", **how}]), {"q": value}).target


def segment(value: Any) -> str:
    return written(operation([{"name": "a", "in": "path"}], "/v/{a}/w"), {"a": value}).target


@pytest.mark.parametrize(
    ("value", "how", "target"),
    [
        ("a b&c=d#e/é", {}, "/x?q=a%20b%26c%3Dd%23e%2F%C3%A9"),
        (True, {}, "/x?q=true"),
        (3.0, {}, "/x?q=3"),
        (0.5, {}, "/x?q=0.5"),
        ("", {}, "/x?q="),
        (None, {}, "/x"),
        (["a", "b,c"], {}, "/x?q=a&q=b%2Cc"),
        (["a", "b,c"], {"explode": False}, "/x?q=a,b%2Cc"),
        (["a", "b"], {"explode": False, "style": "pipeDelimited"}, "/x?q=a%7Cb"),
        (["a", "b"], {"explode": False, "style": "spaceDelimited"}, "/x?q=a%20b"),
        ([], {}, "/x"),
        ({"r": 1, "g&": "x"}, {}, "/x?r=1&g%26=x"),
        ({"r": 1}, {"explode": False}, "/x?q=r,1"),
        ({"r": 1}, {"style": "deepObject"}, "/x?q%5Br%5D=1"),
    ],
)
def test_a_query_is_written_as_openapi_has_it(value: Any, how: dict[str, Any], target: str) -> None:
    assert query(value, **how) == target


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("a/b", "/v/a%2Fb/w"),
        ("a?b#c;d", "/v/a%3Fb%23c%3Bd/w"),
        ("%2e%2e", "/v/%252e%252e/w"),
        ("..a", "/v/..a/w"),
        ("a.b", "/v/a.b/w"),
        (7, "/v/7/w"),
        (["a", "b"], "/v/a,b/w"),
        ({"k": "v"}, "/v/k,v/w"),
        ("{a}", "/v/%7Ba%7D/w"),
    ],
)
def test_a_path_parameter_is_one_segment(value: Any, target: str) -> None:
    assert segment(value) == target


@pytest.mark.parametrize("value", ["", ".", "..", "../admin", "a/../b", "..\\admin", "a/..", "..;/x", "..?", None, []])
def test_a_path_parameter_leads_nowhere_else(value: Any) -> None:
    with pytest.raises(InvalidArguments):
        segment(value)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "", " a", "é", "a\0", "\x7f"])
def test_a_header_is_one_line(value: str) -> None:
    header = operation([{"name": "X-A", "in": "header"}])
    assert written(header, {"X-A": "plain text"}).headers == {"X-A": "plain text"}
    assert written(header, {"X-A": ["a", 1]}).headers == {"X-A": "a,1"}
    with pytest.raises(InvalidArguments, match="X-A must be one line"):
        written(header, {"X-A": value})


def test_a_body_is_json_of_its_fields_or_all_of_it() -> None:
    fields = {"schema": {"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}}}
    merged = operation([{"name": "q", "in": "query"}], body={"required": True, "content": {"application/json": fields}})
    assert written(merged, {"a": "é", "q": 1}) == WrittenRequest(
        "POST", "/x?q=1", {"Content-Type": "application/json"}, '{"a":"é"}'.encode()
    )
    optional = operation([], body={"content": {"application/vnd.x+json": fields}})
    assert written(optional, {}) == WrittenRequest("POST", "/x", {}, None)
    assert written(optional, {"b": None}).body == b'{"b":null}'
    assert written(optional, {"b": 1}).headers == {"Content-Type": "application/vnd.x+json"}
    whole = operation([], body={"content": {"application/json": {"schema": {"type": "array"}}}})
    assert written(whole, {"body": [1, {"a": 2}]}).body == b'[1,{"a":2}]'
    assert written(whole, {}).body is None


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="cannot be sent"):
        query("\ud800")
    with pytest.raises(InvalidArguments, match="16,40"):
        query("x" * 16_400)
