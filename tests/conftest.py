"""Shared by all tests."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_model_cache() -> Path:
    """The model cache for tests with real models: the daemon's own default, so that a machine converts only once.

    A test pulls what it needs (`models.pull(name, real_model_cache)`), which costs nothing when it is there, and
    changes nothing else in it.
    """
    return Path(os.environ.get("ACU_TEST_MODEL_CACHE", "~/.cache/acu/models")).expanduser()


def pytest_unconfigure() -> None:
    """Let the summary be the last that is printed: Triton's binding library tells at the very end what it leaks."""
    if "triton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
