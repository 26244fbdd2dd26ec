"""What is wrong is taken out, and what hangs on it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from acu.config.fields import check
from acu.config.remains import hangs, remains
from acu.config.sections import AcuConfig


def left(document: dict[str, Any]) -> tuple[AcuConfig, list[str]]:
    config, found = remains(document, [problem.path for problem in check(document, AcuConfig)])
    return config, [problem.path for problem in found]


def test_fields_are_taken_out_and_sections_only_where_they_need_them() -> None:
    document: dict[str, Any] = {
        "daemon": {"log_levl": "debug", "audit_log": "/a"},
        "models": {"large": {"model": 3, "aliases": ["x"]}, "small": {"model": "m", "max_running": "many"}},
        "tools": {"http": {"shop": {"document": "d", "urls": "u"}}, "installed": False},
        "nonsense": 1,
    }
    config, found = left(document)
    assert config.daemon.audit_log == "/a"
    assert list(config.models) == ["small"]
    assert (config.tools.http, config.tools.installed) == ({}, False)
    assert found == []
    assert document["daemon"]["log_levl"] == "debug", "the document itself stays as it is"


def test_contradictions_of_the_rest_are_found_but_for_those_that_follow() -> None:
    large = {"large": {"model": "m"}}
    assert left({"daemon": 3, "network": {"unix_socket": ""}})[1] == ["network.unix_socket"]
    assert left({"network": {"tls_cert_file": 3, "tls_key_file": "k"}})[1] == []
    assert left({"models": large, "daemon": 3, "agents": {"a": {"model": "x"}}})[1] == ["agents.a.model"]
    assert left({"models": {"large": {}}, "agents": {"a": {}}})[1] == []
    assert left({"models": large, "agents": {"a": {"tools": 3, "no_tool": "refuse"}}})[1] == []


@pytest.mark.parametrize("document", [{"models": 3, "agents": 3, "network": []}, {"x": {"y": {"z": 1}}}, {}])
def test_whatever_is_wrong_there_is_a_rest(document: dict[str, Any]) -> None:
    config, _ = left(document)
    assert config == AcuConfig()


def test_a_path_that_is_nowhere_takes_nothing_out() -> None:
    config, found = remains({"daemon": {"log_level": "debug"}}, ["ACU_NOTHING"])
    assert (config.daemon.log_level, found) == ("debug", [])


@pytest.mark.parametrize(
    ("field", "broken", "follows"),
    [
        ("models", "gpu.weights_mb", True),
        ("models", "network.bind_addr", False),
        ("models.large", "models.large.max_running", True),
        ("models.large.model", "models.large.max_running", False),
        ("models.large.model", "models.small.model", False),
        ("agents.desk.tools", "tools.python.mine.modul", True),
        ("agents.desk.tools", "agents.desk.answr", False),
        ("tools.python.mine", "agents.desk.answr", False),
        ("daemon.audit_log", "daemon", True),
    ],
)
def test_what_hangs_on_what(field: str, broken: str, follows: bool) -> None:
    assert hangs(field, [broken]) is follows
