"""Shared by the data plane's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataplane.keeping import heated, prepare
from tests.dataplane.planes import DIMENSIONS
from tests.dataplane.seaweed import Seaweed
from tests.dataplane.stilled import Stilled, stilled


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """The real S3 server, started once. A test that kills it starts it again."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    """An empty collection without threads. (Where others are needed, a module has its own.)"""
    with stilled(tmp_path, DIMENSIONS) as made:
        yield made


@pytest.fixture(scope="session")
def all_in_the_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `hot` copies. Nobody changes it."""
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def hot(all_in_the_graph: Path, tmp_path: Path) -> Iterator[Stilled]:
    """A collection without threads whose rows are all in the graph."""
    with heated(all_in_the_graph, tmp_path / "hot") as made:
        yield made
