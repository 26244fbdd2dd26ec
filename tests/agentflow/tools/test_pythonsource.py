"""Where Python tools come from, before any of it is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentflow.tools.pythonsource import PythonSource, allowed_environment, installed_sources


def test_installed_packages_offer_tools_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "offering-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[acu.tools]\nweather = offering.weather:forecast\nsun = offering.sun\n")
    monkeypatch.syspath_prepend(tmp_path)
    offered = [source.module for source in installed_sources()]
    assert {"offering.sun", "offering.weather:forecast"} <= set(offered)
    assert "offering" not in sys.modules


def test_a_worker_gets_what_is_named_of_the_environment_and_no_more() -> None:
    environment = {"PATH": "/bin", "HOME": "/root", "TOKEN": "secret", "RATE": "3"}
    source = PythonSource(module="m", environment=("RATE", "UNSET"))
    assert allowed_environment(source, environment) == {"PATH": "/bin", "HOME": "/root", "RATE": "3"}


def test_a_file_is_named_so_that_a_process_elsewhere_finds_it() -> None:
    assert PythonSource(module="some/tools.py:one").place == f"{Path.cwd()}/some/tools.py:one"
    assert PythonSource(module="package.module:one").place == "package.module:one"
