"""The rows that the killed process stores: what a row holds follows from its number and version, so that anybody can check it."""

from __future__ import annotations

import numpy as np

from dataplane.rows import CollectionSpec, Row

TENANT = "crash"
NOTES, DRAFTS = "notes", "drafts"
SPECS = {
    NOTES: CollectionSpec(dimensions=48, metric="cosine"),
    DRAFTS: CollectionSpec(dimensions=16, metric="l2", text=False),
}
ROWS = {NOTES: 3000, DRAFTS: 400}
GROUPS = 7


def vector(collection: str, row: int, version: int) -> np.ndarray:
    """float32, shape [dimensions], as it is stored."""
    dimensions = SPECS[collection].dimensions
    topic = np.random.default_rng(row % 20).standard_normal(dimensions)
    made = topic + 0.8 * np.random.default_rng([row, version]).standard_normal(dimensions)
    if SPECS[collection].metric == "cosine":
        made /= np.linalg.norm(made)
    return made.astype(np.float32)


def text(row: int, version: int) -> str:
    """A word that only this version has, and some that many have."""
    return f"{word(row, version)} group{row % GROUPS} 上海"


def word(row: int, version: int) -> str:
    """The word that only this version of the row has."""
    return f"row{row}v{version}"


def made(collection: str, row: int, version: int, ttl_s: float | None = None) -> Row:
    """The row to store."""
    return Row(
        id=f"r{row}",
        vector=vector(collection, row, version),
        text=text(row, version),
        attributes={"version": version, "group": row % GROUPS},
        ttl_s=ttl_s,
    )


def payload(name: str, version: int) -> bytes:
    """A record's value; some are so large that they lie in parts."""
    return f"{name} {version} ".encode() * (3 if version % 11 else 9000)
