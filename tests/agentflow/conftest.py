"""Fixtures of the orchestrator's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from acu import models


@pytest.fixture(scope="session")
def smollm2(real_model_cache: Path) -> Path:
    """The folder of the real chat model."""
    return models.pull("smollm2-135m-instruct", real_model_cache).path
