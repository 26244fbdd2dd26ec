"""@tool, and the tools that a module has."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from agentflow.tools.context import Context
from agentflow.tools.errors import InvalidArguments, InvalidTool
from agentflow.tools.function import Function, functions_of, tool
from agentflow.tools.tool import ToolSpec

if TYPE_CHECKING:
    from collections import OrderedDict


CONTEXT = Context(tenant="ann", run_id="r", call_id="c", key="r/c", deadline_at=0.0)


def module(**attributes: Any) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(attributes)
    return made


def only(function: Any) -> Function:
    (found,) = functions_of(module(function=function)).values()
    return found


@tool(
    name="conv-1",
    description="Convert.",
    idempotent=True,
    timeout_s=5,
    retries=0,
    concurrency=2,
    fresh_for_s=60,
    result_bytes=100,
    approval=True,
    examples=["what is"],
    aliases=("换",),
    trusted=True,
)
def convert(amount: float, to: str = "EUR", *, rate: float = 1) -> float:
    """Not this.

    Args:
        amount: How much.
        rate: By what.
    """
    return amount * rate


def test_a_decorated_function_stays_a_function() -> None:
    assert convert(2, rate=3) == 6
    assert convert.__name__ == "convert"


def test_keywords_docstring_and_annotations_make_the_spec() -> None:
    function = only(convert)
    assert function.trusted
    assert not function.is_async
    assert function.spec == ToolSpec(
        name="conv-1",
        description="Convert.",
        parameters={
            "type": "object",
            "properties": {
                "amount": {"type": "number", "description": "How much."},
                "to": {"type": "string", "default": "EUR"},
                "rate": {"type": "number", "description": "By what.", "default": 1},
            },
            "required": ["amount"],
            "additionalProperties": False,
        },
        timeout_s=5.0,
        retries=0,
        concurrency=2,
        idempotent=True,
        fresh_for_s=60.0,
        result_bytes=100,
        approval=True,
        examples=("what is",),
        aliases=("换",),
    )


def test_a_bare_decorator_leaves_the_defaults() -> None:
    @tool
    async def nothing() -> None:
        """Do nothing."""

    function = only(nothing)
    assert function.is_async
    assert not function.trusted
    empty: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert function.spec == ToolSpec(name="nothing", description="Do nothing.", parameters=empty)


def test_arguments_are_made_ready_and_defaults_left_alone() -> None:
    function = only(convert)
    assert function.arguments({"amount": 2}, CONTEXT) == {"amount": 2.0}
    with pytest.raises(InvalidArguments, match="'amount' is missing"):
        function.arguments({"to": "USD"}, CONTEXT)


def test_a_parameter_for_the_context_is_filled_and_not_told_to_a_model() -> None:
    def pay(amount: float, context: Context, *, again: Annotated[Context | None, "The same"] = None) -> None:
        """Pay.

        Args:
            amount: How much.
            context: Of the call.
        """

    function = only(tool(pay))
    assert function.spec.parameters == {
        "type": "object",
        "properties": {"amount": {"type": "number", "description": "How much."}},
        "required": ["amount"],
        "additionalProperties": False,
    }
    assert function.arguments({"amount": 2}, CONTEXT) == {"amount": 2.0, "context": CONTEXT, "again": CONTEXT}


def test_a_function_under_two_names_is_one_tool() -> None:
    assert list(functions_of(module(a=convert, b=convert, c=print, d=3))) == ["conv-1"]


def test_one_function_can_be_taken_alone() -> None:
    @tool
    def other() -> None: ...

    assert list(functions_of(module(convert=convert, other=other), "other")) == ["other"]
    with pytest.raises(InvalidTool, match="write @tool over the function third"):
        functions_of(module(convert=convert), "third")


def test_a_module_without_tools_is_refused() -> None:
    with pytest.raises(InvalidTool, match="made: no tool was found: write @tool over a function"):
        functions_of(module(a=print))


def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="conv-1")
    def other() -> None: ...

    with pytest.raises(InvalidTool, match=r"test_function.py, line \d+, other: there are two tools 'conv-1'"):
        functions_of(module(convert=convert, other=other))


def bare(a) -> None: ...  # type: ignore[no-untyped-def]
def stars(*rest: int) -> None: ...
def double(**rest: int) -> None: ...
def positional(a: int, /) -> None: ...
def custom(a: complex) -> None: ...
def unknown(a: OrderedDict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (bare, "parameter 'a' has no annotation: write what it is, such as a: str"),
        (stars, r"parameter \*rest: .* has no name that a model can give"),
        (double, r"parameter \*\*rest: .* has no name that a model can give"),
        (positional, "parameter a: .* has no name that a model can give"),
        (custom, "parameter 'a' cannot be told to a model .*complex"),
        (unknown, "an annotation cannot be read .*OrderedDict.*outside TYPE_CHECKING"),
    ],
)
def test_what_cannot_be_told_to_a_model_is_refused_with_its_place(function: Any, sentence: str) -> None:
    with pytest.raises(InvalidTool, match=rf"test_function.py, line \d+, {function.__name__}: {sentence}"):
        only(tool(function))


@pytest.mark.parametrize("options", [{"name": "no spaces"}, {"timeout_s": 0}, {"retries": -1}, {"examples": "text"}])
def test_options_out_of_bounds_are_refused_with_the_place(options: dict[str, Any]) -> None:
    def function() -> None: ...

    with pytest.raises(InvalidTool, match=r"line \d+, function: @tool: .*: correct it"):
        only(tool(**options)(function))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"aproval": True}, "@tool has no option 'aproval': did you mean approval?"),
        ({"colour": "red"}, "@tool has no option 'colour': there are name, description, idempotent, "),
        ({"approval": "sometimes"}, "@tool: approval='sometimes': expected `bool`, got `str`: correct it."),
        ({"timeout_s": 0}, "@tool: timeout_s=0: expected `float` > 0.0: correct it."),
        ({"aliases": ["a", 2]}, "@tool: aliases=['a', 2]: expected `str`, got `int`: correct it."),
    ],
)
def test_an_option_that_is_wrong_is_told_by_its_name(options: dict[str, Any], told: str) -> None:
    def function() -> None: ...

    with pytest.raises(InvalidTool, match=re.escape(told)):
        only(tool(**options)(function))


def test_only_functions_are_decorated() -> None:
    with pytest.raises(TypeError, match="stands over a function"):
        tool(print)


def test_a_default_without_json_is_not_told() -> None:
    sentinel: Any = object()

    @tool
    def function(a: int = sentinel) -> None: ...

    assert only(function).spec.parameters["properties"] == {"a": {"type": "integer"}}
