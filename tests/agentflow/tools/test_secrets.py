"""Secrets: read from files, sent, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentflow.tools.errors import InvalidTool
from agentflow.tools.secrets import SecretFile, read_headers, read_variables

SECRET = "k3y-0f-th3-k1ngd0m"


def test_a_value_is_text_or_the_content_of_a_file_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"Bearer {SECRET}\r\n")
    secrets = read_headers({"Authorization": SecretFile(str(file)), "X-Client": "acu"})
    assert secrets.values() == {"Authorization": f"Bearer {SECRET}", "X-Client": "acu"}
    assert SECRET not in repr(secrets)
    assert secrets.hide(f"you sent Bearer {SECRET}, or {SECRET} from acu") == "you sent [secret], or [secret] from acu"
    assert secrets.hide("nothing \ud800 of it") == "nothing \ud800 of it"
    file.write_text("renewed")
    assert read_headers({"Authorization": SecretFile(str(file))}).values() == {"Authorization": "renewed"}


@pytest.mark.parametrize(
    "content", [f"{SECRET}\nX-Evil: 1\n", f"{SECRET}\r\nX: 1", f"{SECRET}\0", f"{SECRET}é", f"{SECRET}\x7f"]
)
def test_a_header_of_more_than_a_line_is_refused_and_not_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(InvalidTool, match="Authorization") as caught:
        read_headers({"Authorization": SecretFile(str(tmp_path / "key"))})
    assert SECRET not in repr(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff" + SECRET.encode())
    (tmp_path / "long").write_text("x" * 70_000)
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "binary", "long", "pipe", "missing", "."):
        with pytest.raises(InvalidTool) as caught:
            read_variables({"KEY": SecretFile(str(tmp_path / name))})
        assert str(tmp_path) in str(caught.value)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None or SECRET not in repr(caught.value.__cause__)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\nb", "é"])
def test_a_header_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidTool):
        read_headers({name: "x"})


def test_a_variable_needs_a_name_and_no_nul() -> None:
    for variables in ({"": "x"}, {"a=b": "x"}, {"a": "x\0"}):
        with pytest.raises(InvalidTool):
            read_variables(variables)
