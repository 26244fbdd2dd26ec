from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentflow.engine.script import Rule, Script
from agentflow.errors import EngineStartFailed

EXAMPLE = Path(__file__).parents[3] / "examples" / "script.yaml"


def test_the_example_loads_and_shows_every_field() -> None:
    script = Script.load(EXAMPLE)
    assert script.rules[0] == Rule(match="(?i)capital of france", answer="The capital of France is Paris.")
    text = EXAMPLE.read_text()
    for fields in (Script, Rule):
        for field in fields.__struct_fields__:
            assert re.search(rf"\b{field}:", text), field


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rules: [{match: '('}]", "no regular expression"),
        ("rules: [{answer: a, answers: [b]}]", "exclude each other"),
        ("answers: x", "unknown field `answers`"),
        ("tokens_per_s: -1", "tokens_per_s"),
        ("tokens_per_delta: 0", "tokens_per_delta"),
        ("rules: 5", "rules"),
        ("{", "script.yaml"),
        ("[]", "script.yaml"),
    ],
)
def test_a_wrong_script_is_refused_with_the_file_and_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(EngineStartFailed, match=re.escape(reason)) as caught:
        Script.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineStartFailed, match="No such file"):
        Script.load(tmp_path / "none.yaml")
