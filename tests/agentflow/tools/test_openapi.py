"""OpenAPI documents: what of them becomes tools."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.tools.errors import InvalidTool
from agentflow.tools.openapi import Operation, read


def document(paths: dict[str, Any], **components: Any) -> dict[str, Any]:
    return {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": paths, "components": components}


def only(item: dict[str, Any], path: str = "/x", method: str = "post", **components: Any) -> Operation:
    (operation,) = read(document({path: {method: {"operationId": "op"} | item}}, **components)).operations
    return operation


def body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def test_parameters_and_the_body_become_one_schema() -> None:
    paths = {
        "/cities/{city}/notes": {
            "parameters": [
                {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Which."},
                {"name": "days", "in": "query", "schema": {"type": "integer"}},
            ],
            "post": {
                "operationId": "add note",
                "summary": "Adds a note.",
                "description": "It is kept.",
                "parameters": [
                    {"$ref": "#/components/parameters/Days"},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "X-Key", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                ],
                **body({"$ref": "#/components/schemas/Note"}),
            },
        }
    }
    note = {
        "type": "object",
        "required": ["text", "id"],
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "text": {"type": "string", "example": "hello", "x-internal": 1},
            "mood": {"type": "string", "nullable": True, "enum": ["good", "bad"]},
            "rank": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        },
    }
    days = {"name": "days", "in": "query", "required": True, "schema": {"type": "integer", "maximum": 9}}
    found = read(document(paths, schemas={"Note": note}, parameters={"Days": days}), taken_headers=["x-key"])
    (operation,) = found.operations
    assert found.left_out == {}
    assert (operation.name, operation.method, operation.idempotent) == ("add_note", "post", False)
    assert operation.description == "Adds a note.\nIt is kept."
    assert operation.body == ("text", "mood", "rank")
    assert operation.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Which."},
            "days": {"type": "integer", "maximum": 9},
            "X-Trace": {"type": "string"},
            "text": {"type": "string"},
            "mood": {"type": ["string", "null"], "enum": ["good", "bad", None]},
            "rank": {"type": "integer", "exclusiveMinimum": 0},
        },
        "additionalProperties": False,
        "required": ["city", "days", "text"],
    }


@pytest.mark.parametrize(
    ("method", "idempotent"),
    [("get", True), ("head", True), ("put", True), ("delete", True), ("post", False), ("patch", False)],
)
def test_methods_are_idempotent_as_http_has_it(method: str, idempotent: bool) -> None:
    assert only({}, method=method).idempotent is idempotent


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"q": {"type": "string"}}},  # a parameter has that name
    ],
)
def test_a_body_that_cannot_be_merged_is_one_field(schema: dict[str, Any]) -> None:
    query = {"parameters": [{"name": "q", "in": "query", "schema": {"type": "string"}}]}
    operation = only(query | body(schema))
    assert operation.whole_body
    assert operation.schema["properties"] == {"q": {"type": "string"}, "body": schema}
    assert operation.schema["required"] == ["body"]


def test_names_that_are_keywords_elsewhere_stay() -> None:
    schema = {"type": "object", "properties": {"example": {"type": "string"}, "x-y": {}, "$ref": {"type": "string"}}}
    assert set(only(body(schema)).schema["properties"]) == {"example", "x-y", "$ref"}


def test_the_extension_that_says_where_words_come_from_stays_and_others_go() -> None:
    item = {"type": "string", "x-from-user": "words", "x-internal": 1}
    parameters = [{"name": "item", "in": "path", "required": True, "schema": item}]
    operation = only({"parameters": parameters}, path="/stock/{item}", method="get")
    assert operation.schema["properties"]["item"] == {"type": "string", "x-from-user": "words"}


def test_a_reference_into_itself_is_cut() -> None:
    tree = {"type": "object", "properties": {"up": {"$ref": "#/components/schemas/Tree"}, "n": {"type": "integer"}}}
    operation = only(body({"$ref": "#/components/schemas/Tree"}), schemas={"Tree": tree})
    assert operation.schema["properties"] == {"up": {}, "n": {"type": "integer"}}


def test_references_that_multiply_are_refused() -> None:
    schemas: dict[str, Any] = {
        f"S{i}": {"properties": {f"p{j}": {"$ref": f"#/components/schemas/S{i + 1}"} for j in range(9)}}
        for i in range(9)
    }
    schemas["S9"] = {"type": "string"}
    found = read(
        document({"/x": {"post": {"operationId": "op"} | body({"$ref": "#/components/schemas/S0"})}}, schemas=schemas)
    )
    assert found.left_out == {"op": "has a schema that is too large"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"parameters": [{"name": "c", "in": "cookie", "required": True}]}, "needs a cookie"),
        ({"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}, "no JSON"),
        (body({"$ref": "http://elsewhere/schema"}), "not fetched"),
        (body({"$ref": "other.yaml#/A"}), "not fetched"),
        (body({"$ref": "#/components/schemas/None"}), "does not have"),
        ({"parameters": [{"$ref": "#/components/parameters/Loop"}]}, "circle"),
        ({"parameters": [{"in": "query"}]}, "without a name"),
        ({"parameters": ["x"]}, "without a name"),
        ({"parameters": [{"name": "a", "in": "path", "required": True}]}, "do not fit"),
        ({"parameters": [{"name": "a", "in": "query"}, {"name": "a", "in": "header"}]}, "two parameters"),
        ({"parameters": [{"name": "a", "in": "query", "content": {"application/json": {}}}]}, "JSON within a URL"),
    ],
)
def test_what_cannot_be_called_is_left_out_or_refused_if_it_is_named(item: dict[str, Any], reason: str) -> None:
    whole = document(
        {"/x": {"post": {"operationId": "bad"} | item, "get": {"operationId": "good"}}},
        parameters={"Loop": {"$ref": "#/components/parameters/Loop"}},
    )
    found = read(whole)
    assert [operation.name for operation in found.operations] == ["good"]
    assert reason in found.left_out["bad"]
    assert [operation.name for operation in read(whole, ["good"]).operations] == ["good"]
    with pytest.raises(InvalidTool, match="The operation bad of the OpenAPI document"):
        read(whole, ["bad"])


@pytest.mark.parametrize("path", ["x", "//host/x", "/x?y", "/x y", "/x#y", "/x\ny", "/é"])
def test_a_path_that_is_none_is_left_out(path: str) -> None:
    assert read(document({path: {"get": {"operationId": "op"}}})).operations == ()


@pytest.mark.parametrize(
    "whole",
    [
        {},
        [],
        None,
        "openapi: 3",
        {"swagger": "2.0"},
        {"openapi": "2.0"},
        {"openapi": "3.1.0", "paths": []},
        {"openapi": "3.1.0", "paths": {"/x": 1}},
    ],
)
def test_what_is_no_document_is_refused(whole: Any) -> None:
    with pytest.raises(InvalidTool):
        read(whole)


def test_names_are_told_apart() -> None:
    twice = document({"/a": {"get": {"operationId": "a b"}}, "/b": {"get": {"operationId": "a_b"}}})
    with pytest.raises(InvalidTool, match="Two operations"):
        read(twice)
    with pytest.raises(InvalidTool, match="no operation 'missing'"):
        read(document({"/a": {"get": {}}}), ["missing"])
    (unnamed,) = read(document({"/a/{b}": {"get": {"parameters": [{"name": "b", "in": "path"}]}}})).operations
    assert unnamed.name == "get_a_b"
