"""Shared by the data plane's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dataplane.seaweed import Seaweed


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """The real S3 server, started once. A test that kills it starts it again."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.kill()
