"""Remains: what of a document can still be judged when some of it is wrong. Pure.

What is wrong is taken out, a field or else the section that cannot be without it, until the rest is a configuration. It is for
looking only, and never served: fields that were taken out have their defaults in it, so what hangs on them says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import msgspec

from acu.config.contradictions import contradictions, unfit_texts
from acu.config.fields import Problem, check, lies_in
from acu.config.sections import AcuConfig

_TABLES = frozenset({"agents", "models"})
_SIZES = frozenset({"data_plane", "gpu", "models", "numa", "scheduler"})
"""The sections that together say what fits this machine."""


def remains(document: dict[str, Any], broken: Iterable[str]) -> tuple[AcuConfig, list[Problem]]:
    """What is left without the values at the dotted paths of `broken`, and the contradictions in it that do not hang on them."""
    rest = copy.deepcopy(document)
    paths = list(broken)
    found: list[Problem] | None = None
    for path in paths:
        _take_out(rest, path)
    while True:
        wrong = unfit_texts(rest) or check(rest, AcuConfig)
        if not wrong:
            config = msgspec.convert(rest, AcuConfig)
            wrong = contradictions(config)
            if found is None:
                found = [problem for problem in wrong if not _may_follow(problem.path, paths)]
            if not wrong:
                return config, found
        if not any(_take_out(rest, problem.path) for problem in wrong):
            rest.clear()
        paths += [problem.path for problem in wrong]


def hangs(field: str, broken: Iterable[str]) -> bool:
    """Whether what a start would say of a field may be only because other values of the configuration are wrong."""
    sections = {path.partition(".")[0] for path in broken}
    if field in _SIZES and sections & _SIZES:
        return True
    if field.startswith("agents.") and sections & {"models", "tools"}:
        return True
    return any(path == field or lies_in(path, field) or lies_in(field, path) for path in broken)


def _may_follow(path: str, broken: Iterable[str]) -> bool:
    """Whether a contradiction may be there only because of what was taken out: of the same model, agent or section."""
    units = {_unit(each) for each in broken}
    return _unit(path) in units or (path.startswith("agents.") and any(unit.startswith("models") for unit in units))


def _unit(path: str) -> str:
    parts = path.split(".")
    return ".".join(parts[:2]) if parts[0] in _TABLES else parts[0]


def _take_out(section: dict[str, Any], path: str, at: str = "") -> bool:
    """Remove what lies at a dotted path, or the innermost section that should have it. Whether anything was removed."""
    for key, value in section.items():
        here = f"{at}.{key}" if at else str(key)
        if path == here or lies_in(path, here):
            if not (isinstance(value, dict) and path != here and _take_out(value, path, here)):
                del section[key]
            return True
    return False
