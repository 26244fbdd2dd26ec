"""Modules of Python tools: found by name or file, and told clearly when they cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.tools.errors import InvalidTool
from agentflow.tools.toolmodule import load_functions

TOOL = "from agentflow.tools.function import tool\n\n@tool\ndef {name}() -> str:\n    return '{name}'\n"


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_is_imported_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text(TOOL.format(name="beside"))
    (tmp_path / "my_tools.py").write_text("from beside_it import beside\n" + TOOL.format(name="mine"))
    assert list(load_functions(str(tmp_path / "my_tools.py"))) == ["beside", "mine"]
    assert list(load_functions(f"{tmp_path}/my_tools.py:mine")) == ["mine"]


def test_a_file_that_is_named_like_a_module_of_pythons_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(TOOL.format(name="mine"))
    import json

    assert list(load_functions(str(tmp_path / "json.py"))) == ["mine"]
    assert sys.modules["json"] is json


def test_a_module_is_found_in_a_further_folder(tmp_path: Path) -> None:
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "inner.py").write_text(TOOL.format(name="inner"))
    assert list(load_functions("a_package.inner", (str(tmp_path),))) == ["inner"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\nimport no_such_thing\n", r"bad.py, line 2: there is no module 'no_such_thing': install it for "),
        ("x = 1\ny = 2\nz = (\n", r"bad.py, line 3: SyntaxError: .*: correct it"),
        ("def f():\n    raise ValueError('no')\nf()\n", r"bad.py, line 2: ValueError: no: correct what fails when"),
        ("import sys\nsys.exit(2)\n", r"bad.py, line 2: SystemExit: 2: correct what fails when"),
        ("import json\njson.loads('')\n", r"bad.py, line 2: JSONDecodeError: .*: correct what fails when"),
        ("x = 1\n", r"bad.py: no tool was found"),
    ],
)
def test_an_import_that_fails_is_told_with_file_line_and_what_to_do(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(InvalidTool, match=sentence):
        load_functions(str(tmp_path / "bad.py"))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidTool, match="missing.py: there is no such file: correct the path"):
        load_functions(str(tmp_path / "missing.py"))
    with pytest.raises(InvalidTool, match="no_such_package.x: there is no module 'no_such_package'"):
        load_functions("no_such_package.x")
