"""What arguments mean that are not quite what a schema asks for. Pure.

A text that is written like a number, a flag, a list or an object is read as one where that is asked for; a number as a text;
one value as a list of it; a field that is null and may not be, as left out. Whether the whole then passes is the caller's to see.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from jsonschema import ValidationError

from agentflow.tools.faults import path_of, shown

_INTEGER: Final = re.compile(r"[+-]?\d{1,18}(\.0+)?", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", re.ASCII)
_MISSING: Final = object()


def mend(values: dict[str, Any], fault: ValidationError) -> str | None:
    """Put what is meant in the place of what is written, and say so; or None."""
    around: Any = values
    *steps, last = fault.absolute_path or (None,)
    try:
        for step in steps:
            around = around[step]
        if around[last] is not fault.instance:  # an earlier change has it
            return None
    except (KeyError, IndexError, TypeError):
        return None
    value = around[last]
    if value is None and isinstance(around, dict):
        del around[last]
        return f"{path_of(fault)}: null, left out"
    for kind in _kinds(fault):
        meant = _read_as(value, kind)
        if meant is not _MISSING:
            around[last] = meant
            return f"{path_of(fault)}: {shown(value)} read as {shown(meant)}"
    return None


def _kinds(fault: ValidationError) -> list[str]:
    """Types that the place asks for; of alternatives, those of each."""
    faults = [fault, *(fault.context or ())] if fault.validator in {"anyOf", "oneOf"} else [fault]
    here = len(fault.absolute_path)
    kinds: list[str] = []
    for each in faults:
        if each.validator == "type" and len(each.absolute_path) == here:
            wanted: Any = each.validator_value
            kinds += [wanted] if isinstance(wanted, str) else wanted
    return kinds


def _read_as(value: Any, kind: str) -> Any:
    """A value as a type that it is not, or _MISSING."""
    text = value.strip() if isinstance(value, str) else None
    match kind:
        case "integer" if text is not None and _INTEGER.fullmatch(text):
            return int(text.partition(".")[0])
        case "number" if text is not None and _NUMBER.fullmatch(text):
            number = float(text)
            return number if math.isfinite(number) else _MISSING
        case "boolean" if text is not None and text.lower() in {"true", "false"}:
            return text.lower() == "true"
        case "string" if isinstance(value, int | float) and not isinstance(value, bool):
            return json.dumps(value)
        case "array" | "object":
            return _read_structure(value, text, kind)
    return _MISSING


def _read_structure(value: Any, text: str | None, kind: str) -> Any:
    wanted = list if kind == "array" else dict
    if text is not None and text.startswith("[" if kind == "array" else "{"):
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            read = None
        if isinstance(read, wanted):
            return read
    return [value] if kind == "array" and not isinstance(value, list) else _MISSING
