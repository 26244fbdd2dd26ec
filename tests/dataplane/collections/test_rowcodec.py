"""Rows between callers and storage: what is read while it is being replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dataplane.collections.rowcodec import stored_rows
from dataplane.rows import StoredRow
from tests.dataplane.planes import DIMENSIONS, vectors
from tests.dataplane.stilled import Stilled, stilled

STORED = vectors(8)


def replaced_between(still: Stilled, family: str, times: int) -> None:
    """Have row r1 replaced just before each of the first readings of a family, `times` times."""
    get_many = still.rocks.get_many
    left = [times]

    def beside(name: str, wanted: Sequence[bytes]) -> list[bytes | None]:
        if name == family and left[0]:
            left[0] -= 1
            still.upsert(STORED[left[0] : left[0] + 1], ids=["r1"], texts=[f"version {left[0]}"])
        return get_many(name, wanted)

    still.rocks.get_many = beside  # type: ignore[method-assign]


def got(still: Stilled, *ids: str) -> list[StoredRow | None]:
    wanted = [still.collection.scope + id_.encode() for id_ in ids]
    return stored_rows(still.collection, wanted, vectors=True)


def test_a_row_that_is_being_replaced_is_there_all_the_time(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:3])
        for family in ("rows", "vectors"):
            replaced_between(still, family, 3)
            first, second, never = got(still, "r0", "r1", "never")
            assert first is not None
            assert first.text == "note 0"
            assert second is not None
            assert second.text == "version 0"
            assert second.vector is not None
            assert never is None


def test_a_row_that_has_lost_its_content_is_not_there_and_one_without_vector_has_none(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:3])
        batch = still.rocks.batch()
        batch.delete("rows", still.collection.scope + still.row("r0").to_bytes(8, "big"))
        batch.delete("vectors", still.collection.scope + still.row("r1").to_bytes(8, "big"))
        still.rocks.write(batch)
        first, second, third = got(still, "r0", "r1", "r2")
        assert first is None
        assert second is not None
        assert second.vector is None
        assert third is not None
        assert third.vector is not None
