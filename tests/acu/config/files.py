"""Configuration files as the tests write them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from acu.config import load
from acu.errors import ConfigError


def write(path: Path, text: str) -> Path:
    """A configuration file."""
    path.write_text(textwrap.dedent(text))
    return path


def problems(tmp_path: Path, text: str, **environ: str) -> tuple[str, ...]:
    """The problems that a file has."""
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), **environ}, file=write(tmp_path / "acu.yaml", text))
    return refused.value.problems
