"""OpenAPI: the operations of a document of version 3, as the model sees them and as they are asked for. Pure.

An operation's parameters (path, query, header) and the fields of its JSON body become the properties of one schema. Where a
field has a parameter's name, or the body is no object with known fields, the whole body is the property `body`. A `$ref` is
replaced by what it leads to in the document; nothing is fetched. Where it leads into itself it is cut: there anything may be.

What a document says of servers, secrets and cookies is not used: the configuration says where to and with which headers.
An operation that cannot be called is left out, with the reason: its body must be in a form that is not written here, or a cookie.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from agentflow.tools.errors import InvalidTool

METHODS: Final = ("get", "head", "put", "delete", "post", "patch")
IDEMPOTENT: Final = frozenset({"get", "head", "put", "delete"})
BODY: Final = "body"

_MOST_NODES: Final = 20_000
"""Values of one operation's schema, once every $ref is replaced: references multiply."""
_DEEPEST: Final = 32
_DESCRIPTION: Final = 1024
_RESERVED: Final = frozenset(
    {"accept", "authorization", "connection", "content-length", "content-type", "cookie", "expect", "forwarded", "host"}
    | {"keep-alive", "origin", "referer", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "via"}
)
"""Headers that a model does not write."""
_DROPPED: Final = frozenset({"discriminator", "xml", "externalDocs", "example", "examples", "deprecated"})
_FROM_USER: Final = "x-from-user"
"""Where a text's words come from: the one extension that agents know."""
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names, and not keywords."""
_DATA: Final = ("enum", "const", "default", "required")
_TEMPLATE: Final = re.compile(r"\{([^{}]+)\}")
_PATH: Final = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:@%/{}-]*")

Where = Literal["path", "query", "header"]


class Parameter(Struct, frozen=True):
    """One of an operation's. `explode`, `style`: how lists and objects are written, as OpenAPI has it."""

    name: str
    where: Where
    style: str
    explode: bool


class Operation(Struct, frozen=True, kw_only=True):
    """Something that the API does. `path` has `{name}` where a parameter goes.

    `body`: the fields of the JSON body, or (`body`,) for all of it under that name (`whole_body`); () for none.
    """

    name: str
    description: str
    schema: dict[str, Any]
    method: str
    path: str
    parameters: tuple[Parameter, ...]
    body: tuple[str, ...] = ()
    whole_body: bool = False
    media_type: str = "application/json"

    @property
    def idempotent(self) -> bool:
        """Whether asking twice is as asking once, as HTTP has it."""
        return self.method in IDEMPOTENT


class Document(Struct, frozen=True):
    """The operations that can be called, and why others cannot, by name."""

    operations: tuple[Operation, ...]
    left_out: dict[str, str]


class _Unusable(Exception):
    """The operation cannot be called. Reads on from its name."""


def read(document: Any, names: Collection[str] = (), taken_headers: Collection[str] = ()) -> Document:
    """The operations of these names (operationId), or all where none are named.

    `taken_headers`: those that the configuration sets, which are nobody's to write. Raises InvalidTool where it is no such
    document, an operation that is named is not there or cannot be called, or two have one name.
    """
    version = str(document.get("openapi", "")) if isinstance(document, Mapping) else ""
    if not version.startswith("3."):
        raise InvalidTool(f"It is no OpenAPI document of version 3 (openapi: {version[:20]!r}).")
    paths = document.get("paths", {})
    if not isinstance(paths, dict):
        raise InvalidTool("The OpenAPI document's `paths` are none.")
    reader = _Reader(document, frozenset(header.lower() for header in taken_headers) | _RESERVED)
    found: dict[str, Operation] = {}
    left_out: dict[str, str] = {}
    for name, path, method, shared, item in _operations(reader, paths):
        if names and name not in names:
            continue
        if name in found or name in left_out:
            raise InvalidTool(f"Two operations of the OpenAPI document are called {name}.")
        try:
            found[name] = reader.operation(name, path, method, shared, item)
        except _Unusable as error:
            left_out[name] = str(error)
    for name in names:
        if name in left_out:
            raise InvalidTool(f"The operation {name} of the OpenAPI document {left_out[name]}.")
        if name not in found:
            raise InvalidTool(f"The OpenAPI document has no operation {name[:64]!r}.")
    return Document(tuple(found.values()), left_out)


def _operations(reader: _Reader, paths: dict[Any, Any]) -> Iterator[tuple[str, str, str, list[Any], dict[str, Any]]]:
    for path, written in paths.items():
        item = reader.followed(written)
        if not isinstance(path, str) or not isinstance(item, dict):
            raise InvalidTool("A path of the OpenAPI document is no object.")
        shared = item.get("parameters") or []
        for method in METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                identity = operation.get("operationId") or f"{method}{path}"
                yield _name(str(identity)), path, method, shared if isinstance(shared, list) else [], operation


def _name(identity: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", identity).strip("_")[:64] or "operation"


class _Reader:
    """Reads the parts of one document."""

    def __init__(self, document: Any, reserved: frozenset[str]) -> None:
        self._document = document
        self._reserved = reserved
        self._nodes = 0

    # Operations

    def operation(self, name: str, path: str, method: str, shared: list[Any], item: dict[str, Any]) -> Operation:
        """Raises _Unusable."""
        self._nodes = 0
        if not _PATH.fullmatch(path):
            raise _Unusable(f"has the path {path[:100]!r}, which cannot be asked for")
        properties: dict[str, Any] = {}
        required: list[str] = []
        parameters = self._parameters(shared, item.get("parameters") or [], properties, required)
        missing = set(_TEMPLATE.findall(path)) ^ {each.name for each in parameters if each.where == "path"}
        if missing:
            raise _Unusable(f"has a path whose parameters do not fit it: {', '.join(sorted(missing))[:100]}")
        body, whole, media_type = self._body(item, properties, required)
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        return Operation(
            name=name,
            description=_described(item),
            schema=schema,
            method=method,
            path=path,
            parameters=parameters,
            body=body,
            whole_body=whole,
            media_type=media_type,
        )

    def _parameters(
        self, shared: list[Any], own: Any, properties: dict[str, Any], required: list[str]
    ) -> tuple[Parameter, ...]:
        written: dict[tuple[str, str], dict[str, Any]] = {}
        for each in [*shared, *(own if isinstance(own, list) else [])]:
            part = self.followed(each)
            if not isinstance(part, dict) or not isinstance(part.get("name"), str):
                raise _Unusable("has a parameter without a name")
            written[part["name"], str(part.get("in"))] = part  # its own override those of the path
        found = []
        for (name, where), part in written.items():
            if where not in ("path", "query", "header") or (where == "header" and name.lower() in self._reserved):
                if part.get("required") and where == "cookie":
                    raise _Unusable("needs a cookie")
                continue
            if name in properties:
                raise _Unusable(f"has two parameters called {name[:64]!r}")
            properties[name] = self._parameter_schema(part)
            if part.get("required") or where == "path":
                required.append(name)
            style = str(part.get("style") or ("form" if where == "query" else "simple"))
            found.append(Parameter(name, where, style, bool(part.get("explode", style in ("form", "deepObject")))))  # type: ignore[arg-type]
        return tuple(found)

    def _parameter_schema(self, part: dict[str, Any]) -> Any:
        if "schema" not in part and isinstance(part.get("content"), dict):
            raise _Unusable("has a parameter that is JSON within a URL")
        schema = self.expanded(part.get("schema", {}))
        return _with_description(schema, part.get("description"))

    def _body(
        self, item: dict[str, Any], properties: dict[str, Any], required: list[str]
    ) -> tuple[tuple[str, ...], bool, str]:
        body = self.followed(item.get("requestBody"))
        if not isinstance(body, dict):
            return (), False, ""
        content = body.get("content")
        forms = content if isinstance(content, dict) else {}
        media_type = next((form for form in forms if _is_json(form)), None)
        if media_type is None:
            if body.get("required"):
                raise _Unusable(f"takes a body that is no JSON ({', '.join(map(str, forms))[:100]})")
            return (), False, ""
        form = forms[media_type]
        schema = self.expanded(form.get("schema", {}) if isinstance(form, dict) else {})
        fields = schema.get("properties") if isinstance(schema, dict) else None
        mergeable = (
            isinstance(fields, dict)
            and fields
            and schema.get("type", "object") == "object"
            and schema.get("additionalProperties") in (None, False)
            and not schema.keys() & {"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties"}
            and not fields.keys() & properties.keys()
        )
        if mergeable:
            assert isinstance(fields, dict)
            properties |= fields
            if body.get("required"):  # an optional body may be left out as a whole: then so may its fields
                required += [name for name in schema.get("required", ()) if name in fields]
            return tuple(fields), False, media_type
        if BODY in properties:
            raise _Unusable("has a parameter called 'body' beside its body")
        properties[BODY] = _with_description(schema, body.get("description"))
        if body.get("required"):
            required.append(BODY)
        return (BODY,), True, media_type

    # References

    def followed(self, part: Any) -> Any:
        """What it is, or what its `$ref` leads to in the end. Raises _Unusable."""
        for _ in range(_DEEPEST):
            if not isinstance(part, dict) or not isinstance(part.get("$ref"), str):
                return part
            part = self._resolved(part["$ref"])
        raise _Unusable("has a $ref that leads in a circle")

    def _resolved(self, reference: str) -> Any:
        if reference != "#" and not reference.startswith("#/"):
            raise _Unusable(f"refers to {reference[:100]!r} outside of the document, which is not fetched")
        at: Any = self._document
        for step in reference[2:].split("/") if reference != "#" else ():
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and key in at:
                at = at[key]
            elif isinstance(at, list) and key.isdigit() and int(key) < len(at):
                at = at[int(key)]
            else:
                raise _Unusable(f"refers to {reference[:100]!r}, which the document does not have")
        return at

    def expanded(self, part: Any, open_references: tuple[str, ...] = (), depth: int = 0) -> Any:
        """A schema with its references replaced, as JSON Schema 2020-12 has it. Raises _Unusable."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise _Unusable("has a schema that is too large")
        if not isinstance(part, dict):
            return part if isinstance(part, bool) else {}
        reference = part.get("$ref")
        if isinstance(reference, str):
            if reference in open_references or depth > _DEEPEST:
                return {}  # it leads into itself: there anything may be
            target = self.expanded(self._resolved(reference), (*open_references, reference), depth + 1)
            return _with_description(target, part.get("description"))
        if depth > _DEEPEST:
            return {}
        return _in_2020(
            {key: self._keyword(key, value, open_references, depth) for key, value in part.items() if _kept(key)}
        )

    def _keyword(self, key: str, value: Any, references: tuple[str, ...], depth: int) -> Any:
        if key in _DATA:
            return value
        if key in _BY_NAME and isinstance(value, dict):
            if key == "properties":
                value = {name: each for name, each in value.items() if not _is_read_only(each)}
            return {name: self.expanded(each, references, depth + 1) for name, each in value.items()}
        if isinstance(value, list):
            return [
                self.expanded(each, references, depth + 1) if isinstance(each, dict | bool) else each for each in value
            ]
        return self.expanded(value, references, depth + 1) if isinstance(value, dict) else value


def _kept(key: str) -> bool:
    return (key == _FROM_USER or not key.startswith("x-")) and key not in _DROPPED


def _is_read_only(part: Any) -> bool:
    return isinstance(part, dict) and part.get("readOnly") is True


def _in_2020(schema: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 says in its own way: null, and bounds that are left out."""
    for bound, keyword in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(exclusive := schema.get(keyword), bool):
            del schema[keyword]
            if exclusive and bound in schema:
                schema[keyword] = schema.pop(bound)
    if schema.pop("nullable", False) is True and isinstance(kind := schema.get("type"), str):
        schema["type"] = [kind, "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    if isinstance(properties := schema.get("properties"), dict) and isinstance(schema.get("required"), list):
        schema["required"] = [name for name in schema["required"] if name in properties]
    return schema


def _with_description(schema: Any, description: Any) -> Any:
    if isinstance(description, str) and description.strip() and isinstance(schema, dict):
        return schema | {"description": description.strip()[:_DESCRIPTION]}
    return schema


def _described(item: dict[str, Any]) -> str:
    parts = [item.get("summary"), item.get("description")]
    texts = list(dict.fromkeys(part.strip() for part in parts if isinstance(part, str) and part.strip()))
    return "\n".join(texts)[:_DESCRIPTION]


def _is_json(media_type: Any) -> bool:
    name = str(media_type).partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))
