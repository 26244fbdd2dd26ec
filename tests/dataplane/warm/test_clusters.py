"""clusters: every row in one group, groups within their size and mostly full, similar rows together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.errors import InvalidInput
from dataplane.warm import clusters
from dataplane.warm.clusters import Clusters, Floats, cluster


def blobs(count: int, dimensions: int, centres: int, spread: float = 0.3) -> Floats:
    """Normalised vectors around `centres` directions of different popularity."""
    rng = np.random.default_rng(5)
    middles = rng.standard_normal((centres, dimensions))
    which = (rng.random(count) ** 2 * centres).astype(np.int64)
    vectors = middles[which] + spread * rng.standard_normal((count, dimensions))
    unit: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def check(result: Clusters, count: int, size: int) -> None:
    """Every position once, every group within its size, one finite centroid a group."""
    members = np.concatenate(result.groups) if result.groups else np.empty(0, dtype=np.int64)
    assert np.array_equal(np.sort(members), np.arange(count))
    assert all(1 <= len(group) <= size and (np.diff(group) > 0).all() for group in result.groups)
    assert result.centroids.shape[0] == len(result.groups)
    assert result.centroids.dtype == np.float32


def test_groups_of_real_looking_vectors_are_nearly_full_and_hold_neighbours() -> None:
    vectors = blobs(6000, 48, 150)
    result = cluster(vectors, 64, seed=1)
    check(result, 6000, 64)
    sizes = np.array([len(group) for group in result.groups])
    assert sizes.mean() > 0.8 * 64
    assert (sizes >= 48).mean() > 0.7
    owner = np.empty(6000, dtype=np.int64)
    for number, group in enumerate(result.groups):
        owner[group] = number
    nearest = np.argsort(-(vectors[:200] @ vectors.T), axis=1)[:, :50]
    touched = np.mean([len(np.unique(owner[row])) for row in nearest])
    assert touched < 20  # of 95 groups; rows dealt by chance would lie in 39


def test_centroids_are_the_means_of_their_groups() -> None:
    vectors = blobs(1000, 16, 20)
    result = cluster(vectors, 50)
    for group, centroid in zip(result.groups, result.centroids, strict=True):
        assert np.allclose(centroid, vectors[group].mean(axis=0), atol=1e-6)


def test_the_same_seed_gives_the_same_groups_and_another_gives_others() -> None:
    vectors = blobs(2000, 16, 40)
    first, again, other = cluster(vectors, 64, seed=7), cluster(vectors, 64, seed=7), cluster(vectors, 64, seed=8)
    assert [group.tolist() for group in first.groups] == [group.tolist() for group in again.groups]
    assert [group.tolist() for group in first.groups] != [group.tolist() for group in other.groups]
    assert np.array_equal(first.centroids, again.centroids)


def test_many_rows_are_cut_into_cells_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LARGEST_CELL", 8)
    vectors = blobs(5000, 16, 60)
    result = cluster(vectors, 32)
    check(result, 5000, 32)
    assert np.mean([len(group) for group in result.groups]) > 0.75 * 32


def test_equal_vectors_fill_groups_by_position() -> None:
    result = cluster(np.ones((1000, 8), dtype=np.float32), 64)
    check(result, 1000, 64)
    assert len(result.groups) <= 18
    assert np.array_equal(result.centroids, np.ones_like(result.centroids))


def test_zero_vectors_give_finite_centroids() -> None:
    vectors = blobs(500, 8, 5)
    vectors[::2] = 0
    result = cluster(vectors, 20)
    check(result, 500, 20)
    assert np.isfinite(result.centroids).all()


def test_rows_that_are_not_finite_or_overflow_are_grouped_all_the_same() -> None:
    vectors = blobs(400, 8, 5)
    vectors[3] = np.nan
    vectors[4] = np.inf
    vectors[5:50] = 1e30
    check(cluster(vectors, 16), 400, 16)


def test_no_rows_have_no_groups() -> None:
    result = cluster(np.empty((0, 8), dtype=np.float32), 64)
    assert result.groups == ()
    assert result.centroids.shape == (0, 8)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_any_number_of_rows_and_any_size_are_grouped_whole(count: int, size: int, kinds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((kinds, 4)).astype(np.float32)[rng.integers(0, kinds, count)]
    check(cluster(vectors, size, seed), count, size)


@pytest.mark.parametrize(
    ("vectors", "size", "message"),
    [
        (np.zeros(5, dtype=np.float32), 4, "float32 array of shape"),
        (np.zeros((5, 2)), 4, "float32 array of shape"),
        (np.zeros((5, 2), dtype=np.float32), 0, "at least 1 row"),
    ],
)
def test_malformed_input_is_refused(vectors: Floats, size: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cluster(vectors, size)
