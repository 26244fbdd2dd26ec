"""The examples' own modules, as a worker imports them, and their configurations."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from agentflow.tools.toolmodule import load_functions
from tests.acu.running import ROOT

EXAMPLES = ROOT / "examples"


def tools_of(example: str) -> dict[str, Any]:
    """An example's functions by their tools' names."""
    found = load_functions(str(EXAMPLES / example / "tools.py"))
    return {name: function.code for name, function in found.items()}


def module_of(example: str, name: str) -> ModuleType:
    """A module beside an example's tools, which have been loaded."""
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(EXAMPLES / example / f"{name}.py"):
        return loaded
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / example / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def served(example: str, data: Path) -> dict[str, Any]:
    """An example's configuration, with its files' paths written out and data in a folder of the test's."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / example / "acu.yaml").read_text(encoding="utf-8"))
    for source in document["tools"]["python"].values():
        source["module"] = str(EXAMPLES / example / source["module"])
    return document | {"data_plane": {"path": str(data), "hot_layer_mem_mb": 64}}
