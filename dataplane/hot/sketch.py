"""Sketches: one bit a dimension for each vector, with which a few candidates are found among many rows.

The collection's centre c is taken off a vector x, the rest is rotated, and of the result only the signs are kept, with the
mean of its magnitudes as the one factor. The inner product of a query q with x is then about
q.c + factor(x) * sum(sign(x) * rotated(q)). The query is rounded to 4 bits a dimension, so that the sum becomes 4 counts of
common bits for each 64-bit word. This is RaBitQ's estimator (Gao and Long, 2024). On 40,000 WordNet glosses of 256
dimensions the 100 best by sketch hold 0.995 of the true ten nearest; without the centre, 0.98.

The rotation is random and orthogonal, in blocks of at most 512 dimensions, so that 4,096 dimensions take 8 MB and not 64.

Sketches find candidates; scores that anybody sees are computed from stored vectors. Pure; numpy releases the GIL in all of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

QUERY_BITS = 4
BLOCK = 512
CHUNK = 16_384  # rows that one numpy call works on: tens of microseconds, and no large temporary

Floats = NDArray[np.float32]
Words = NDArray[np.uint64]


class Sketcher:
    """Makes sketches of vectors of `dimensions`, and scores them. The same centre always gives the same sketches."""

    def __init__(self, dimensions: int, centre: Floats | None = None) -> None:
        self.dimensions = dimensions
        self.centre = np.zeros(dimensions, np.float32) if centre is None else centre
        self.words = -(-dimensions // 64)
        self._blocks = _rotation(dimensions)

    def encode(self, vectors: Floats) -> tuple[Words, Floats]:
        """Sketches, shape [words, n], and factors, shape [n], of `vectors`, shape [n, dimensions]."""
        rotated = self._rotate(vectors - self.centre)
        bits = np.zeros((len(vectors), self.words * 8), np.uint8)
        packed = np.packbits(rotated > 0, axis=1, bitorder="little")
        bits[:, : packed.shape[1]] = packed
        words = np.ascontiguousarray(bits.view("<u8").T).astype(np.uint64, copy=False)
        return words, np.abs(rotated).mean(axis=1, dtype=np.float32)

    def query(self, vector: Floats) -> Query:
        """What `estimate` needs of a query vector, shape [dimensions]."""
        rotated = self._rotate(vector.reshape(1, -1))[0]
        low, high = float(rotated.min()), float(rotated.max())
        step = (high - low) / (2**QUERY_BITS - 1) or 1.0
        levels = np.rint((rotated - low) / step).astype(np.uint8)
        planes = np.zeros((QUERY_BITS, self.words * 8), np.uint8)
        for bit in range(QUERY_BITS):
            packed = np.packbits((levels >> bit) & 1, bitorder="little")
            planes[bit, : len(packed)] = packed
        words = planes.view("<u8").astype(np.uint64, copy=False)
        return Query(words, low, step, float(rotated.sum(dtype=np.float64)), float(vector @ self.centre))

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
    """A query vector, rotated and rounded."""

    def __init__(self, planes: Words, low: float, step: float, total: float, at_centre: float) -> None:
        self._planes = planes  # [QUERY_BITS, words]
        self._low = low
        self._step = step
        self._total = total
        self._at_centre = at_centre

    def estimate(self, sketches: Words, factors: Floats) -> Floats:
        """About the inner products with the rows whose sketches [words, n] and factors [n] these are; shape [n]."""
        count = sketches.shape[1]
        estimates = np.empty(count, np.float32)
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            estimates[part] = self._signed_sum(sketches[:, part])
        estimates *= factors
        estimates += np.float32(self._at_centre)
        return estimates

    def _signed_sum(self, sketches: Words) -> Floats:
        """Sum of sign * rotated query: twice the sum over the positive signs, less the sum over all."""
        weighted = np.zeros(sketches.shape[1], np.uint32)
        ones = np.zeros(sketches.shape[1], np.uint16)
        for bit, plane in enumerate(self._planes):
            common = np.zeros(sketches.shape[1], np.uint16)
            for word, row in enumerate(sketches):
                common += np.bitwise_count(row & plane[word])
                if bit == 0:
                    ones += np.bitwise_count(row)
            weighted += common.astype(np.uint32) << bit
        positive = np.float32(self._low) * ones + np.float32(self._step) * weighted.astype(np.float32)
        return 2 * positive - np.float32(self._total)


@lru_cache(maxsize=16)
def _rotation(dimensions: int) -> tuple[Floats, ...]:
    """Random orthogonal blocks along the diagonal."""
    count = -(-dimensions // BLOCK)
    sizes = [len(part) for part in np.array_split(np.arange(dimensions), count)]
    random = np.random.Generator(np.random.PCG64(dimensions))
    return tuple(np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32) for size in sizes)
