"""What a line of arithmetic comes to. Pure, and bounded: an answer, or a refusal, comes at once whatever is written.

Numbers, `+ - * / // % **`, brackets, and the functions and constants below. What Python's parser gets to see is short, its
brackets nest little, and all its words are known, so that there is nothing else in it. The tree is walked without recursion.
A whole number never has more than 4096 bits, and no power is taken that would.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

Number = int | float

MAX_LENGTH: Final = 500
MAX_NESTING: Final = 50
MAX_BITS: Final = 4096
_MAX_DIGITS: Final = 100
"""To which may be rounded."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))|(?P<name>[a-zA-Z_]\w*)|(?P<sign>\*\*|//|[-+*/%(),]))",
    re.ASCII,
)


class Unanswerable(Exception):
    """The expression is wrong, or its value is none. A sentence."""


def _rounded(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > _MAX_DIGITS:
        raise Unanswerable(f"round takes up to {_MAX_DIGITS} digits.")
    return round(value, digits) if digits else round(value)


def _raised(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and int(base).bit_length() * int(exponent) > 2 * MAX_BITS:
        raise Unanswerable("The result is too large.")
    value: Any = base**exponent
    if isinstance(value, complex):
        raise Unanswerable("The result is not a real number.")
    return value  # type: ignore[no-any-return]


_FUNCTIONS: Final[MappingProxyType[str, Callable[..., Any]]] = MappingProxyType(
    {
        "sqrt": math.sqrt,
        "sin": math.sin,
        "cos": math.cos,
        "tan": math.tan,
        "log": math.log,
        "exp": math.exp,
        "abs": abs,
        "round": _rounded,
        "min": lambda *values: min(values),
        "max": lambda *values: max(values),
    }
)
_CONSTANTS: Final = MappingProxyType({"pi": math.pi, "e": math.e})
_BINARY: Final[MappingProxyType[type[ast.operator], Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: _raised,
    }
)
_UNARY: Final[MappingProxyType[type[ast.unaryop], Callable[[Any], Any]]] = MappingProxyType(
    {ast.UAdd: operator.pos, ast.USub: operator.neg}
)


def answer(expression: str) -> str:
    """The value, as text; of a number that is not whole, 15 digits. Raises Unanswerable."""
    value = _value(_tree(expression))
    return str(value) if isinstance(value, int) else format(value, ".15g")


def _tree(expression: str) -> ast.expr:
    _check(expression)
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Unanswerable("The expression is incomplete or wrong. An example: (2 + 3) * sqrt(16) / 4") from error


def _check(expression: str) -> None:
    if not expression.strip():
        raise Unanswerable("The expression is empty. An example: (2 + 3) * 4")
    if len(expression) > MAX_LENGTH:
        raise Unanswerable(f"The expression is longer than {MAX_LENGTH} characters.")
    place = depth = 0
    text = expression.rstrip()
    while place < len(text):
        if (token := _TOKEN.match(text, place)) is None:
            raise Unanswerable(_strange(text[place:].lstrip()))
        name = token["name"]
        if name is not None and name not in _FUNCTIONS and name not in _CONSTANTS:
            known = ", ".join((*_FUNCTIONS, *_CONSTANTS))
            raise Unanswerable(f"{name[:32]!r} is unknown. Known: {known}.")
        depth += {"(": 1, ")": -1}.get(token["sign"] or "", 0)
        if depth > MAX_NESTING:
            raise Unanswerable(f"The brackets nest more than {MAX_NESTING} deep.")
        place = token.end()


def _strange(rest: str) -> str:
    if rest.startswith("^"):
        return "Write ** for a power, not ^."
    return f"{rest[:16]!r} cannot be read. Use numbers, + - * / // % **, brackets and functions."


def _value(tree: ast.expr) -> Number:
    """Bottom up: each node is met twice, and combines, the second time, what its parts left on the stack."""
    pending: list[tuple[ast.expr, bool]] = [(tree, False)]
    values: list[Number] = []
    while pending:
        node, ready = pending.pop()
        parts = _parts(node)
        if parts and not ready:
            pending.append((node, True))
            pending += [(part, False) for part in reversed(parts)]
            continue
        given = values[len(values) - len(parts) :]
        del values[len(values) - len(parts) :]
        values.append(_combined(node, given))
    return values[0]


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Call(func=ast.Name(), args=args, keywords=[]) if args:
            return args
        case ast.Constant() | ast.Name():
            return []
    raise Unanswerable("Only numbers, + - * / // % **, brackets and functions can be used; write 1000, not 1,000.")


def _combined(node: ast.expr, given: list[Number]) -> Number:
    try:
        value = _applied(node, given)
    except ZeroDivisionError as error:
        raise Unanswerable("That divides by zero.") from error
    except OverflowError as error:
        raise Unanswerable("The result is too large.") from error
    except ValueError as error:
        raise Unanswerable("A function is asked for a number for which it has no value.") from error
    except TypeError as error:
        raise Unanswerable("A function has too many or too few arguments, or a wrong one.") from error
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise Unanswerable("The result is too large.")
    elif not math.isfinite(value):
        raise Unanswerable("The result is too large.")
    return value


def _applied(node: ast.expr, given: list[Number]) -> Number:
    value: Any
    match node:
        case ast.BinOp(op=op):
            value = _BINARY[type(op)](*given)
        case ast.UnaryOp(op=sign):
            value = _UNARY[type(sign)](*given)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            value = _FUNCTIONS[name](*given)
        case ast.Name(id=name) if name in _CONSTANTS:
            value = _CONSTANTS[name]
        case ast.Constant(value=value):
            pass
        case _:
            raise Unanswerable("A function needs its brackets, and a constant has none: sqrt(2), pi.")
    return value  # type: ignore[no-any-return]
