"""Corpus: real texts and their embeddings, in rows to store and texts that are not rows, to ask with.

The texts are WordNet's glosses (Debian's package wordnet-base): 117,033 of them, each once, shuffled by a seed. They are
embedded once, by wordllama in .venv-bench, into a file of the cache; its name carries the hash of the texts, so it always
fits them. The first `rows` are the rows; of the rest come queries, and rows that are added while something is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.ending import tied
from benchmarks.report import NotMeasured

GLOSSES = Path("/usr/share/wordnet")
PARTS = ("noun", "verb", "adj", "adv")
DIMENSIONS = 256
LEAST = 1000  # rows, so that filters and tiers have something to work on
SPARE = 4000  # texts that are no rows, at least
BUCKETS = 20  # values of the attribute that filters ask for: each matches 5 % of the rows


@dataclass(frozen=True)
class Corpus:
    """`vectors` float32 (n, 256), `texts` and `buckets` (n,), rows first; `path` is the file with all vectors."""

    vectors: np.ndarray
    texts: list[str]
    buckets: np.ndarray
    rows: int
    path: Path

    @property
    def row_vectors(self) -> np.ndarray:
        """Of the rows."""
        return self.vectors[: self.rows]

    def queries(self, count: int) -> np.ndarray:
        """The last `count` vectors: of texts that are never rows. Raises NotMeasured when there are not so many."""
        if count > len(self.texts) - self.rows:
            raise NotMeasured(f"{count} queries wanted, and {len(self.texts) - self.rows} texts are not rows")
        return self.vectors[len(self.vectors) - count :]


def glosses(lines: Iterable[str]) -> Iterator[str]:
    """The gloss of each synset of a WordNet data file; lines that begin with two spaces are its licence."""
    for line in lines:
        if not line.startswith("  ") and (gloss := line.rpartition("| ")[2].strip()):
            yield gloss


def read_texts(folder: Path, seed: int) -> list[str]:
    """All glosses, each once, shuffled. Raises NotMeasured without WordNet."""
    seen: dict[str, None] = {}
    for part in PARTS:
        path = folder / f"data.{part}"
        if not path.is_file():
            raise NotMeasured(f"no {path}: install WordNet's data (on Debian: apt-get install wordnet-base)")
        with path.open(encoding="utf-8") as lines:
            seen.update(dict.fromkeys(glosses(lines)))
    texts = list(seen)
    return [texts[at] for at in np.random.default_rng(seed).permutation(len(texts))]


def cache_file(cache: Path, texts: list[str]) -> Path:
    """Where the embeddings of exactly these texts lie."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    return cache / f"glosses-{digest}.npy"


def embedded(texts: list[str], cache: Path, python: Path) -> Path:
    """The file with the texts' embeddings, made by `python` (of .venv-bench) if it is not there. Raises NotMeasured."""
    target = cache_file(cache, texts)
    if target.is_file():
        return target
    if not python.is_file():
        raise NotMeasured(f"no {python}, which embeds the texts: run scripts/setup --bench first")
    cache.mkdir(parents=True, exist_ok=True)
    listed = cache / f".{target.stem}.{os.getpid()}.json"
    made = cache / f".{target.stem}.{os.getpid()}.npy"
    try:
        listed.write_text(json.dumps(texts))
        command = [str(python), "-m", "benchmarks.glossvectors", str(listed), str(made)]
        done = subprocess.run(tied(command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotMeasured(f"the texts could not be embedded:\n{done.stderr[-2000:]}")
        made.replace(target)
    finally:
        listed.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
    return target


def load(rows: int, seed: int, cache: Path, python: Path) -> Corpus:
    """The corpus with `rows` rows. Raises NotMeasured without the texts, their embedder, or enough of them."""
    texts = read_texts(GLOSSES, seed)
    path = embedded(texts, cache, python)
    vectors = np.load(path)
    if vectors.shape != (len(texts), DIMENSIONS):
        raise NotMeasured(f"{path} holds {vectors.shape} for {len(texts)} texts: remove it")
    if not LEAST <= rows <= len(texts) - SPARE:
        raise NotMeasured(f"{LEAST} to {len(texts) - SPARE} rows: the rest is asked with, and added meanwhile")
    buckets = np.random.default_rng(seed + 1).integers(0, BUCKETS, len(texts))
    return Corpus(vectors, texts, buckets, rows, path)
