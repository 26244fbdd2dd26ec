"""The real SeaweedFS for tests: the one that the exercises of `benchmarks` start."""

from __future__ import annotations

from benchmarks.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

__all__ = ["ACCESS_KEY", "BUCKET", "SECRET_KEY", "Seaweed"]
