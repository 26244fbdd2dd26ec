"""Function: a Python function that a model can call, and `@tool`, which makes one.

    @tool(idempotent=True, timeout_s=5)
    def convert(amount: float, to: Annotated[str, "Three letters, such as EUR"] = "EUR") -> dict[str, float]:
        \"\"\"Convert an amount of US dollars.\"\"\"

The decorated function stays what it was, to be called and tested as before. Its schema is made when its module has been
imported, so that annotations may name what stands further down. The name, the description and the schema come from the
function's name, docstring and annotations; each keyword of ToolOptions says one thing in another way.

A parameter whose annotation is `Context` (context.py) gets the call's, and is no part of the schema.
"""

from __future__ import annotations

import inspect
import re
import reprlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct

from agentflow.nearest import nearest
from agentflow.tools.context import Context
from agentflow.tools.docstring import read_docstring
from agentflow.tools.errors import InvalidArguments, InvalidTool
from agentflow.tools.parameter import Inexpressible, Parameter, schemas
from agentflow.tools.tool import ToolSpec

_MARK: Final = "__agent_tool__"
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"

F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(TypedDict, total=False):
    """What `@tool` takes, each of which may be left out.

    `name`: letters, digits, `_` and `-` (else the function's). `description`: what the model reads (else the docstring's).
    `idempotent` (False): a call may be made twice; only then is a failed one tried again, `retries` (1) times.
    `timeout_s` (30): seconds of one try. `concurrency` (8): calls at a time. `result_bytes` (8192): what the model reads.
    `fresh_for_s` (None): seconds after which a result is too old to be used again. `approval` (False): a person must allow
    each call. `examples` and `aliases`: questions that it answers and other names of it, by which it is found. `trusted`
    (False): it may run in the daemon, if its configuration agrees.
    """

    name: str
    description: str
    idempotent: bool
    timeout_s: float
    retries: int
    concurrency: int
    fresh_for_s: float | None
    result_bytes: int
    approval: bool
    examples: tuple[str, ...] | list[str]
    aliases: tuple[str, ...] | list[str]
    trusted: bool


class _Checked(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ToolOptions with their bounds."""

    name: typing.Annotated[str, msgspec.Meta(pattern=_NAME)]
    description: str = ""
    idempotent: bool = False
    timeout_s: typing.Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    retries: typing.Annotated[int, msgspec.Meta(ge=0, le=10)] = 1
    concurrency: typing.Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    fresh_for_s: typing.Annotated[float, msgspec.Meta(gt=0)] | None = None
    result_bytes: typing.Annotated[int, msgspec.Meta(ge=1)] = 8192
    approval: bool = False
    examples: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    trusted: bool = False


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Mark a plain or async function as a tool; see ToolOptions."""

    def mark(marked: F) -> F:
        if not isinstance(marked, FunctionType):
            raise TypeError(f"@tool stands over a function, not over {marked!r}: move it there")
        setattr(marked, _MARK, dict(options))
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True)
class Function:
    """A function with all that is needed to call it with a model's arguments. `contexts`: parameters that take the Context."""

    spec: ToolSpec
    trusted: bool
    code: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    contexts: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.code)

    def arguments(self, given: dict[str, Any], context: Context) -> dict[str, Any]:
        """Keyword arguments for `code`. May read files. Raises InvalidArguments, OSError."""
        ready: dict[str, Any] = dict.fromkeys(self.contexts, context)
        for parameter in self.parameters:
            if parameter.name in given:
                ready[parameter.name] = parameter.value(given[parameter.name])
            elif parameter.required:
                raise InvalidArguments(f"The argument {parameter.name!r} is missing.")
        return ready


def functions_of(module: ModuleType, only: str | None = None) -> dict[str, Function]:
    """Every decorated function in a module, by its tool's name, or the one that the module calls `only`.

    Raises InvalidTool for what is no tool, for two of one name, and where there is none.
    """
    functions: dict[str, Function] = {}
    seen: list[FunctionType] = []
    for attribute, value in vars(module).items():
        if only not in (None, attribute) or not isinstance(value, FunctionType) or not hasattr(value, _MARK):
            continue
        if value in seen:  # under two names
            continue
        seen.append(value)
        function = _made(value)
        if function.spec.name in functions:
            raise InvalidTool(f"{_place(value)}: there are two tools {function.spec.name!r}: rename one of them.")
        functions[function.spec.name] = function
    if not functions:
        wanted = "a function" if only is None else f"the function {only}"
        place = getattr(module, "__file__", None) or module.__name__
        raise InvalidTool(f"{place}: no tool was found: write @tool over {wanted}.")
    return functions


def _made(code: FunctionType) -> Function:
    where = _place(code)
    doc = read_docstring(inspect.getdoc(code) or "")
    options = _options({"name": code.__name__, "description": doc.summary, **getattr(code, _MARK)}, where)
    try:
        parameters, contexts = _parameters(code)
        told, defs = schemas(parameters)
    except Inexpressible as error:
        raise InvalidTool(f"{where}: {error}.") from error
    defaults = inspect.signature(code).parameters
    properties = {
        parameter.name: _with_words(schema, doc.parameters.get(parameter.name), defaults[parameter.name].default)
        for parameter, schema in zip(parameters, told, strict=True)
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }
    fields = {name: getattr(options, name) for name in _Checked.__struct_fields__ if name != "trusted"}
    spec = ToolSpec(**fields, parameters=schema | ({"$defs": defs} if defs else {}))
    return Function(spec, options.trusted, code, tuple(parameters), tuple(contexts))


def _options(given: dict[str, Any], where: str) -> _Checked:
    """Raises InvalidTool, with the option that is wrong."""
    known = _Checked.__struct_fields__
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
            raise InvalidTool(f"{where}: @tool has no option {name!r}: {hint}")
    try:
        return msgspec.convert(given, _Checked)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$.")
        name = re.split(r"\W", path, maxsplit=1)[0]
        value = f"{name}={reprlib.repr(given[name])}: " if name in given else ""
        raise InvalidTool(f"{where}: @tool: {value}{said[:1].lower()}{said[1:]}: correct it.") from error


def _parameters(code: FunctionType) -> tuple[list[Parameter], list[str]]:
    """What the model gives, and the names of what takes the Context."""
    try:
        hints = typing.get_type_hints(code, include_extras=True)
    except Exception as error:
        raise Inexpressible(
            f"an annotation cannot be read ({error}): import what it names, outside TYPE_CHECKING"
        ) from error
    parameters, contexts = [], []
    for name, parameter in inspect.signature(code).parameters.items():
        if parameter.kind not in _NAMED:
            raise Inexpressible(f"parameter {parameter} has no name that a model can give: write each parameter out")
        if name not in hints:
            raise Inexpressible(f"parameter {name!r} has no annotation: write what it is, such as {name}: str")
        made = Parameter(name, hints[name], parameter.default is inspect.Parameter.empty)
        if made.takes_context:
            contexts.append(name)
        else:
            parameters.append(made)
    return parameters, contexts


def _with_words(schema: dict[str, Any], text: str | None, default: Any) -> dict[str, Any]:
    """The schema with what the docstring says, where the annotation says nothing, and with the default."""
    if text and "description" not in schema:
        schema = {**schema, "description": text}
    if default is inspect.Parameter.empty:
        return schema
    try:
        return {**schema, "default": msgspec.json.decode(msgspec.json.encode(default))}
    except (TypeError, ValueError, RecursionError):
        return schema  # a default that has no JSON is not told


def _place(code: FunctionType) -> str:
    return f"{Path(code.__code__.co_filename).name}, line {code.__code__.co_firstlineno}, {code.__name__}"
