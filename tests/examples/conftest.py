"""The daemon of the tests of acu, for those of the examples."""

from __future__ import annotations

from tests.acu.conftest import clean_environ, daemon

__all__ = ["clean_environ", "daemon"]
