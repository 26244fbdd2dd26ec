"""What the keeper remembers of collections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.tiering.due import Dues
from tests.dataplane.planes import DIMENSIONS
from tests.dataplane.stilled import Stilled, stilled


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    with stilled(tmp_path, DIMENSIONS) as made:
        yield made


def test_what_is_remembered_of_a_collection_stays_until_it_is_forgotten(still: Stilled) -> None:
    dues = Dues()
    due = dues.of(still.collection)
    due.adopted = True
    assert dues.of(still.collection) is due
    assert len(dues) == 1
    dues.forget(still.collection)
    dues.forget(still.collection)
    assert len(dues) == 0
    assert not dues.of(still.collection).adopted


def test_the_error_is_that_of_a_collection_whose_last_step_failed(still: Stilled) -> None:
    dues = Dues()
    assert dues.error is None
    dues.of(still.collection).error = "no room."
    assert dues.error == "no room."
    dues.of(still.collection).error = None
    assert dues.error is None


def test_who_waits_for_a_collection_does_so_until_told_otherwise(still: Stilled) -> None:
    dues = Dues()
    assert not dues.hurried(still.collection)
    dues.hurry(still.collection, on=True)
    dues.forget(still.collection)
    assert dues.hurried(still.collection)
    dues.hurry(still.collection, on=False)
    assert not dues.hurried(still.collection)
