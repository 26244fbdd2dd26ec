"""Toolmodule: the import of a module of Python tools. In a worker, or in the daemon if it is trusted.

A module is named as Python does (`package.module`) or by its file (`tools.py`); `:function` after it takes that one alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from agentflow.tools.errors import InvalidTool
from agentflow.tools.function import Function, functions_of


def load_functions(name: str, folders: tuple[str, ...] = ()) -> dict[str, Function]:
    """Import a module, and find its tools. Runs its code. Raises InvalidTool."""
    path, _, only = name.partition(":")
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        module = _from_file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except InvalidTool:
        raise
    except (Exception, SystemExit) as error:  # sys.exit() at the end of a script, too
        raise InvalidTool(_why(path, error)) from error
    return functions_of(module, only or None)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidTool(f"{path}: there is no such file: correct the path of the tools' module.")
    path = path.resolve()
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)  # behind Python's own: a file beside it replaces no module of others
    loaded = sys.modules.get(path.stem)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem if loaded is None else f"acu_tools_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and annotations look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _why(name: str, error: BaseException) -> str:
    where, reason = _where(name, error), f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        return f"{where}: there is no module {error.name!r}: install it for {sys.executable}, or correct the name."
    if isinstance(error, SyntaxError):
        return f"{where}: {type(error).__name__}: {error.msg}: correct it."
    return f"{where}: {reason[:400]}: correct what fails when the module is imported."


def _where(name: str, error: BaseException) -> str:
    """File and line of the author's code that failed: the deepest frame that is not Python's or a package's own."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[:1] != "<"]
    own = [frame for frame in frames if not frame.filename.startswith((sys.base_prefix, sys.prefix, str(_HERE)))]
    own = own or [frame for frame in frames if not frame.filename.startswith((str(_HERE), _IMPORTLIB))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else name


_HERE: Final = Path(__file__).resolve().parent
_IMPORTLIB: Final = str(Path(importlib.__file__).parent)
