"""Sketches: what they estimate is near the truth, and the best of them hold the true nearest."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane.hot.graph import exact_scores
from dataplane.hot.sketch import CHUNK, QUERY_BITS, Sketcher, sketch_words
from tests.dataplane.planes import vectors


def signs(words: np.ndarray, dimensions: int) -> np.ndarray:
    """+1 and -1 of each row and dimension, shape [n, dimensions]."""
    bits = np.unpackbits(np.ascontiguousarray(words, "<u8").view(np.uint8), axis=1, bitorder="little")[:, :dimensions]
    return bits.astype(np.float64) * 2 - 1


@pytest.mark.parametrize("l2", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 7, 48, 65, 256, 600])
def test_an_estimate_is_the_formula_up_to_the_rounding_of_the_query(dimensions: int, l2: bool) -> None:
    rng = np.random.default_rng(dimensions)
    stored = rng.standard_normal((200, dimensions)).astype(np.float32) + 0.3
    query = rng.standard_normal(dimensions).astype(np.float32)
    centre = stored.mean(axis=0)
    sketcher = Sketcher(dimensions, centre, l2=l2)
    words, factors, bases = sketcher.encode(stored)
    assert words.shape == (200, sketch_words(dimensions))
    rest = query - (centre if l2 else query @ centre / (centre @ centre) * centre)
    rotated = sketcher._rotate(rest.reshape(1, -1))[0].astype(np.float64)
    step = (rotated.max() - rotated.min()) / (2**QUERY_BITS - 1)
    products = factors * (signs(words, dimensions) @ rotated)
    apart = stored - centre
    if l2:
        formula = 2 * products - (rest @ rest) - (apart**2).sum(axis=1)
    else:
        formula = products + query @ centre + query @ centre / (centre @ centre) * (apart @ centre)
    allowed = (2 if l2 else 1) * factors * dimensions * step / 2 + 1e-3 * max(1, np.abs(formula).max())
    assert (np.abs(sketcher.query(query).estimate(words, factors, bases) - formula) <= allowed).all()


@pytest.mark.parametrize("l2", [False, True])
def test_estimates_of_scores_have_no_bias(l2: bool) -> None:
    stored = vectors(4000, dimensions=256) + np.float32(0.1)
    sketcher = Sketcher(256, stored.mean(axis=0), l2=l2)
    kept = sketcher.encode(stored)
    for query in vectors(5, seed=9, dimensions=256):
        scores = exact_scores(query, stored, "l2" if l2 else "dot")
        slope, _ = np.polyfit(scores, sketcher.query(query).estimate(*kept), 1)
        assert slope == pytest.approx(1, abs=0.07)


@pytest.mark.parametrize(("l2", "offset"), [(False, 0.5), (True, 0.5), (True, 10.0)])
def test_what_all_vectors_have_in_common_does_not_blur_the_estimates(l2: bool, offset: float) -> None:
    stored, queries = (vectors(n, seed=n, dimensions=128) + np.float32(offset) for n in (3000, 20))
    sketcher = Sketcher(128, stored[:512].mean(axis=0, dtype=np.float32), l2=l2)
    kept, held = sketcher.encode(stored), 0
    for query in queries:
        best = np.argpartition(-sketcher.query(query).estimate(*kept), 200)[:200]
        true = np.argsort(-exact_scores(query, stored, "l2" if l2 else "dot"))[:10]
        held += len(set(true.tolist()) & set(best.tolist()))
    assert held >= 196


@pytest.mark.parametrize(
    ("dimensions", "words"), [(1, 1), (64, 1), (65, 2), (129, 4), (256, 4), (384, 8), (512, 8), (513, 16), (4096, 64)]
)
def test_a_sketch_has_as_many_words_as_are_counted_quickly(dimensions: int, words: int) -> None:
    assert sketch_words(dimensions) == words


@pytest.mark.parametrize("dimensions", [3, 48, 100, 600])
def test_the_rotation_keeps_lengths_and_inner_products(dimensions: int) -> None:
    pair = np.random.default_rng(1).standard_normal((2, dimensions)).astype(np.float32)
    rotated = Sketcher(dimensions)._rotate(pair)
    np.testing.assert_allclose(rotated @ rotated.T, pair @ pair.T, rtol=1e-3, atol=1e-3)


def test_of_one_dimension_the_estimate_is_the_truth() -> None:
    sketcher = Sketcher(1)
    stored = np.array([[3.0], [-2.0], [0.5]], np.float32)
    estimates = sketcher.query(np.array([2.0], np.float32)).estimate(*sketcher.encode(stored))
    np.testing.assert_allclose(estimates, [6.0, -4.0, 1.0], atol=1e-5)


def test_a_row_at_the_centre_is_estimated_exactly_and_a_query_of_zeros_gives_zero() -> None:
    centre = vectors(1)[0]
    sketcher = Sketcher(48, centre)
    kept = sketcher.encode(np.stack([centre, vectors(1, seed=4)[0]]))
    query = vectors(1, seed=9)[0]
    assert kept[1][0] == 0
    assert sketcher.query(query).estimate(*kept)[0] == pytest.approx(float(query @ centre), abs=1e-6)
    assert sketcher.query(np.zeros(48, np.float32)).estimate(*kept) == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(("dimensions", "candidates", "least"), [(48, 800, 0.99), (256, 200, 0.99)])
def test_the_best_by_sketch_hold_the_true_nearest(dimensions: int, candidates: int, least: float) -> None:
    stored = vectors(8000, dimensions=dimensions)
    sketcher = Sketcher(dimensions, stored[:512].mean(axis=0, dtype=np.float32))
    kept = sketcher.encode(stored)
    held = 0
    for query in vectors(20, seed=9, dimensions=dimensions):
        estimates = sketcher.query(query).estimate(*kept)
        best = np.argpartition(-estimates, candidates)[:candidates]
        held += len(set(np.argsort(-(stored @ query))[:10].tolist()) & set(best.tolist()))
    assert held / 200 >= least


def test_the_centre_makes_estimates_of_vectors_that_have_much_in_common_better() -> None:
    stored, query = vectors(3000, dimensions=128) + np.float32(0.2), vectors(1, seed=9, dimensions=128)[0]
    errors = []
    for centre in (None, stored.mean(axis=0, dtype=np.float32)):
        sketcher = Sketcher(128, centre)
        estimates = sketcher.query(query).estimate(*sketcher.encode(stored))
        errors.append(float(np.std(estimates - stored @ query)))
    assert errors[1] < errors[0]


def test_many_rows_are_estimated_as_they_are_one_by_one() -> None:
    stored = vectors(CHUNK + 5)
    sketcher = Sketcher(48)
    words, factors, bases = sketcher.encode(stored)
    query = sketcher.query(vectors(1, seed=9)[0])
    whole = query.estimate(words, factors, bases)
    for row in (0, CHUNK - 1, CHUNK, CHUNK + 4):
        alone = query.estimate(words[[row]], factors[[row]], bases[[row]])
        assert alone[0] == pytest.approx(whole[row], abs=1e-6)
    assert query.estimate(words[:0], factors[:0], bases[:0]).shape == (0,)


def test_the_same_centre_gives_the_same_sketches_in_any_process() -> None:
    stored = vectors(50)
    one, other = (Sketcher(48, stored[0]).encode(stored) for _ in range(2))
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()
    assert one[0].ravel()[:2].tolist() == Sketcher(48, stored[0]).encode(stored[:2])[0].ravel().tolist()
