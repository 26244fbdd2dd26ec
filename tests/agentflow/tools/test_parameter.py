"""Parameters of Python functions: their schemas, and what becomes of what a model gives."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from agentflow.tools.blob import Blob
from agentflow.tools.errors import InvalidArguments
from agentflow.tools.parameter import Inexpressible, Parameter, schemas


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Point(msgspec.Struct):
    x: int
    colour: Colour = Colour.RED


class Tree(msgspec.Struct):
    children: list[Tree]


@dataclasses.dataclass
class Sheet:
    source: Blob
    page: int = 1


class Row(TypedDict):
    n: int


def schema(kind: Any) -> dict[str, Any]:
    (told,), defs = schemas([Parameter("p", kind)])
    assert defs == {}
    return told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (bytes, {"type": "string"}),
        (Any, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - people write it
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Colour, {"title": "Colour", "enum": ["b", "r"]}),
        (Annotated[str, 7, "A name."], {"type": "string", "description": "A name."}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Row, {"title": "Row", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    ],
)
def test_annotations_become_schemas(kind: Any, told: dict[str, Any]) -> None:
    assert schema(kind) == told


def test_what_a_type_refers_to_is_put_in_its_place() -> None:
    told = schema(list[Point])
    assert told["items"]["properties"] == {
        "x": {"type": "integer"},
        "colour": {"title": "Colour", "enum": ["b", "r"], "default": "r"},
    }


def test_a_type_that_contains_itself_keeps_its_reference() -> None:
    (told,), defs = schemas([Parameter("p", Tree)])
    assert told == {"$ref": "#/$defs/Tree"}
    assert defs["Tree"]["properties"] == {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}


def test_a_blob_is_told_as_a_handle() -> None:
    assert schema(Blob)["type"] == "string"
    assert "handle" in schema(Blob)["description"]


@pytest.mark.parametrize("kind", [complex, object, str | Blob, Point | Row, type])
def test_what_has_no_schema_is_refused_with_the_parameters_name(kind: Any) -> None:
    with pytest.raises(Inexpressible, match="parameter 'p' cannot be told to a model .*annotate it with"):
        schemas([Parameter("a", int), Parameter("p", kind)])


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, 3.0, 3),
        (float, 3, 3.0),
        (list[int], [1.0, 2], [1, 2]),
        (Point, {"x": 2.0, "colour": "b"}, Point(2, Colour.BLUE)),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Row, {"n": 1}, {"n": 1}),
        (bytes, "é", "é".encode()),
        (Any, {"a": [1]}, {"a": [1]}),
        (Annotated[int | None, "x"], None, None),
    ],
)
def test_json_becomes_what_the_annotation_says(kind: Any, given: Any, value: Any) -> None:
    ready = Parameter("p", kind).value(given)
    assert ready == value
    assert type(ready) is type(value)


@pytest.mark.parametrize(
    ("kind", "given"), [(int, 3.5), (int, "3"), (Colour, "x"), (Point, {}), (Blob, "text"), (Blob, 1)]
)
def test_what_does_not_fit_names_the_argument(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidArguments, match="'p'"):
        Parameter("p", kind).value(given)


def test_content_becomes_what_the_annotation_says(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_text('{"x": 2, "colour": "b"}')
    blob = Blob(path, "application/json")
    assert Parameter("p", Blob).value(blob) is blob
    assert Parameter("p", Blob | None).value(blob) is blob
    assert Parameter("p", list[Blob]).value([blob]) == [blob]
    assert Parameter("p", str | None).value(blob) == '{"x": 2, "colour": "b"}'
    assert Parameter("p", bytes).value(blob) == b'{"x": 2, "colour": "b"}'
    assert Parameter("p", Point).value(blob) == Point(2, Colour.BLUE)
    assert Parameter("p", dict[str, Any]).value(blob) == {"x": 2, "colour": "b"}
    assert Parameter("p", Any).value(blob) == {"x": 2, "colour": "b"}
    assert Parameter("p", Any).value(Blob(path, "text/plain")) == '{"x": 2, "colour": "b"}'
    assert Parameter("p", Sheet).value({"source": blob}) == Sheet(blob)
    assert Parameter("p", list[str]).value([blob, "a"]) == ['{"x": 2, "colour": "b"}', "a"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 10_000])
def test_content_that_does_not_fit_names_the_argument(tmp_path: Path, text: str) -> None:
    path = tmp_path / "content"
    path.write_text(text)
    with pytest.raises(InvalidArguments, match="'p' is wrong in the content"):
        Parameter("p", Point).value(Blob(path))
