"""Embed texts with wordllama: `python -m benchmarks.glossvectors TEXTS.json VECTORS.npy`, by the Python of .venv-bench.

Reads a JSON list of texts and writes float32 (n, 256), each row of length 1. wordllama's weights lie in its package, so
nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

CHUNK = 2000  # texts a call, which bounds the memory


def embed(texts: list[str]) -> np.ndarray:
    """Float32 (n, 256), normalised."""
    import wordllama  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only

    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    parts = [model.embed(texts[at : at + CHUNK], norm=True) for at in range(0, len(texts), CHUNK)]
    return np.concatenate(parts, dtype=np.float32)


def main() -> None:
    """Embed one file of texts into one file of vectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("vectors", type=Path)
    args = parser.parse_args()
    np.save(args.vectors, embed(json.loads(args.texts.read_text())))


if __name__ == "__main__":
    main()
