"""The fields of frozen configuration structs: checking plain values against them, and describing them. Pure.

`check` finds every problem of a document, where msgspec alone would stop at the first; `fields_of` lists every field
with its type, default and description, from which the reference is written.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from agentflow.nearest import nearest

LONGEST_VALUE = 60  # characters of an offending value that a message repeats
OTHER_NAMES = {
    **dict.fromkeys(("port", "host", "address", "listen"), ("bind_addr", " (ADDRESS:PORT)")),
    **dict.fromkeys(("socket", "sock", "socket_path"), ("unix_socket", "")),
    **dict.fromkeys(("keys", "api_key", "api_keys"), ("api_keys_file", "")),
}
"""What fields are often called elsewhere: the field, and the form of its value."""


class Problem(Struct, frozen=True):
    """What is wrong, and where: a dotted path, or the name of a variable."""

    path: str
    message: str

    def text(self, origins: dict[str, str]) -> str:
        """One line, with the file's line or the variable that the value came from."""
        below = (of for known, of in origins.items() if lies_in(known, self.path))  # a variable has no section
        above = origins.get(self.path.rpartition(".")[0])  # of what is not there
        origin = origins.get(self.path) or next(below, None) or above
        return f"{self.path}: {self.message}" + (f" ({origin})" if origin and origin != self.path else "")


def lies_in(path: str, section: str) -> bool:
    """Whether a dotted path leads to something below another, be that a section or a list."""
    return path.startswith((f"{section}.", f"{section}["))


class Field(Struct, frozen=True):
    """One field, for the reference. `type` and `default` are text for people."""

    path: str
    type: str
    default: str
    description: str


def check(value: Any, kind: Any, path: str = "") -> list[Problem]:
    """Every problem of `value`, which should be a `kind`."""
    plain = strip(kind)
    if isinstance(plain, type) and issubclass(plain, Struct):
        return check_struct(value, plain, path)
    if get_origin(plain) is dict and is_struct(get_args(plain)[1]):
        return check_table(value, plain, path)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        listed = as_list(value, kind)
        return [Problem(path, f"{shown(value)}: expected {f'a list; write {listed}' if listed else type_text(kind)}")]
    return []


def as_list(value: Any, kind: Any) -> str | None:
    """How a text would be written where a list with it is meant; None if it is not that."""
    if not isinstance(value, str):
        return None
    try:
        msgspec.convert([value], kind)
    except msgspec.ValidationError:
        return None
    return f"[{value}]" if value.replace("_", "").isalnum() else f"[{msgspec.json.encode(value).decode()}]"


def check_struct(value: Any, kind: type[Struct], path: str) -> list[Problem]:
    """Problems of a section: unknown keys (with the nearest known one), lacking keys, and those of its fields."""
    if not isinstance(value, dict):
        return [Problem(path, f"{shown(value)}: expected a section with keys {', '.join(hints(kind))}")]
    known = hints(kind)
    found: list[Problem] = []
    for key, inner in value.items():
        inner_path = f"{path}.{key}" if path else str(key)
        if key not in known:
            found.append(Problem(inner_path, f"unknown key{hint(str(key), known)}"))
        else:
            found += check(inner, known[key], inner_path)
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            what = description_of(known[field.name]).removesuffix(".")
            found.append(Problem(f"{path}.{field.name}", f"is required{f': {what}' if what else ''}"))
    return found or contradiction(value, kind, path)


def contradiction(value: dict[str, Any], kind: type[Struct], path: str) -> list[Problem]:
    """What a section itself says of values that are each well-typed, and do not go together."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [Problem(path, str(error).rpartition(" - at `")[0] or str(error))]
    return []


def check_table(value: Any, kind: Any, path: str) -> list[Problem]:
    """Problems of a mapping from names to sections."""
    if not isinstance(value, dict):
        return [Problem(path, f"{shown(value)}: expected a mapping from names to sections")]
    key_kind, item_kind = get_args(kind)
    found: list[Problem] = []
    for key, item in value.items():
        found += check(key, key_kind, f"{path}.{key}")
        found += check(item, item_kind, f"{path}.{key}")
    return found


def hints(kind: type[Struct]) -> dict[str, Any]:
    """Field name -> type with its annotations, in the order of declaration."""
    every = typing.get_type_hints(kind, include_extras=True)
    return {field.name: every[field.name] for field in msgspec.structs.fields(kind)}


def strip(kind: Any) -> Any:
    """The type without `Annotated`."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind


def is_struct(kind: Any) -> bool:
    """Whether the type is a section."""
    plain = strip(kind)
    return isinstance(plain, type) and issubclass(plain, Struct)


def has_fields(kind: Any) -> bool:
    """Whether the type is a section, or a mapping from names to sections."""
    plain = strip(kind)
    return is_struct(plain) or (get_origin(plain) is dict and is_struct(get_args(plain)[1]))


def hint(key: str, known: dict[str, Any]) -> str:
    """The hint that names the known key most like `key`, or lists them all."""
    other, form = OTHER_NAMES.get(key.lower(), ("", ""))
    if other in known:
        return f"; did you mean {other}{form}?"
    near = nearest(key, known)
    return f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"


def shown(value: Any) -> str:
    """The value as a message repeats it."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def fields_of(kind: type[Struct], path: str = "") -> Iterator[Field]:
    """Every field below a struct, depth first, its own plain ones before its sections; `NAME` is the key of a table."""
    types_of = hints(kind)
    for field in sorted(msgspec.structs.fields(kind), key=lambda field: has_fields(types_of[field.name])):
        annotated = types_of[field.name]
        inner = f"{path}.{field.name}" if path else field.name
        plain = strip(annotated)
        description = description_of(annotated)
        if is_struct(plain):
            yield Field(inner, "section", "", description or (plain.__doc__ or "").strip())
            yield from fields_of(plain, inner)
        elif get_origin(plain) is dict and is_struct(get_args(plain)[1]):
            yield Field(inner, "sections by name", "", description)
            yield from fields_of(strip(get_args(plain)[1]), f"{inner}.NAME")
        else:
            yield Field(inner, type_text(annotated), default_text(field), description)


def description_of(kind: Any) -> str:
    """The description that the type's outermost annotation with one carries."""
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((meta.description for meta in reversed(metas) if meta.description), "")


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """The default as it would be written in YAML, or `required`."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value).decode()


def type_text(kind: Any) -> str:
    """A type for people: `integer 1..4096 or null`."""
    bounds = ""
    while get_origin(kind) is Annotated:
        bounds = bounds or next((text for meta in kind.__metadata__ if (text := bounds_text(meta))), "")
        kind = get_args(kind)[0]
    if get_origin(kind) in {typing.Union, types.UnionType}:
        members = sorted(get_args(kind), key=lambda member: member is type(None))
        names = [type_text(member) for member in members]
        return " or ".join([names[0] + bounds, *names[1:]])
    if get_origin(kind) is typing.Literal:
        return " / ".join(str(value) for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {type_text(get_args(kind)[0])}"
    names_of = {str: "text", int: "integer", float: "number", bool: "true / false", type(None): "null", dict: "mapping"}
    return names_of.get(get_origin(kind) or kind, str(kind)) + bounds


def bounds_text(meta: Any) -> str:
    """The bounds of a number or the form of a text, with a leading space; empty when there are none."""
    if meta.pattern is not None:
        return f" of the form {meta.pattern}"
    low, high, above = meta.ge, meta.le, meta.gt
    if low is not None and high is not None:
        return f" {low}..{high}"
    if above is not None and high is not None:
        return f" above {above}, up to {high}"
    if low is not None:
        return f" {low} or more"
    return ""
