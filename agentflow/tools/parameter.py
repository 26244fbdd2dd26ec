"""Parameter: one parameter of a Python function: its JSON schema, and its value from what the model gave.

A schema is msgspec's for the annotation, with what it refers to put in its place: small models and grammars do better
without `$ref`. Only types that contain themselves keep theirs, under `$defs`.

What stands for a file (a Blob in the arguments) becomes what the annotation asks for: the Blob, its text, its bytes, or
else the JSON that is in it. Reading it blocks. Nothing here knows of daemons and workers; both use it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from agentflow.tools.blob import Blob
from agentflow.tools.context import Context
from agentflow.tools.errors import InvalidArguments

_REF: Final = "#/$defs/"
_HANDLE_TEXT: Final = "A handle, such as h_1f6c0e9a4b7d, of content that a tool gave."


class Inexpressible(TypeError):
    """An annotation has no JSON schema. For whoever builds a tool from it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`type`: the annotation, as `typing.get_type_hints(..., include_extras=True)` gives it."""

    name: str
    type: Any
    required: bool = True

    @property
    def takes_context(self) -> bool:
        """Whether it is the Context, or that or None, and so nothing that a model gives."""
        return set(_kinds(self.type)) in ({Context}, {Context, types.NoneType})

    def value(self, given: Any) -> Any:
        """What the function gets. `given` is JSON with Blobs where handles were. Raises InvalidArguments, OSError."""
        kinds = _kinds(self.type)
        if isinstance(given, Blob) and Blob not in kinds:
            return self._read(given, kinds)
        if isinstance(given, str) and bytes in kinds and str not in kinds:
            return given.encode()
        if not _mentions_blob(self.type):
            given = _inlined(given)
        try:
            return msgspec.convert(given, self.type, str_keys=True, dec_hook=_as_blob)
        except msgspec.ValidationError as error:
            try:  # JSON does not tell 3.0 from 3, and models write either
                return msgspec.convert(_whole(given), self.type, str_keys=True, dec_hook=_as_blob)
            except msgspec.ValidationError:
                raise self._wrong(error) from error

    def _read(self, given: Blob, kinds: tuple[Any, ...]) -> Any:
        if bytes in kinds:
            return given.bytes()
        if str in kinds or (Any in kinds and given.media_type != "application/json"):
            return given.text()
        try:
            return msgspec.json.decode(given.bytes(), type=self.type)
        except (ValueError, RecursionError) as error:
            raise self._wrong(error, " in the content") from error

    def _wrong(self, error: Exception, where: str = "") -> InvalidArguments:
        return InvalidArguments(f"The argument {self.name!r} is wrong{where}: {error}.")


def schemas(parameters: Sequence[Parameter]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A schema for each parameter, and the `$defs` that are left. Raises Inexpressible with the parameter's name."""
    for parameter in parameters:
        _check(parameter)
    try:  # together, so that two types of one name get two names
        found, components = _components([parameter.type for parameter in parameters])
    except TypeError as error:
        raise Inexpressible(str(error)) from error
    left: dict[str, Any] = {}
    told = [
        _described(_without_refs(schema, components, left), parameter)
        for schema, parameter in zip(found, parameters, strict=True)
    ]
    return told, left


def _check(parameter: Parameter) -> None:
    try:
        _components([parameter.type])
    except TypeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise Inexpressible(
            f"parameter {parameter.name!r} cannot be told to a model ({reason}): annotate it with str, int, float, bool, "
            "a list or dict of these, a Literal, an Enum, a dataclass, a TypedDict, a msgspec Struct or a Blob"
        ) from error


def _components(wanted: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(wanted, schema_hook=_blob_schema, ref_template=_REF + "{name}")


def _described(schema: dict[str, Any], parameter: Parameter) -> dict[str, Any]:
    if schema.get("contentEncoding") == "base64":  # models cannot write it; a text's own bytes are meant
        schema = {"type": "string"}
    texts = [extra for extra in getattr(parameter.type, "__metadata__", ()) if isinstance(extra, str)]
    return {**schema, "description": texts[0]} if texts else schema


def _blob_schema(kind: Any) -> dict[str, Any]:
    if kind is Blob:
        return {"type": "string", "description": _HANDLE_TEXT}
    raise NotImplementedError


def _as_blob(kind: Any, given: Any) -> Any:
    if kind is Blob and isinstance(given, Blob):
        return given
    raise ValueError("a handle of content that a tool gave is needed")


def _without_refs(schema: Any, components: dict[str, Any], left: dict[str, Any]) -> Any:
    """The schema with components in the place of references to them; `left` collects those that contain themselves."""
    if isinstance(schema, list):
        return [_without_refs(part, components, left) for part in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return {key: _without_refs(part, components, left) for key, part in schema.items()}
    name = reference.removeprefix(_REF)
    if not _contains_itself(name, components):
        beside = {key: part for key, part in schema.items() if key != "$ref"}
        return {**_without_refs(components[name], components, left), **beside}
    if name not in left:
        left[name] = {}  # before the references to itself that it has are met
        left[name] = _without_refs(components[name], components, left)
    return schema


def _contains_itself(name: str, components: dict[str, Any]) -> bool:
    seen: set[str] = set()
    ahead = _references(components[name])
    while ahead:
        found = ahead.pop()
        if found == name:
            return True
        if found not in seen:
            seen.add(found)
            ahead |= _references(components[found])
    return False


def _references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {name for part in schema for name in _references(part)}
    if not isinstance(schema, dict):
        return set()
    found = {name for part in schema.values() for name in _references(part)}
    if isinstance(reference := schema.get("$ref"), str):
        found.add(reference.removeprefix(_REF))
    return found


def _kinds(kind: Any) -> tuple[Any, ...]:
    """What an annotation may be, without Annotated and Union."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _kinds(get_args(kind)[0])
    if origin is Union or origin is types.UnionType:
        return tuple(inner for part in get_args(kind) for inner in _kinds(part))
    return (kind,)


def _mentions_blob(kind: Any) -> bool:
    if kind is Blob:
        return True
    if isinstance(kind, type) and hasattr(kind, "__annotations__") and kind.__module__ != "builtins":
        try:
            hints = typing.get_type_hints(kind)
        except Exception:  # noqa: BLE001 - names that only a type checker knows; such a type has no schema either
            return False
        return any(part is Blob or Blob in get_args(part) for part in hints.values())
    return any(_mentions_blob(part) for part in get_args(kind))


def _inlined(given: Any) -> Any:
    """Texts in the place of Blobs that lie deeper than the argument itself."""
    if isinstance(given, Blob):
        return given.text()
    if isinstance(given, dict):
        return {key: _inlined(part) for key, part in given.items()}
    if isinstance(given, list):
        return [_inlined(part) for part in given]
    return given


def _whole(given: Any) -> Any:
    """Integers in the place of floats that are whole."""
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if isinstance(given, dict):
        return {key: _whole(part) for key, part in given.items()}
    if isinstance(given, list):
        return [_whole(part) for part in given]
    return given
