"""The catalogue: collections have numbers that are never used again, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.collections import loading
from dataplane.collections.catalog import ROW_FAMILIES, Create, Drop, stored_collections
from dataplane.collections.collection import Collection
from dataplane.errors import AlreadyExists, InvalidInput, NotFound
from dataplane.rows import CollectionSpec
from dataplane.truth import keys
from dataplane.truth.records import CollectionRecord
from dataplane.truth.rocks import Rocks
from tests.dataplane.planes import vectors
from tests.dataplane.stilled import Stilled, apply

SPEC = CollectionSpec(dimensions=4, metric="l2", text=False)


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=16 << 20)
    yield rocks
    rocks.close()


def create(rocks: Rocks, tenant: str, name: str) -> CollectionRecord:
    record = apply(rocks, Create(tenant, name, SPEC, 1234))
    assert isinstance(record, CollectionRecord)
    return record


def opened(rocks: Rocks, tenant: str, record: CollectionRecord, folder: Path) -> Collection:
    collection = Collection(rocks, tenant, record, folder / f"{tenant}-{record.number}", lambda: None)
    loading.load(collection)
    return collection


def test_a_collection_is_stored_as_it_was_asked_for(rocks: Rocks) -> None:
    record = create(rocks, "acme", "notes")
    assert record == CollectionRecord("notes", 1, 4, "l2", 1234, text=False)
    assert list(stored_collections(rocks)) == [("acme", record)]


def test_every_tenant_has_names_and_numbers_of_its_own(rocks: Rocks) -> None:
    made = [create(rocks, tenant, name) for tenant, name in (("a", "x"), ("ab", "x"), ("a", "y"), ("a", "cn"))]
    assert [record.number for record in made] == [1, 1, 2, 3]
    assert {(tenant, record.name) for tenant, record in stored_collections(rocks)} == {
        ("a", "x"),
        ("a", "y"),
        ("a", "cn"),
        ("ab", "x"),
    }


def test_a_name_that_is_taken_is_refused_and_uses_no_number(rocks: Rocks) -> None:
    create(rocks, "a", "x")
    with pytest.raises(AlreadyExists, match="'x'"):
        create(rocks, "a", "x")
    assert create(rocks, "a", "y").number == 2


@pytest.mark.parametrize("name", ["", "n" * 600, "\ud800"])
def test_a_name_that_is_none_is_refused(rocks: Rocks, name: str) -> None:
    with pytest.raises(InvalidInput):
        create(rocks, "a", name)
    with pytest.raises(InvalidInput):
        create(rocks, name, "x")
    assert list(stored_collections(rocks)) == []


def test_a_dropped_collection_leaves_nothing_and_its_number_is_not_used_again(rocks: Rocks, tmp_path: Path) -> None:
    kept = Stilled(rocks, opened(rocks, "a", create(rocks, "a", "kept"), tmp_path), 1 << 26)
    gone = Stilled(rocks, opened(rocks, "a", create(rocks, "a", "gone"), tmp_path), 1 << 26)
    for still in (kept, gone):
        still.upsert(vectors(20, dimensions=4))
        still.delete(["r1"])
    apply(rocks, Drop("a", gone.collection))
    assert gone.collection.dropped
    assert [record.name for _, record in stored_collections(rocks)] == ["kept"]
    for family in ROW_FAMILIES:
        assert list(rocks.scan(family, gone.collection.scope)) == []
        assert list(rocks.scan(family, kept.collection.scope)) != []
    assert rocks.get("meta", gone.collection.seq_key) is None
    assert kept.ids(vectors(1, dimensions=4)[0], k=50) != []
    with pytest.raises(NotFound, match="deleted"):
        apply(rocks, Drop("a", gone.collection))
    with pytest.raises(NotFound, match="deleted"):
        gone.upsert(vectors(1, dimensions=4))
    with pytest.raises(NotFound, match="deleted"):
        gone.delete(["r2"])
    assert create(rocks, "a", "gone").number == 3
    assert list(rocks.scan("rows", keys.scope("a", 3))) == []
