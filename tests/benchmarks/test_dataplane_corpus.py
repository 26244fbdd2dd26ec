"""What the corpus takes from WordNet's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus import PARTS, Corpus, cache_file, embedded, glosses, read_texts
from benchmarks.report import NotMeasured

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by | \n"
CAT = "02121620 05 n 02 cat 0 true_cat 0 001 @ 02120997 n 0000 | feline mammal usually having thick soft fur  \n"


def folder_with(folder: Path, lines: dict[str, str]) -> Path:
    for part in PARTS:
        (folder / f"data.{part}").write_text(lines.get(part, ""))
    return folder


def test_a_gloss_is_what_follows_the_last_bar_and_the_licence_is_none() -> None:
    assert list(glosses([LICENCE, CAT, "no gloss | \n"])) == ["feline mammal usually having thick soft fur"]


def test_each_text_comes_once_in_an_order_that_the_seed_decides(tmp_path: Path) -> None:
    nouns = "".join(f"x | text {number}\n" for number in range(50))
    folder = folder_with(tmp_path, {"noun": nouns, "verb": "y | text 3\ny | text 50\n"})
    texts = read_texts(folder, seed=1)
    assert sorted(texts) == sorted(f"text {number}" for number in range(51))
    assert texts == read_texts(folder, seed=1)
    assert texts != read_texts(folder, seed=2)


def test_without_wordnet_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="wordnet-base"):
        read_texts(tmp_path, seed=0)


def test_embeddings_are_found_by_the_texts_they_are_of(tmp_path: Path) -> None:
    stored = cache_file(tmp_path, ["a", "b"])
    np.save(stored, np.zeros((2, 4), np.float32))
    assert embedded(["a", "b"], tmp_path, tmp_path / "no-python") == stored
    with pytest.raises(NotMeasured, match="setup --bench"):
        embedded(["b", "a"], tmp_path, tmp_path / "no-python")


def test_queries_are_never_rows() -> None:
    corpus = Corpus(np.arange(10.0)[:, None], [str(n) for n in range(10)], np.zeros(10), 6, Path("v.npy"))
    assert corpus.row_vectors[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert corpus.queries(3)[:, 0].tolist() == [7, 8, 9]
    with pytest.raises(NotMeasured):
        corpus.queries(5)
