"""Vectors are known by the model that they are of: by its files where it has some, else by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.library.embedderid import SAMPLE, SAMPLES, WHOLE, EmbedderId, fingerprint_of
from agentflow.library.refusals import EmbedderChanged

MINI, MAXI = EmbedderId(model="mini"), EmbedderId(model="maxi")
ONE, TWO = EmbedderId(model="mini", fingerprint="1" * 16), EmbedderId(model="mini", fingerprint="2" * 16)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (MINI, MINI, True),
        (MINI, MAXI, False),
        (ONE, MINI, True),  # the files of the one are not known
        (ONE, MAXI, False),
        (ONE, TWO, False),
        (ONE, EmbedderId(model="maxi", fingerprint="1" * 16), True),  # another name for it
    ],
)
def test_models_are_the_same_by_their_files_and_else_by_name(one: EmbedderId, other: EmbedderId, same: bool) -> None:
    assert one.same(other) is same
    assert other.same(one) is same


def test_a_refusal_says_what_was_and_what_is_served() -> None:
    ONE.check(MINI, "vs_1")
    with pytest.raises(
        EmbedderChanged, match="'vs_1' was made with the embedding model 'mini', and 'maxi' is served now"
    ):
        ONE.check(MAXI, "vs_1")
    with pytest.raises(EmbedderChanged, match="with other files of the embedding model 'mini', and those of today are"):
        ONE.check(TWO, "vs_1")


def model(folder: Path) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text('{"mean": true}')
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3 * WHOLE))
    (folder / "acu-model.json").write_text('{"created": "today"}')
    (folder / ".cache").mkdir()
    return folder


def test_a_fingerprint_follows_from_the_files_wherever_they_are(tmp_path: Path) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b")
    (second / "acu-model.json").write_text('{"created": "yesterday"}')
    (second / "README.md").write_text("Read me.")
    (second / ".cache" / "x.json").write_text("{}")
    found = fingerprint_of(first, "")
    assert len(found) == 16
    assert fingerprint_of(second, "") == found
    assert fingerprint_of(first, "passage: ") != found


@pytest.mark.parametrize("place", [0, 3 * WHOLE - 1, (3 * WHOLE - SAMPLE) // (SAMPLES - 1)])
def test_a_fingerprint_tells_other_weights_and_other_settings(tmp_path: Path, place: int) -> None:
    folder = model(tmp_path / "a")
    found = {fingerprint_of(folder, "")}
    weights = bytearray(3 * WHOLE)
    weights[place] = 1
    (folder / "model.safetensors").write_bytes(weights)
    found.add(fingerprint_of(folder, ""))
    (folder / "1_Pooling" / "config.json").write_text('{"mean": false}')
    found.add(fingerprint_of(folder, ""))
    (folder / "1_Pooling" / "config.json").rename(folder / "pooling.json")
    found.add(fingerprint_of(folder, ""))
    assert len(found) == 4


def test_a_model_without_files_has_no_fingerprint_but_its_prefix_counts() -> None:
    assert fingerprint_of(None, "") == ""
    assert len(fingerprint_of(None, "passage: ")) == 16
