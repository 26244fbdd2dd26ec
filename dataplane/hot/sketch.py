"""Sketches: one bit a dimension for each vector, with which a few candidates are found among many rows.

Of a vector x and of a query q the collection's centre c is taken off, so that only what they have not in common is estimated:

    q.x      = q.c + b c.(x-c) + (q-bc).(x-c)         cosine, dot; b = q.c / c.c leaves the least of q
    -|q-x|^2 = -|q-c|^2 - |x-c|^2 + 2 (q-c).(x-c)     l2

The first terms are of the query, the second ones of the row (`bases`; b is 1 for l2). For the products, the rest r of x is
rotated, and only the signs are kept, with one factor, |r|^2 over the sum of the magnitudes of r:

    (q-bc).(x-c) ~ factor * sum(sign(r) * rotated(q-bc))

This is RaBitQ's estimator (Gao and Long, 2024), which has no bias. The query is rounded to 4 bits a dimension, so that the sum
follows from the sketch's Hamming distances to the query's bits of each weight, and to nothing, which counts the positive signs.

The rotation is random and orthogonal, in blocks of at most 512 dimensions, so that 4,096 dimensions take 8 MB and not 64.

Sketches find candidates; scores that anybody sees are computed from stored vectors. Pure. faiss counts the bits, and is quick
for sketches of 1, 2, 4 or any multiple of 8 words, so there are no others: the words left over stay empty. At 256 dimensions
it takes a quarter of the time that numpy would. Both release the GIL.
"""

from __future__ import annotations

from functools import lru_cache

import faiss
import numpy as np
from numpy.typing import NDArray

from dataplane.hot.address import address

QUERY_BITS = 4
BLOCK = 512
CHUNK = 16_384  # rows that one call works on: 0.1 ms at 256 dimensions, and no large temporary

Floats = NDArray[np.float32]
Words = NDArray[np.uint64]


def sketch_words(dimensions: int) -> int:
    """64-bit words of a sketch."""
    needed = -(-dimensions // 64)
    return next((few for few in (1, 2, 4) if needed <= few), -(-needed // 8) * 8)


class Sketcher:
    """Makes sketches of vectors of `dimensions`, and scores them. The same centre always gives the same sketches."""

    def __init__(self, dimensions: int, centre: Floats | None = None, *, l2: bool = False) -> None:
        self.dimensions = dimensions
        self._l2 = l2
        self.centre = np.zeros(dimensions, np.float32) if centre is None else centre
        self.words = sketch_words(dimensions)
        self._blocks = _rotation(dimensions)

    def encode(self, vectors: Floats) -> tuple[Words, Floats, Floats]:
        """Of `vectors`, shape [n, dimensions]: sketches, shape [n, words], factors and bases, shape [n]."""
        rest = vectors - self.centre
        rotated = self._rotate(rest)
        bits = np.zeros((len(vectors), self.words * 8), np.uint8)
        packed = np.packbits(rotated > 0, axis=1, bitorder="little")
        bits[:, : packed.shape[1]] = packed
        magnitudes = np.abs(rotated).sum(axis=1)
        squares: Floats = np.einsum("nd,nd->n", rest, rest)
        factors = np.zeros(len(vectors), np.float32)
        np.divide(squares, magnitudes, out=factors, where=magnitudes > 0)
        bases = -squares if self._l2 else np.asarray(rest @ self.centre, np.float32)
        return bits.view("<u8").astype(np.uint64, copy=False), factors, bases

    def query(self, vector: Floats) -> Query:
        """What `estimate` needs of a query vector, shape [dimensions]."""
        if self._l2:
            scale, along = 2.0, 1.0
        else:
            scale, along = 1.0, float(vector @ self.centre) / (float(self.centre @ self.centre) or 1.0)
        rest = vector - np.float32(along) * self.centre
        constant = -float(rest @ rest) if self._l2 else float(vector @ self.centre)
        return Query(self._rotate(rest.reshape(1, -1))[0], self.words, scale=scale, along=along, constant=constant)

    def _rotate(self, vectors: Floats) -> Floats:
        """Rotated copies; lengths and inner products stay."""
        rotated = np.empty(vectors.shape, np.float32)
        start = 0
        for block in self._blocks:
            end = start + len(block)
            np.matmul(vectors[:, start:end], block, out=rotated[:, start:end])
            start = end
        return rotated


class Query:
    """What of a query is not along the centre: rotated, and rounded. `scale`: of products with it; `along`: of bases."""

    def __init__(self, rotated: Floats, words: int, *, scale: float, along: float, constant: float) -> None:
        low, high = float(rotated.min()), float(rotated.max())
        step = (high - low) / (2**QUERY_BITS - 1) or 1.0
        levels = np.rint((rotated - low) / step).astype(np.uint8)
        planes = np.zeros((QUERY_BITS + 1, words * 8), np.uint8)  # the last stays empty
        for bit in range(QUERY_BITS):
            packed = np.packbits((levels >> bit) & 1, bitorder="little")
            planes[bit, : len(packed)] = packed
        self._planes = planes.view("<u8").astype(np.uint64, copy=False)
        # For each weight w: bits in common = (ones of sketch + ones of plane - distance) / 2, and
        # sum of sign * rotated query = 2 * sum over the positive signs of (low + step * w * bit) - total.
        weights = 2 ** np.arange(QUERY_BITS)
        ones = np.bitwise_count(self._planes[:-1]).sum(axis=1)
        of_distances = [*(-step * weights), 2 * low + step * float(weights.sum())]
        of_nothing = step * float(weights @ ones) - float(rotated.sum(dtype=np.float64))
        self._of_distances = np.array(of_distances, np.float32) * np.float32(scale)
        self._of_nothing = np.float32(of_nothing * scale)
        self._along = np.float32(along)
        self._constant = np.float32(constant)

    def estimate(self, sketches: Words, factors: Floats, bases: Floats) -> Floats:
        """About the scores of the rows whose sketches [n, words], factors [n] and bases [n] these are; shape [n]."""
        estimates = np.empty(len(sketches), np.float32)
        for start in range(0, len(sketches), CHUNK):
            part = slice(start, start + CHUNK)
            np.dot(self._of_distances, self._distances(sketches[part]), out=estimates[part])
        estimates += self._of_nothing
        estimates *= factors
        estimates += self._along * bases
        estimates += self._constant
        return estimates

    def _distances(self, sketches: Words) -> Floats:
        """From each plane to each sketch, in bits; shape [QUERY_BITS + 1, n]."""
        stored = np.ascontiguousarray(sketches)
        distances = np.empty((len(self._planes), len(stored)), np.int32)
        faiss.hammings(  # type: ignore[attr-defined]  # not in its stub
            address(self._planes.view(np.uint8)),
            address(stored.view(np.uint8)),
            len(self._planes),
            len(stored),
            stored.itemsize * stored.shape[1],
            address(distances),
        )
        return distances.astype(np.float32)


@lru_cache(maxsize=16)
def _rotation(dimensions: int) -> tuple[Floats, ...]:
    """Random orthogonal blocks along the diagonal."""
    count = -(-dimensions // BLOCK)
    sizes = [len(part) for part in np.array_split(np.arange(dimensions), count)]
    random = np.random.Generator(np.random.PCG64(dimensions))
    return tuple(np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32) for size in sizes)
