"""Shared by all tests."""

import atexit
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


@atexit.register  # pytest's own end gives standard error back first
def _let_the_summary_be_the_last() -> None:
    """Triton's binding library tells at the very end what it leaks."""
    if "triton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
